# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Token ids in, token ids out: one thread that owns the model and serves every front end.

`submit` checks a request and puts it in the inbox; the thread schedules, runs and samples step by
step and puts the tokens in the request's outbox. docs/engine.md tells the life of a request.
Knows no text, no ROS, no HTTP and no weight format.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from gemma_thor_ros.engine.admission import Limits, check_request
from gemma_thor_ros.engine.outbox import Outbox
from gemma_thor_ros.engine.page_pool import OnFreed, PageManager
from gemma_thor_ros.engine.prefix_cache import PrefixCache
from gemma_thor_ros.engine.runner import Choice, Model, Runner
from gemma_thor_ros.engine.scheduler import Plan, Scheduler
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.engine.stats import EngineStats, RateMeter
from gemma_thor_ros.models.batch import Role
from gemma_thor_ros.schema import (
    ErrorCode,
    FinishEvent,
    FinishReason,
    Request,
    RequestError,
    TokenEvent,
)

_LOG = logging.getLogger(__name__)


class Engine:
    """Runs requests on one model; every method may be called from any thread.

    page_size: positions per KV page. num_sliding_pages, num_full_pages: the memory of the two
    layer geometries (`plan_pages` computes them). max_sequences: how many run together.
    max_waiting: how many more may wait. prefill_chunk: prompt tokens per step, over all sequences.
    context_length: the most tokens, prompt and answer, of a request. stop_ids: end a request
    unless it ignores them. suppress_tokens: ids that are never chosen. max_rows: the most rows of
    a sequence that a step may roll back. max_checkpoint_pages: the most sliding pages that prefix
    checkpoints may keep; None: all that no sequence uses, 0: no prefix cache.
    checkpoint_interval: pages between the checkpoints of a long prompt. on_pages_freed(geometry,
    page ids): for tests that poison freed pages.
    """

    def __init__(self, model: Model, *, page_size: int, num_sliding_pages: int,
                 num_full_pages: int, max_sequences: int, max_waiting: int, prefill_chunk: int,
                 context_length: int, stop_ids: tuple[int, ...] = (1, 106, 50),
                 suppress_tokens: tuple[int, ...] = (), max_rows: int = 16,
                 max_checkpoint_pages: int | None = None, checkpoint_interval: int = 128,
                 on_pages_freed: OnFreed | None = None) -> None:
        for name, value in (('page_size', page_size), ('num_sliding_pages', num_sliding_pages),
                            ('num_full_pages', num_full_pages), ('max_sequences', max_sequences),
                            ('prefill_chunk', prefill_chunk), ('max_rows', max_rows),
                            ('checkpoint_interval', checkpoint_interval)):
            if value < 1:
                raise ValueError(f'{name} is {value}; it must be at least 1')
        self.max_sequences = max_sequences
        self.max_waiting = max_waiting
        self._limits = Limits(model.vocab_size, context_length, tuple(stop_ids),
                              tuple(suppress_tokens))
        self._pages = PageManager(
            page_size=page_size, num_sliding_pages=num_sliding_pages,
            num_full_pages=num_full_pages, window=model.config.sliding_window, max_rows=max_rows,
            max_chunk=prefill_chunk, on_freed=on_pages_freed)
        self.kv_cache: Any = model.new_kv_cache(num_sliding_pages, num_full_pages, page_size)
        self._runner = Runner(model, self.kv_cache, self._limits)
        self._cache = PrefixCache(
            self._pages, interval=checkpoint_interval, max_window_pages=(
                num_sliding_pages if max_checkpoint_pages is None else max_checkpoint_pages))
        self._scheduler = Scheduler(self._pages, self._cache, max_sequences=max_sequences,
                                    prefill_chunk=prefill_chunk)
        self._thread = threading.Thread(target=self._run, name='gemma_thor_engine', daemon=True)

        self._lock = threading.Condition(threading.Lock())   # guards the fields below
        self._state = 'new'
        self._inbox: list[Sequence] = []
        self._open: dict[str, Sequence] = {}                 # every request without FinishEvent
        self._cancels: set[str] = set()                      # open requests to end at this border
        self._num_submitted = 0

        now = time.monotonic()
        self._decoded = RateMeter(now)
        self._prefilled = RateMeter(now)
        self._num_steps = 0
        self._num_finished = 0
        self._num_cancelled = 0
        self._num_failed = 0
        self._last_step_ms = 0.0

    def start(self) -> None:
        """Start the engine thread; a second call raises RuntimeError."""
        with self._lock:
            if self._state != 'new':
                raise RuntimeError(f'the engine is {self._state}; it starts only once')
            self._state = 'running'
        self._thread.start()

    def submit(self, request: Request) -> Outbox:
        """Queue a request; its tokens and its FinishEvent arrive in the outbox.

        Raises RequestError: INVALID_REQUEST, CONTEXT_LENGTH or MEMORY when it can never run, BUSY
        when the queue is full, NOT_READY when the engine does not run.
        """
        check_request(request, self._limits, self._pages)
        sequence = Sequence(request, time.monotonic())
        with self._lock:
            if self._state != 'running':
                raise RequestError(ErrorCode.NOT_READY,
                                   f'The engine takes no requests: its state is {self._state!r}.')
            if request.request_id in self._open:
                raise RequestError(ErrorCode.INVALID_REQUEST,
                                   f'Request id {request.request_id!r} is in use.', 'request_id')
            if len(self._open) >= self.max_sequences + self.max_waiting:
                raise RequestError(
                    ErrorCode.BUSY,
                    f'The engine has {len(self._open)} requests; it takes {self.max_sequences} '
                    f'running and {self.max_waiting} waiting ones.')
            sequence.arrival = self._num_submitted
            self._num_submitted += 1
            self._open[request.request_id] = sequence
            self._inbox.append(sequence)
            self._lock.notify()
        return sequence.outbox

    def cancel(self, request_id: str) -> bool:
        """End a request, waiting or running, at the next step border; False when none is open.

        The tokens of a step that is under way are dropped.
        """
        with self._lock:
            if request_id not in self._open:
                return False
            self._cancels.add(request_id)
            self._lock.notify()
        return True

    def stats(self) -> EngineStats:
        """A snapshot; its numbers may be of neighbouring steps."""
        with self._lock:
            state, num_inbox = self._state, len(self._inbox)
        now, pages, cache = time.monotonic(), self._pages, self._cache
        return EngineStats(
            state=state, running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting) + num_inbox,
            sliding_pages_used=pages.sliding.num_used, sliding_pages_total=pages.sliding.num_pages,
            full_pages_used=pages.full.num_used, full_pages_total=pages.full.num_pages,
            steps=self._num_steps, decode_tokens_per_s=self._decoded.rate(now),
            prefill_tokens_per_s=self._prefilled.rate(now), decode_tokens=self._decoded.total,
            prefill_tokens=self._prefilled.total, requests_finished=self._num_finished,
            requests_cancelled=self._num_cancelled, requests_failed=self._num_failed,
            last_step_ms=self._last_step_ms, sliding_pages_cached=pages.sliding.num_kept,
            full_pages_cached=pages.full.num_kept, checkpoints=cache.num_checkpoints,
            checkpoints_evicted=cache.num_evicted, prompt_tokens=cache.tokens_looked_up,
            cached_prompt_tokens=cache.tokens_hit)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Take no more requests, answer the open ones with CANCELLED and end the thread.

        Waits for the step under way up to timeout_s; all requests are answered even when it does
        not end in time. True when the thread has ended. May be called again.
        """
        with self._lock:
            if self._state in ('new', 'running'):
                self._state = 'stopped'
            self._lock.notify()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        with self._lock:
            late = list(self._open.values())
        for sequence in late:                            # only when the step did not end in time
            self._answer(sequence, _cancelled('The engine was stopped.'))
        return not self._thread.is_alive()

    # ---- the engine thread ----

    def _run(self) -> None:
        end = _cancelled('The engine was stopped.')
        try:
            while self._next_border():
                self._step()
            for sequence in list(self._scheduler.running):
                self._scheduler.remove(sequence)
        except Exception as error:  # noqa: BLE001 - no request may be left without an answer
            # not the model's fault (that is caught in _step): the books may be wrong, so end here
            _LOG.exception('the engine thread failed')
            with self._lock:
                self._state = 'failed'
            end = (FinishReason.ERROR, ErrorCode.ENGINE, f'The engine failed: {error!r}.')
        with self._lock:
            self._inbox.clear()
            remaining = list(self._open.values())
        self._scheduler.running.clear()
        self._scheduler.waiting.clear()
        for sequence in remaining:
            self._answer(sequence, end)

    def _next_border(self) -> bool:
        """Take what came in since the last step; wait while there is nothing to run.

        False when the engine is to end.
        """
        while True:
            with self._lock:
                while not (self._inbox or self._cancels or self._scheduler.running
                           or self._scheduler.waiting or self._state != 'running'):
                    self._lock.wait()
                if self._state != 'running':
                    return False
                self._empty_inbox()
            self._end_cancelled()
            now = time.monotonic()
            self._end_late(now)
            self._scheduler.admit(now)
            if self._scheduler.running:
                return True
            assert not self._scheduler.waiting, 'nothing runs, and a request does not fit'

    def _empty_inbox(self) -> None:
        """Hand new requests to the scheduler; the caller holds the lock."""
        for sequence in self._inbox:
            self._scheduler.add(sequence)
        self._inbox.clear()

    def _step(self) -> None:
        begin = time.monotonic()
        plan = self._scheduler.plan()
        self._num_steps += 1
        try:
            choices = self._runner.run(plan)
        except Exception as error:  # noqa: BLE001 - whatever the model raises fails this step alone
            _LOG.exception('step %d failed', self._num_steps)
            message = (f'Step {self._num_steps} of the engine failed: '
                       f'{type(error).__name__}: {error}')
            for part in plan.parts:
                self._finish(part.sequence, (FinishReason.ERROR, ErrorCode.ENGINE, message))
            return
        self._end_cancelled()                            # before their tokens go out
        self._deliver(plan, choices)
        self._last_step_ms = (time.monotonic() - begin) * 1e3

    def _deliver(self, plan: Plan, choices: list[Choice | None]) -> None:
        now = time.monotonic()
        num_decoded = num_prefilled = 0
        for part, choice in zip(plan.parts, choices, strict=True):
            sequence = part.sequence
            if sequence.pages is None:                   # cancelled during the step
                continue
            self._scheduler.commit(part)
            if part.role is Role.PREFILL:
                num_prefilled += part.num_rows
            if choice is None:
                continue
            if choice.error:
                self._finish(sequence, (FinishReason.ERROR, ErrorCode.ENGINE, choice.error))
                continue
            num_decoded += 1
            sequence.append(choice.token_id, now)
            logprobs = (choice.logprob,) if choice.logprob is not None else ()
            sequence.outbox.put(TokenEvent((choice.token_id,), logprobs))
            self._end_if_done(sequence, choice.token_id)
        self._decoded.add(num_decoded, now)
        self._prefilled.add(num_prefilled, now)

    def _end_if_done(self, sequence: Sequence, token_id: int) -> None:
        sampling = sequence.request.sampling
        own_stop = token_id in self._limits.stop_ids and not sampling.ignore_eos
        if own_stop or token_id in sampling.stop_ids:
            self._finish(sequence, (FinishReason.STOP, ErrorCode.NONE, ''), stop_id=token_id)
        elif sequence.num_generated >= sampling.max_tokens:
            self._finish(sequence, (FinishReason.LENGTH, ErrorCode.NONE, ''))

    def _end_cancelled(self) -> None:
        if not self._cancels:                            # racy look: the next border sees the rest
            return
        with self._lock:
            self._empty_inbox()                          # one of them may be there still
            sequences = [self._open[request_id] for request_id in self._cancels]
            self._cancels.clear()
        for sequence in sequences:
            self._finish(sequence, _cancelled('The request was cancelled.'))

    def _end_late(self, now: float) -> None:
        late = [sequence for sequence in (*self._scheduler.running, *self._scheduler.waiting)
                if now >= sequence.deadline]
        for sequence in late:
            message = (f'The deadline of {sequence.request.deadline_s:g} s passed after '
                       f'{sequence.num_generated} of at most '
                       f'{sequence.request.sampling.max_tokens} tokens.')
            self._finish(sequence, (FinishReason.ERROR, ErrorCode.DEADLINE, message))

    def _finish(self, sequence: Sequence, end: tuple[FinishReason, ErrorCode, str],
                stop_id: int = -1) -> None:
        """Take a sequence out, free its pages, answer its reader."""
        self._scheduler.remove(sequence)
        self._answer(sequence, end, stop_id)

    def _answer(self, sequence: Sequence, end: tuple[FinishReason, ErrorCode, str],
                stop_id: int = -1) -> None:
        reason, code, message = end
        with self._lock:
            if self._open.pop(sequence.request.request_id, None) is None:
                return
            self._cancels.discard(sequence.request.request_id)
            self._num_finished += 1
            self._num_cancelled += reason is FinishReason.CANCELLED
            self._num_failed += reason is FinishReason.ERROR
        sequence.outbox.put(FinishEvent(
            reason, sequence.usage(), sequence.timings(time.monotonic()), stop_id, code, message))


def _cancelled(message: str) -> tuple[FinishReason, ErrorCode, str]:
    return FinishReason.CANCELLED, ErrorCode.CANCELLED, message
