# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A soak of the engine on the demo model: many clients, cancels, classes, limits, faults in steps.

`soak` runs it and gives the figures and what went wrong. The tests run some hundred requests,
bench/soak.py as many as wanted.
"""

from __future__ import annotations

import gc
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from engine_books import check_books

from gemma_thor_ros.engine import Engine, window_pages
from gemma_thor_ros.load import DEMO_FOLDER
from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.schema import (
    ErrorCode,
    FinishEvent,
    FinishReason,
    Priority,
    Request,
    RequestError,
    SamplingParams,
    TokenEvent,
)
from gemma_thor_ros.text.prompt import render
from gemma_thor_ros.text.segments import encode_segments
from gemma_thor_ros.text.tokenizer import Tokenizer
from gemma_thor_ros.weights.checkpoint import open_checkpoint

WAIT_S = 120.0
STEP_TIMEOUT_S = 1.5
NUM_SAMPLES = 8                          # of the memory, spread over the run
SYSTEM = 'You are the voice of a small robot. Answer in one sentence. Never leave the building.'
TOOLS = [{'type': 'function', 'function': {
    'name': name, 'description': f'Make the robot {name} to a place.', 'parameters': {
        'type': 'object', 'properties': {'place': {'type': 'string'}}}}}
    for name in ('drive', 'look', 'turn')]
TURNS = ['Drive to the dock.', 'Where are you now?', 'Thank you. Look at the door.',
         'What did you see?', 'Turn to the window and wait.', 'Tell me a short story.']


@dataclass
class Report:
    """What a soak did, in figures, and what went wrong: `problems` has to be empty."""

    requests: int = 0
    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    drops: int = 0
    checkpoints_evicted: int = 0
    first_token_ms: dict[str, float] = field(default_factory=dict)   # median by class
    rss_mb: list[float] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)                 # that Python tracks
    problems: list[str] = field(default_factory=list)


def demo_model(kv_dtype: Any = 'float32') -> Gemma4:
    """The small model of the package."""
    checkpoint = open_checkpoint(DEMO_FOLDER)
    config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    return Gemma4(config, checkpoint.text_weights(), kv_dtype=kv_dtype)


def demo_requests(count: int) -> list[Request]:
    """Different requests: turns of conversations that share system and tools, or part of them."""
    tokenizer = Tokenizer.from_folder(DEMO_FOLDER)
    requests = []
    for i in range(count):
        num_turns, user = 1 + i % 4, i // 4
        messages: list[dict[str, Any]] = [{'role': 'system', 'content': SYSTEM[:60 + i % 2 * 40]}]
        for turn in range(num_turns):
            messages += [{'role': 'user', 'content': TURNS[(user + turn) % len(TURNS)]},
                         {'role': 'assistant', 'content': f'All right, that was number {turn}.'}]
        ids = encode_segments(render(messages[:-1], TOOLS[:1 + i % 3]), tokenizer)
        starts = [at for at, token in enumerate(ids) if token == tokenizer.controls.turn]
        sampling = SamplingParams(
            temperature=(0.0, 0.7, 1.5)[i % 3], seed=i, max_tokens=8 + i * 5 % 40, logprobs=0,
            ignore_eos=i % 5 == 0)
        requests.append(Request(f'pool{i}', tuple(ids), sampling,
                                checkpoints=tuple(starts[1:2] + starts[-2:])))
    return requests


class Faulty:
    """The model, with faults in its steps: an exception, a row of NaN, a step that hangs."""

    def __init__(self, model: Gemma4, seed: int, every: int) -> None:
        self.model = model
        self.config = model.config
        self.vocab_size = model.vocab_size
        self.new_kv_cache = model.new_kv_cache
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._every = every
        self._steps = 0

    def forward(self, batch: Batch, kv_cache: Any, *tap: Any) -> Any:
        logits = self.model.forward(batch, kv_cache, *tap)
        self._steps += 1
        if self._every and self._rng.random() < 1.0 / self._every:
            kind = self._rng.choice(['raise', 'nan'])
            if kind == 'raise' or not len(logits):
                self.counts['raise'] += 1
                raise OSError('planted fault')
            self.counts['nan'] += 1
            logits[self._rng.randrange(len(logits)), 5] = np.nan
        if self._every and self._steps % (20 * self._every) == self._every:
            self.counts['hang'] += 1
            time.sleep(2 * STEP_TIMEOUT_S)
        return logits


class Soak:
    """One run: the engine, the clients, what they saw."""

    def __init__(self, model: Gemma4, pool: list[Request], fault_every: int, seed: int) -> None:
        self.pool = pool
        self.model = Faulty(model, seed, fault_every)
        longest = max(len(r.prompt_ids) + r.sampling.max_tokens for r in pool)
        page_size, window = 16, model.config.sliding_window
        full = -(-longest // page_size)
        cached = 4 * window_pages(page_size, window)
        # memory for 3 of the longest at a time: with 6 slots, drops are needed
        self.engine = Engine(
            self.model, page_size=page_size, num_sliding_pages=3 * full + cached,
            num_full_pages=3 * full, max_sequences=6, max_waiting=8, prefill_chunk=64,
            context_length=4096, stop_ids=model.config.stop_ids,
            suppress_tokens=model.config.suppress_tokens, max_checkpoint_pages=cached,
            checkpoint_interval=4, step_timeout_s=STEP_TIMEOUT_S)
        self.whole = self._undisturbed()
        self.report = Report()
        self._lock = threading.Lock()
        self._first: dict[str, list[float]] = {}
        self._next = 0

    def _undisturbed(self) -> list[tuple[tuple[int, ...], tuple[float, ...], FinishReason]]:
        """Each request of the pool alone, on an engine that has seen nothing."""
        answers = []
        for request in self.pool:
            engine = Engine(self.model.model, page_size=16, num_sliding_pages=80,
                            num_full_pages=80, max_sequences=1, max_waiting=1, prefill_chunk=2048,
                            context_length=4096, stop_ids=self.model.config.stop_ids,
                            suppress_tokens=self.model.config.suppress_tokens)
            engine.start(threaded=False)
            outbox = engine.submit(request)
            while engine.step():
                pass
            answers.append(_read(outbox.poll()))
            engine.stop()
        return answers

    def client(self, seed: int, num_requests: int, on_done: Callable[[], None]) -> None:
        """Submit one request after the other until num_requests have been sent by all clients."""
        rng = random.Random(seed)
        while True:
            with self._lock:
                number, self._next = self._next, self._next + 1
            if number >= num_requests:
                return
            index = rng.randrange(len(self.pool))
            request = replace(
                self.pool[index], request_id=f'soak{number}', priority=Priority(rng.randrange(4)),
                deadline_s=rng.choice([0.0] * 8 + [0.3, 2.0]),
                first_token_s=rng.choice([0.0] * 9 + [0.5]))
            try:
                self._run(request, index, rng)
            except Exception as error:  # noqa: BLE001 - a client must not die unseen
                self._problem(f'{request.request_id}: {type(error).__name__}: {error}')
            on_done()

    def _run(self, request: Request, index: int, rng: random.Random) -> None:
        begin = time.monotonic()
        while True:
            try:
                outbox = self.engine.submit(request)
                break
            except RequestError as error:
                with self._lock:
                    self.report.refused[error.code.name] += 1
                if error.code is ErrorCode.DEADLINE:
                    return
                if error.code not in (ErrorCode.BUSY, ErrorCode.NOT_READY) or (
                        self.engine.stats().state != 'running'):
                    raise
                time.sleep(0.02)
        cancel_after = rng.randrange(12) if rng.random() < 0.25 else -1
        if cancel_after == 0:
            self.engine.cancel(request.request_id)
        events: list[Any] = []
        num_tokens = 0
        for event in outbox.events(WAIT_S):
            events.append(event)
            if isinstance(event, TokenEvent):
                num_tokens += len(event.token_ids)
                if num_tokens == 1:
                    with self._lock:
                        self._first.setdefault(request.priority.name, []).append(
                            time.monotonic() - begin)
                if num_tokens == cancel_after:
                    self.engine.cancel(request.request_id)
        self._check(request, index, events, cancel_after >= 0)
        if outbox.poll():
            self._problem(f'{request.request_id}: an event after its end')

    def _check(self, request: Request, index: int, events: list[Any], cancelled: bool) -> None:
        tokens, logprobs, reason = _read(events)
        whole = self.whole[index]
        end = events[-1]
        assert isinstance(end, FinishEvent)
        count = len(tokens)
        fine = (tokens, logprobs) == (whole[0][:count], whole[1][:count])
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            fine = fine and (tokens, reason) == (whole[0], whole[2])
        elif reason is FinishReason.CANCELLED:
            fine = fine and cancelled
        else:
            fine = fine and end.code in (ErrorCode.ENGINE, ErrorCode.DEADLINE, ErrorCode.TIMEOUT)
        fine = fine and sum(isinstance(event, FinishEvent) for event in events) == 1
        fine = fine and end.usage.completion_tokens >= count
        if not fine:
            self._problem(f'{request.request_id} ({index}): {tokens} {end} instead of {whole}')
        with self._lock:
            report = self.report
            report.requests += 1
            name = end.code.name.lower() if reason is FinishReason.ERROR else reason.value
            report.ends[name] += 1
            report.tokens += count
            report.prompt_tokens += end.usage.prompt_tokens
            report.cached_tokens += end.usage.cached_tokens

    def _problem(self, sentence: str) -> None:
        with self._lock:
            self.report.problems.append(sentence)

    def close(self, seconds: float) -> Report:
        """Stop the engine and look for what is left behind."""
        report, engine = self.report, self.engine
        stats = engine.stats()
        if (stats.running, stats.waiting, stats.full_pages_used, stats.sliding_pages_used) != (
                0, 0, 0, 0) or stats.state != 'running':
            report.problems.append(f'left behind: {stats}')
        if not engine.stop(WAIT_S):
            report.problems.append('the engine thread does not end')
        try:
            check_books(engine._pages, engine._cache, [])
            engine._cache.clear()
            check_books(engine._pages, engine._cache, [])
            assert engine._pages.full.num_available == engine._pages.full.num_pages
        except AssertionError as error:
            report.problems.append(f'the books are wrong: {error}')
        report.seconds = seconds
        report.faults = self.model.counts
        report.steps, report.preemptions = stats.steps, stats.preemptions
        report.drops, report.checkpoints_evicted = stats.drops, stats.checkpoints_evicted
        report.first_token_ms = {name: round(1e3 * sorted(values)[len(values) // 2], 1)
                                 for name, values in sorted(self._first.items())}
        return report


def soak(model: Gemma4, num_requests: int, *, num_clients: int = 16, pool_size: int = 24,
         fault_every: int = 150, seed: int = 0,
         on_progress: Callable[[int], None] | None = None) -> Report:
    """Run num_requests from num_clients threads; on_progress(requests done) from any of them."""
    run = Soak(model, demo_requests(pool_size), fault_every, seed)
    logging.disable(logging.CRITICAL)
    done = 0
    lock = threading.Lock()
    points = [num_requests * (i + 1) // NUM_SAMPLES for i in range(NUM_SAMPLES)]

    def note() -> None:
        nonlocal done
        with lock:
            done += 1
            count = done
            if count in points:
                gc.collect()
                run.report.rss_mb.append(round(rss_mb(), 1))
                run.report.objects.append(len(gc.get_objects()))
        if on_progress is not None:
            on_progress(count)

    begin = time.monotonic()
    run.engine.start()
    try:
        threads = [threading.Thread(target=run.client, args=(seed * 1000 + i, num_requests, note))
                   for i in range(num_clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        deadline = time.monotonic() + WAIT_S
        while run.engine.stats().running and time.monotonic() < deadline:
            time.sleep(0.01)                             # cancelled ones leave at a border
        return run.close(time.monotonic() - begin)
    finally:
        logging.disable(logging.NOTSET)
        run.engine.stop(1.0)


def rss_mb() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    return pages * 4096 / 2 ** 20


def _read(events: list[Any]) -> tuple[tuple[int, ...], tuple[float, ...], FinishReason]:
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    return (tuple(i for event in tokens for i in event.token_ids),
            tuple(x.logprob for event in tokens for x in event.logprobs), events[-1].reason)
