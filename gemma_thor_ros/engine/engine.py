# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Token ids in, token ids out: one thread that owns the model and serves every front end.

`submit` checks a request and enters it among the open ones; the engine thread schedules, runs and
samples step by step (step_loop) and puts the tokens in the request's outbox. docs/engine.md tells
the life of a request. Knows no text, no ROS, no HTTP and no weight format.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from typing import Any

from gemma_thor_ros.engine import saved_prefix
from gemma_thor_ros.engine.admission import Limits, check_request
from gemma_thor_ros.engine.calibrate import measure
from gemma_thor_ros.engine.device_runner import make_runner
from gemma_thor_ros.engine.draft_length import DraftLength
from gemma_thor_ros.engine.forecast import Forecast
from gemma_thor_ros.engine.open_requests import OpenRequests, cancelled, failed
from gemma_thor_ros.engine.outbox import Outbox
from gemma_thor_ros.engine.page_pool import OnFreed, PageManager
from gemma_thor_ros.engine.prefix_cache import PrefixCache
from gemma_thor_ros.engine.runner import Model
from gemma_thor_ros.engine.saved_prefix import SavedPrefix
from gemma_thor_ros.engine.scheduler import Scheduler
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.engine.speculation import Speculation
from gemma_thor_ros.engine.stats import EngineStats
from gemma_thor_ros.engine.step_costs import StepCosts
from gemma_thor_ros.engine.step_loop import StepLoop
from gemma_thor_ros.models.batch import Int32
from gemma_thor_ros.models.drafter import Drafter
from gemma_thor_ros.models.page_planes import Paged, Planes
from gemma_thor_ros.schema import (
    DeviceError,
    ErrorCode,
    PromptImage,
    QueuePosition,
    Request,
    RequestError,
)

_LOG = logging.getLogger(__name__)
_SWITCH_S = 0.0005                       # the longest that a thread keeps the interpreter


