# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The engine's exactness gates as functions, for any model: each gives the differences it found.

A request's answer is compared with that of a run alone in one prefill: token ids, the logarithms
of their probabilities bit by bit, and how it ended. So a difference in the last bit of a logit
shows, also where the tokens happen to agree.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from gemma_thor_ros.engine import Engine, Outbox
from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.models.scripted import ScriptedModel
from gemma_thor_ros.schema import (
    FinishEvent,
    FinishReason,
    Request,
    RequestError,
    SamplingParams,
    TokenEvent,
    Usage,
)

WAIT = 20.0
CHUNKS = (1, 2, 15, 16, 17, 255)
TEMPERATURES = (0.0, 0.7, 1.5)


@dataclass(frozen=True)
class Job:
    """A request, the step from which it is submitted, and the one that cancels it (-1: none)."""

    request: Request
    join_step: int = 0
    cancel_step: int = -1


@dataclass(frozen=True)
class Answer:
    """What came out: the joined token events, how many there were, and the end."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: FinishReason
    message: str
    num_events: int
    cached_tokens: int = 0
    usage: Usage = field(default_factory=Usage)

    def differs(self, whole: Answer, cancelled: bool) -> bool:
        """A cancelled answer has to be a prefix of the whole one, any other equal to it."""
        if cancelled and self.reason is FinishReason.CANCELLED:
            count = len(self.token_ids)
            return (self.token_ids, self.logprobs) != (whole.token_ids[:count],
                                                       whole.logprobs[:count])
        return ((self.token_ids, self.logprobs, self.reason)
                != (whole.token_ids, whole.logprobs, whole.reason))


class HashModel(ScriptedModel):
    """Random logits that are a function of the whole history and of each token's role."""

    def __init__(self, vocab_size: int = 128, sliding_window: int = 24) -> None:
        super().__init__(lambda prompt: (), vocab_size, sliding_window=sliding_window)

    def fill_logits(self, logits: np.ndarray, history: np.ndarray, generated: np.ndarray) -> None:
        key = zlib.crc32(history.tobytes()), zlib.crc32(generated.tobytes())
        rng = np.random.Generator(np.random.Philox(key=key))
        logits[:] = rng.standard_normal(self.vocab_size, np.float32) * 2


class Driven:
    """A model with a call before every step, so that joins and cancels fall on known steps."""

    def __init__(self, model: Any, on_step: Callable[[int], None]) -> None:
        self.model = model
        self.config = model.config
        self.vocab_size = model.vocab_size
        self.new_kv_cache = model.new_kv_cache
        self.vision = getattr(model, 'vision', None)
        self.on_step = on_step
        self.num_steps = 0
        if hasattr(model, 'choose'):     # a model that draws by itself
            self.choose = self._choose

    def _choose(self, *args: Any, **options: Any) -> Any:
        self.on_step(self.num_steps)
        self.num_steps += 1
        return self.model.choose(*args, **options)

    def forward(self, batch: Batch, kv_cache: Any, *tap: Any) -> Any:
        self.on_step(self.num_steps)
        self.num_steps += 1
        return self.model.forward(batch, kv_cache, *tap)


def poison(kv_cache: Any, geometry: str, pages: Sequence[int]) -> None:
    """Make freed pages unusable: NaN in a real cache, marked in the scripted one."""
    if hasattr(kv_cache, 'poison'):
        kv_cache.poison(geometry, pages)
        return
    for k, v, kind in zip(kv_cache.k_pages, kv_cache.v_pages, kv_cache.config.layer_types,
                          strict=True):
        if kind.startswith(geometry):
            k[list(pages)] = v[list(pages)] = np.nan


def poison_all(engine: Engine, geometry: str, pages: Sequence[int]) -> None:
    """Poison the model's pages and, where it has a poison, the drafter's."""
    poison(engine.kv_cache, geometry, pages)
    if hasattr(engine, 'draft_cache') and hasattr(engine.draft_cache, 'poison'):
        engine.draft_cache.poison(geometry, pages)


def run(model: Any, jobs: Sequence[Job], **options: Any) -> dict[str, Answer]:
    """Run jobs on a fresh engine and give their answers by request id."""
    settings = {'page_size': 8, 'num_sliding_pages': 300, 'num_full_pages': 600,
                'max_sequences': 8, 'max_waiting': 1000, 'prefill_chunk': 2048,
                'context_length': 2048, 'max_rows': 1, **options}
    lock, loaded = threading.Lock(), threading.Event()
    pending = sorted(jobs, key=lambda job: job.join_step)
    cancels = [job for job in jobs if job.cancel_step >= 0]
    outboxes: dict[str, Outbox] = {}
    answers: dict[str, Answer] = {}

    def submit_until(step: int, at_least: int = 0) -> None:
        with lock:
            while pending and (pending[0].join_step <= step or at_least > 0):
                request = pending.pop(0).request
                at_least -= 1
                try:
                    outboxes[request.request_id] = engine.submit(request)
                except RequestError as error:            # the engine failed
                    answers[request.request_id] = Answer((), (), FinishReason.ERROR, str(error), 0)

    def on_step(step: int) -> None:
        assert loaded.wait(WAIT)
        submit_until(step)
        for job in [job for job in cancels if job.cancel_step <= step]:
            if engine.cancel(job.request.request_id):
                cancels.remove(job)

    engine = Engine(Driven(model, on_step), on_pages_freed=lambda geometry, pages: poison_all(
        engine, geometry, pages), **settings)
    engine.start()
    try:
        submit_until(0, at_least=1)
        loaded.set()
        while len(answers) < len(jobs):
            for request_id, outbox in list(outboxes.items()):
                if request_id not in answers:
                    answers[request_id] = read(outbox)
            submit_until(-1, at_least=1)                 # joins later than the last step
        stats = engine.stats()
        if stats.state == 'running':
            assert (stats.sliding_pages_used, stats.full_pages_used) == (0, 0), 'leaked pages'
        assert stats.draft_failure == '', stats.draft_failure
    finally:
        engine.stop(WAIT)
    return answers


