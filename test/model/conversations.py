# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Conversations on an engine that is stepped by hand, with a model of what its scheduler must do.

After every border the queues must be what the model says, after every step the books must add up,
and every answer must be the undisturbed one, token for token and bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
from engine_books import check_books
from engine_gates import Answer, HashModel, poison_all, read

from gemma_thor_ros.engine import Engine, Outbox
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.ops.sample import SampleRow, logprobs_ref, sample_row
from gemma_thor_ros.schema import FinishReason, Priority, Request, SamplingParams

CONVERSATIONS = 8
STOP_ID = 7
WINDOW = 11                              # of the models; short, so that it always slides


@dataclass
class Talk:
    """One conversation: what was said, and the request under way."""

    history: tuple[int, ...] = ()
    request: Request | None = None
    outbox: Outbox | None = None
    disturbed: bool = False              # cancelled, or in a step that failed


class Conversations:
    """What may happen to 8 conversations; `reference` gives a request's undisturbed answer."""

    longest = 60                         # tokens of a prompt after which a talk begins anew

    def __init__(self, model: Any, reference: Callable[[Request], Answer], *, max_sequences: int,
                 chunk: int, page_size: int, spare: int, windows: int, interval: int,
                 max_rows: int, drafter: Any = None, num_drafts: int | None = None) -> None:
        self.reference = reference
        self.vocab_size = model.vocab_size
        self.fault = False
        num_pages = -(-(self.longest + 12 + 24) // page_size) + spare
        self.engine = Engine(
            Faulty(model, self), page_size=page_size, num_sliding_pages=num_pages,
            num_full_pages=num_pages, max_sequences=max_sequences, max_waiting=100,
            prefill_chunk=chunk, context_length=4096, stop_ids=(STOP_ID,), max_rows=max_rows,
            max_checkpoint_pages=windows, checkpoint_interval=interval, drafter=drafter,
            num_drafts=num_drafts,
            on_pages_freed=lambda kind, pages: poison_all(self.engine, kind, pages))
        self.engine.start(threaded=False)
        self.talks = [Talk() for _ in range(CONVERSATIONS)]
        self.count = 0

    def say(self, who: int, words: int, priority: Priority, max_tokens: int, temperature: float,
            system: int, penalty: float) -> None:
        """The next turn of a conversation; a new one begins with one of two system prompts."""
        talk = self.talks[who]
        if talk.request is not None:
            return
        if not talk.history or len(talk.history) > self.longest - words:
            talk.history = tuple(self.tokens(1000 + system, 19))
        self.count += 1
        prompt = (*talk.history, *self.tokens(who, words))
        sampling = SamplingParams(
            temperature=temperature, top_k=0, top_p=0.95, max_tokens=max_tokens, seed=who,
            logprobs=0, repetition_penalty=penalty)
        talk.request = Request(f'r{self.count}', prompt, sampling, priority, checkpoints=(19,))
        self.reference(talk.request)                     # known from now on, to a drafter too
        talk.outbox = self.engine.submit(talk.request)
        talk.disturbed = False

    def cancel(self, who: int) -> None:
        talk = self.talks[who]
        if talk.request is not None:
            talk.disturbed = True
            self.engine.cancel(talk.request.request_id)

    def step(self, count: int, fault: bool = False) -> None:
        """Some steps; with a fault the first of them raises after it has written its rows."""
        self.fault = fault
        for _ in range(count):
            self.one_step()

    def one_step(self) -> bool:
        loop = self.engine._loop
        runs = loop.border()
        self.check_queues()
        if runs:
            if self.fault:
                for sequence in loop.scheduler.running:
                    self.disturb(sequence)
            loop.step()
        held = [*loop.scheduler.running, *loop.scheduler.paused]
        check_books(self.engine._pages, self.engine._cache, [s.pages for s in held])
        self.read_answers()
        return runs

    def disturb(self, sequence: Sequence) -> None:
        for talk in self.talks:
            if talk.request is sequence.request:
                talk.disturbed = True

    def check_queues(self) -> None:
        """What a border has to bring about, whatever was there before it."""
        scheduler, pages = self.engine._scheduler, self.engine._pages
        running, paused, waiting = scheduler.running, scheduler.paused, scheduler.waiting
        assert len(running) <= scheduler.max_sequences
        for queue in (running, paused, waiting):
            assert [s.order for s in queue] == sorted(s.order for s in queue)
        classes = [int(s.request.priority) for s in running]
        full = len(running) == scheduler.max_sequences
        for sequence in paused:
            assert full, f'{sequence.request} is paused beside a free slot'
            assert min(classes) >= sequence.request.priority, 'a lower class has its slot'
        for sequence in waiting:
            assert sequence.pages is None
            same = [s for s in (*running, *paused)
                    if s.request.priority == sequence.request.priority]
            assert all(s.arrival < sequence.arrival for s in same), 'overtaken in its class'
        if waiting:
            head = waiting[0]
            lower = [s for s in (*running, *paused) if s.request.priority < head.request.priority]
            slot = not full or min(classes) < head.request.priority
            prefix = self.engine._cache.match(scheduler.trail(head))
            room = pages.fits(pages.need(head.max_positions), prefix, [s.pages for s in lower])
            assert not (slot and room), 'it could run, but waits'
        assert running or not (paused or waiting)

    def read_answers(self) -> None:
        for talk in self.talks:
            if talk.request is None or talk.outbox is None or not talk.outbox.finished:
                continue
            found, whole = read(talk.outbox), self.reference(talk.request)
            if talk.disturbed and found.reason not in (FinishReason.STOP, FinishReason.LENGTH):
                count = len(found.token_ids)
                assert found.token_ids == whole.token_ids[:count]
                assert found.logprobs == whole.logprobs[:count]
            else:
                assert (found.token_ids, found.logprobs, found.reason) == (
                    whole.token_ids, whole.logprobs, whole.reason), talk.request
                talk.history = (*talk.request.prompt_ids, *found.token_ids)
            talk.request = talk.outbox = None

    def finish(self) -> None:
        """Let all requests end; nothing may be left behind."""
        self.fault = False
        for _ in range(3000):
            if not self.one_step():
                break
        assert all(talk.request is None for talk in self.talks), 'requests without an end'
        failure = self.engine.stats().draft_failure
        assert failure == '', failure
        self.engine.stop()
        self.engine._cache.clear()
        check_books(self.engine._pages, self.engine._cache, [])
        assert self.engine._pages.full.num_available == self.engine._pages.full.num_pages

    def tokens(self, seed: int, count: int) -> Seq[int]:
        rng = np.random.default_rng([seed, count])
        return [int(i) for i in rng.integers(8, self.vocab_size, count)]


class Faulty:
    """A model whose step fails, after it has written its rows, when the machine says so."""

    def __init__(self, model: Any, machine: Conversations) -> None:
        self.model = model
        self.machine = machine
        self.config = model.config
        self.vocab_size = model.vocab_size
        self.new_kv_cache = model.new_kv_cache

    def forward(self, batch: Any, kv_cache: Any, *tap: Any) -> Any:
        logits = self.model.forward(batch, kv_cache, *tap)
        if self.machine.fault:
            self.machine.fault = False
            raise OSError('planted fault')
        return logits


def plain_loop(request: Request) -> Answer:
    """The answer without engine, pages and batches."""
    model = HashModel(sliding_window=WINDOW)
    sequence = Sequence(request, 0.0)
    history, generated = list(request.prompt_ids), [False] * len(request.prompt_ids)
    tokens: list[int] = []
    logprobs: list[float] = []
    while True:
        logits = np.zeros(model.vocab_size, np.float32)
        model.fill_logits(logits, np.array(history, np.int32), np.array(generated))
        row: SampleRow = sequence.history.sample_row(len(history), np.array([], np.int64))
        tokens.append(sample_row(logits, row))
        logprobs.append(logprobs_ref(logits, tokens[-1], 0)[0])
        sequence.history.append(tokens[-1])
        history.append(tokens[-1])
        generated.append(True)
        if tokens[-1] == STOP_ID or len(tokens) == request.sampling.max_tokens:
            reason = FinishReason.STOP if tokens[-1] == STOP_ID else FinishReason.LENGTH
            return Answer(tuple(tokens), tuple(logprobs), reason, '', len(tokens))