class Engine:
    """Runs requests on one model; every method may be called from any thread.

    page_size: positions per KV page. num_sliding_pages, num_full_pages: the memory of the two
    layer geometries (`plan_pages` computes them). max_sequences: how many run together.
    max_waiting: how many more may wait. prefill_chunk: prompt tokens per step, over all sequences.
    context_length: the most tokens, prompt and answer, of a request. stop_ids: end a request
    unless it ignores them. suppress_tokens: ids that are never chosen. max_rows: the most
    generated rows of a sequence in a step, and the most that a later step may roll back.
    max_checkpoint_pages: the most sliding pages that prefix checkpoints may keep; None: all that
    no sequence uses, 0: no prefix cache. checkpoint_interval: pages between the checkpoints of a
    long prompt. step_timeout_s: a step that takes longer fails its requests; 0: no limit.
    max_image_tokens: soft tokens of an image at most, where the model sees; 0: it sees none.
    drafter: guesses tokens that the model then verifies; None: one token a step. num_drafts: so
    many drafts a round; None: as many as pay (draft_length).
    on_pages_freed(geometry, page ids): for tests that poison freed pages.
    """

    def __init__(self, model: Model, *, page_size: int, num_sliding_pages: int,
                 num_full_pages: int, max_sequences: int, max_waiting: int, prefill_chunk: int,
                 context_length: int, stop_ids: tuple[int, ...] = (1, 106, 50),
                 suppress_tokens: tuple[int, ...] = (), max_rows: int = 16,
                 max_checkpoint_pages: int | None = None, checkpoint_interval: int = 128,
                 step_timeout_s: float = 0.0, max_image_tokens: int = 0,
                 drafter: Drafter | None = None,
                 num_drafts: int | None = None,
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
                              tuple(suppress_tokens),
                              max_image_tokens if getattr(model, 'vision', None) else 0)
        self._pages = PageManager(
            page_size=page_size, num_sliding_pages=num_sliding_pages,
            num_full_pages=num_full_pages, window=max(
                model.config.sliding_window, 0 if drafter is None else drafter.config.window),
            max_rows=max_rows, max_chunk=max(prefill_chunk, max_image_tokens),
            on_freed=on_pages_freed)
        self._cache = PrefixCache(
            self._pages, interval=checkpoint_interval, max_window_pages=(
                num_sliding_pages if max_checkpoint_pages is None else max_checkpoint_pages))
        self._scheduler = Scheduler(self._pages, self._cache, max_sequences=max_sequences,
                                    prefill_chunk=prefill_chunk)
        self.kv_cache: Any = model.new_kv_cache(num_sliding_pages, num_full_pages, page_size)
        self._planes = self.kv_cache.planes() if isinstance(self.kv_cache, Paged) else None
        self._forecast = Forecast(prefill_chunk)
        self._requests = OpenRequests(max_sequences, max_waiting)
        self._model = model
        self._drafter = drafter
        self._speculation: Speculation | None = None
        if drafter is not None and num_drafts != 0:
            self.draft_cache: Any = drafter.new_cache(num_sliding_pages, num_full_pages, page_size)
            kept = next((each for each in (self.draft_cache, drafter) if isinstance(each, Paged)),
                        None)
            if self._planes is not None and kept is not None:
                self._planes = self._planes.joined(kept.planes())
            costs = StepCosts(getattr(model.config, 'num_experts', 0),
                              getattr(model.config, 'top_k_experts', 0))
            self._speculation = Speculation(
                drafter, self.draft_cache, self.kv_cache, DraftLength(costs, num_drafts),
                self._limits, self._forecast, max_rows)
        self._loop = StepLoop(
            self._requests, self._scheduler,
            make_runner(model, self.kv_cache, self._limits, self._speculation), self._forecast,
            step_timeout_s, None if self._speculation is None else self._speculation.propose)
        self._thread = threading.Thread(target=self._run, name='gemma_thor_engine', daemon=True)

    def calibrate(self) -> None:
        """Measure what steps and drafts cost; before `start` alone, since it writes to pages."""
        speculation, drafter = self._speculation, self._drafter
        if speculation is None or drafter is None:
            return
        pages = self._pages
        speculation.rule.costs.set(*measure(
            self._model, self.kv_cache, drafter, self.draft_cache, page_size=pages.page_size,
            num_pages=min(pages.sliding.num_pages, pages.full.num_pages)))

    def start(self, *, threaded: bool = True) -> None:
        """Start the engine thread; a second call raises RuntimeError.

        With `threaded` False the caller runs the steps itself, by `step`. Threads of the process
        hand the interpreter over within 0.5 ms from then on: behind each wait for a device the
        engine needs it, and a front end that renders a long prompt would keep it for 5.
        """
        self._requests.begin()
        self._loop.watchdog.start()
        if threaded:
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
            self._thread.start()

    def submit(self, request: Request) -> Outbox:
        """Queue a request; its tokens and its FinishEvent arrive in the outbox.

        Raises RequestError: INVALID_REQUEST, CONTEXT_LENGTH or MEMORY when it can never run,
        DEADLINE when it can't end in time, BUSY when the queue is full, NOT_READY when the engine
        does not run or hangs in a step.
        """
        check_request(request, self._limits, self._pages)
        sequence = Sequence(request, time.monotonic())
        overdue_s = self._loop.watchdog.overdue_s
        if overdue_s > 0.0:
            raise RequestError(
                ErrorCode.NOT_READY, f'The engine takes no requests: step {self._loop.num_steps} '
                                     f'has not ended after {overdue_s:.3g} s.')
        if request.deadline_s > 0.0:
            num_cached = self._cache.num_cached(self._scheduler.trail(sequence))
            self._forecast.check_deadline(sequence, num_cached, self._wait_s(sequence))
        self._requests.open(sequence)
        return sequence.outbox

    def cancel(self, request_id: str) -> bool:
        """End a request, waiting or running, at the next step border; False when none is open.

        The tokens of a step that is under way are dropped.
        """
        return self._requests.cancel(request_id)

    def queue_position(self, request_id: str) -> QueuePosition | None:
        """Where a waiting or preempted request stands; None when it runs or is not open."""
        sequence = self._requests.get(request_id)
        if sequence is None or sequence in self._scheduler.running:
            return None
        running = set(map(id, self._scheduler.running))
        before = sum(other.order < sequence.order and id(other) not in running
                     for other in self._requests.all())
        return QueuePosition(before + 1, self._wait_s(sequence))

    @property
    def page_layout(self) -> tuple[str, ...]:
        """What a page holds, drafter's part included; () when it can't be saved."""
        return () if self._planes is None else self._planes.layout

    def save_prefix(self, prompt_ids: Int32, images: Seq[PromptImage], max_bytes: int,
                    identity: str = '') -> Future[SavedPrefix | None]:
        """Copy what is cached of a prompt, beside the steps; None when that is nothing.

        The future may raise RequestError: as saved_prefix.save, CANCELLED when the engine ends.
        Raises RequestError: NOT_READY, and UNSUPPORTED for a model whose pages can't be read.
        """
        return self._requests.post(saved_prefix.save(
            self._pages, self._cache, self._readable_planes(), prompt_ids, identity, images,
            max_bytes))

    def restore_prefix(self, saved: SavedPrefix) -> Future[int]:
        """Put a saved prefix back, beside the steps; gives how many of its tokens are cached now.

        Errors as save_prefix and saved_prefix.restore.
        """
        return self._requests.post(saved_prefix.restore(
            self._pages, self._cache, self._readable_planes(), saved))

    def stats(self) -> EngineStats:
        """A snapshot; its numbers may be of neighbouring steps."""
        now, requests, loop = time.monotonic(), self._requests, self._loop
        pages, cache, scheduler = self._pages, self._cache, self._scheduler
        return EngineStats(
            state=requests.state, running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(scheduler.paused) + requests.num_new(),
            sliding_pages_used=pages.sliding.num_used, sliding_pages_total=pages.sliding.num_pages,
            full_pages_used=pages.full.num_used, full_pages_total=pages.full.num_pages,
            steps=loop.num_steps, decode_tokens_per_s=loop.decoded.rate(now),
            prefill_tokens_per_s=loop.prefilled.rate(now), decode_tokens=loop.decoded.total,
            prefill_tokens=loop.prefilled.total, requests_finished=requests.num_finished,
            requests_cancelled=requests.num_cancelled, requests_failed=requests.num_failed,
            last_step_ms=loop.last_step_ms, sliding_pages_cached=pages.sliding.num_kept,
            full_pages_cached=pages.full.num_kept, checkpoints=cache.num_checkpoints,
            checkpoints_evicted=cache.num_evicted, prompt_tokens=cache.tokens_looked_up,
            cached_prompt_tokens=cache.tokens_hit, paused=len(scheduler.paused),
            preemptions=scheduler.num_preempted, drops=scheduler.num_dropped,
            step_overdue_s=loop.watchdog.overdue_s,
            **({} if self._speculation is None else self._speculation.figures()))

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Take no more requests, answer the open ones with CANCELLED and end the thread.

        Waits for the step under way up to timeout_s; all requests are answered even when it does
        not end in time. True when the thread has ended. May be called again.
        """
        self._requests.end('stopped')
        if self._thread.ident is None:
            self._close('The engine was stopped.')
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        for sequence in self._requests.all():            # only when the step did not end in time
            self._requests.answer(sequence, cancelled('The engine was stopped.'), by_engine=False)
        return not self._thread.is_alive()

    def _readable_planes(self) -> Planes:
        if self._planes is None:
            raise RequestError(ErrorCode.UNSUPPORTED, 'The pages of this model can not be copied.')
        return self._planes

    def step(self) -> bool:
        """Run one border and one step in the caller's thread; False when there was nothing to run.

        Only after `start(threaded=False)`, by one thread at a time.
        """
        worked = self._requests.run_errand()
        if not self._loop.border():
            return worked
        self._loop.step()
        return True

    def _run(self) -> None:
        try:
            while self._requests.wait(busy=self._scheduler.busy):
                self.step()
        except DeviceError as error:
            _LOG.exception('the device is lost')
            self._close(f'The device is lost: {error}', ErrorCode.DEVICE)
        except Exception as error:  # noqa: BLE001 - no request may be left without an answer
            # not the model's fault (that is caught in step): the books may be wrong, so end here
            _LOG.exception('the engine thread failed')
            self._close(f'The engine failed: {error!r}.', ErrorCode.ENGINE)
        else:
            self._close('The engine was stopped.')

    def _close(self, message: str, code: ErrorCode = ErrorCode.CANCELLED) -> None:
        """Answer everybody and take nobody any more; pages are given back unless we failed."""
        stopped = code is ErrorCode.CANCELLED
        self._loop.watchdog.stop()
        for sequence in self._requests.end('stopped' if stopped else 'failed'):
            self._requests.answer(sequence, cancelled(message) if stopped
                                  else failed(code, message))
        self._requests.drop_errands(message)
        if stopped:
            self._loop.clear()

    def _wait_s(self, sequence: Sequence) -> float:
        """About how many seconds a sequence that does not run has to wait for its turn.

        Ahead of it are those that come first in order, and those of its own class that run.
        """
        running = set(map(id, self._scheduler.running))
        priority = sequence.request.priority
        ahead = [other for other in self._requests.all() if other.order < sequence.order
                 or (id(other) in running and other.request.priority == priority)]
        ahead.sort(key=lambda other: (id(other) not in running, other.order))
        return self._forecast.wait_s(map(self._forecast.work, ahead), self.max_sequences)