def read(outbox: Outbox) -> Answer:
    """Take the events of an outbox as they come."""
    *events, finish = outbox.events(WAIT)
    assert isinstance(finish, FinishEvent)
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    return Answer(tuple(i for event in tokens for i in event.token_ids),
                  tuple(x.logprob for event in tokens for x in event.logprobs),
                  finish.reason, finish.message, len(tokens), finish.usage.cached_tokens,
                  finish.usage)


def solo(model: Any, jobs: Sequence[Job], **options: Any) -> dict[str, Answer]:
    """Every request on an engine of its own, its prompt in one prefill."""
    answers: dict[str, Answer] = {}
    for job in jobs:
        answers.update(run(model, [Job(job.request)], **{**options, 'max_sequences': 1,
                                                         'prefill_chunk': 2048}))
    return answers


def differences(found: dict[str, Answer], whole: dict[str, Answer], jobs: Sequence[Job],
                ) -> list[str]:
    """What is not as it has to be, one line per request."""
    lines = []
    for job in jobs:
        name = job.request.request_id
        if whole[name].reason is FinishReason.ERROR or found[name].differs(
                whole[name], job.cancel_step >= 0):
            lines.append(f'{name}: {found[name]} instead of {whole[name]}')
    return lines


def concurrent_gate(model: Any, jobs: Sequence[Job], *, reference: Any = None,
                    **options: Any) -> list[str]:
    """concurrent == solo, with joins, leaves and cancels as the jobs say."""
    fixed = {name: options[name] for name in ('page_size', 'context_length', 'stop_ids',
                                              'max_image_tokens') if name in options}
    return differences(run(model, jobs, **options), solo(reference or model, jobs, **fixed), jobs)


def chunk_gate(model: Any, jobs: Sequence[Job], *, chunks: Sequence[int] = CHUNKS,
               reference: Any = None, **options: Any) -> list[str]:
    """Chunked prefill == one prefill, for each chunk size."""
    found = {chunk: run(model, jobs, **{**options, 'prefill_chunk': chunk}) for chunk in chunks}
    whole = solo(reference or model, jobs, **options)
    return [f'chunk {chunk}: {line}' for chunk in chunks
            for line in differences(found[chunk], whole, jobs)]


def cancel_gate(model: Any, first: Request, second: Request, third: Request,
                cancel_steps: Sequence[int], *, reference: Any = None,
                **options: Any) -> list[str]:
    """A request cancelled at any step leaves those that get its pages as if they were alone.

    `second` joins right after the cancel, `third` two steps later: both in pages of `first`.
    """
    found = []
    for step in cancel_steps:
        jobs = [Job(first, 0, step), Job(second, step + 1), Job(third, step + 3)]
        answers = run(model, jobs, **options)
        whole = solo(reference or model, jobs, **options)
        found += [f'cancel at {step}: {line}' for line in differences(answers, whole, jobs)]
    return found


def stream_gate(model: Any, jobs: Sequence[Job], **options: Any) -> list[str]:
    """streamed == whole: readers that poll at every event, against a read after the end."""
    streamed = run(model, jobs, **options)
    whole: dict[str, Answer] = {}
    settings = {'page_size': 8, 'num_sliding_pages': 300, 'num_full_pages': 600,
                'max_sequences': 8, 'max_waiting': 1000, 'prefill_chunk': 64,
                'context_length': 2048, **options}
    engine = Engine(model, **settings)
    engine.start()
    outboxes = [engine.submit(job.request) for job in jobs]
    ended = [threading.Event() for _ in outboxes]
    for outbox, event in zip(outboxes, ended, strict=True):
        outbox.on_ready(partial(set_when_finished, event, outbox))
    assert all(event.wait(WAIT) for event in ended)
    for job, outbox in zip(jobs, outboxes, strict=True):
        whole[job.request.request_id] = read(outbox)
    engine.stop(WAIT)
    return differences(streamed, whole, jobs) + [
        f'{name}: {answer.num_events} events for {len(answer.token_ids)} tokens'
        for name, answer in streamed.items() if answer.num_events != len(answer.token_ids)]


def set_when_finished(event: threading.Event, outbox: Outbox) -> None:
    if outbox.finished:
        event.set()


def make_request(name: str, num_prompt: int, seed: int = 0, *, vocab_size: int = 128,
                 **sampling: Any) -> Request:
    """A request with a random prompt; `sampling` overrides a setting that shows everything."""
    rng = np.random.default_rng(zlib.crc32(name.encode()) + seed)
    prompt = tuple(int(i) for i in rng.integers(2, vocab_size, num_prompt))
    settings = SamplingParams(**{'temperature': 0.7, 'top_k': 40, 'top_p': 0.95, 'max_tokens': 24,
                                 'seed': seed, 'logprobs': 0, **sampling})
    return Request(name, prompt, settings)


def with_temperature(jobs: Sequence[Job], temperature: float) -> list[Job]:
    """The same jobs at another temperature."""
    return [replace(job, request=replace(job.request, sampling=replace(
        job.request.sampling, temperature=temperature))) for job in jobs]
