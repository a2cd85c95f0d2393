# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the engine thread does: border, plan, forward, choose, deliver, step after step.

One thread at a time may call it, except `hung`, which is the watchdog's. Knows no lock: what other
threads share lies in open_requests and in the outboxes.
"""

from __future__ import annotations

import logging
import time

from gemma_thor_ros.engine.forecast import Forecast
from gemma_thor_ros.engine.open_requests import End, OpenRequests, cancelled, failed
from gemma_thor_ros.engine.plan import Plan
from gemma_thor_ros.engine.runner import Choice, Runner
from gemma_thor_ros.engine.scheduler import Propose, Scheduler
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.engine.stats import RateMeter
from gemma_thor_ros.engine.watchdog import Watchdog
from gemma_thor_ros.models.batch import Role
from gemma_thor_ros.schema import DeviceError, ErrorCode, FinishReason, TokenEvent

_LOG = logging.getLogger(__name__)


class StepLoop:
    """Steps one engine. A border and a step make a round: `border()`, then `step()` if True."""

    def __init__(self, requests: OpenRequests, scheduler: Scheduler, runner: Runner,
                 forecast: Forecast, step_timeout_s: float,
                 propose: Propose | None = None) -> None:
        now = time.monotonic()
        self.scheduler = scheduler
        self.forecast = forecast
        self.watchdog = Watchdog(step_timeout_s, self.hung)
        self.decoded = RateMeter(now)
        self.prefilled = RateMeter(now)
        self.num_steps = 0
        self.last_step_ms = 0.0
        self._requests = requests
        self._runner = runner
        self._propose = propose
        self._plan: Plan | None = None                   # of the step under way

    def border(self) -> bool:
        """Take the news and decide who runs; True when there is a step to run."""
        self._take_news()
        now = time.monotonic()
        self._end_overdue(now)
        self.scheduler.admit(now)
        assert (self.scheduler.running or not self.scheduler.busy
                or self.scheduler.pages.num_errands), \
            f'nothing runs, but {len(self.scheduler.waiting)} sequences wait'
        return bool(self.scheduler.running)

    def step(self) -> None:
        """Run one step for the running sequences and deliver its tokens.

        What the model raises fails the sequences of this step alone, but a DeviceError is raised.
        """
        begin = time.monotonic()
        self.num_steps += 1
        self.watchdog.begin(self.num_steps, begin)
        try:
            self._plan = plan = self.scheduler.plan(self._propose)
            choices = self._run(plan)
        finally:
            self.watchdog.end()
            self._plan = None
        if choices is None:
            return
        if self._requests.has_news:                      # cancels come before their tokens go out
            self._take_news()
        self._deliver(plan, choices, begin)

    def hung(self, step: int, seconds: float) -> None:
        """Answer whom a hanging step keeps waiting: its own requests, and others past a limit.

        Called by the watchdog. The sequences keep their pages, which the step may still write to,
        until the engine thread is back and lets them go.
        """
        plan = self._plan
        # without a plan it is the drafter that hangs
        sequences = ([part.sequence for part in plan.parts] if plan is not None
                     else list(self.scheduler.running))
        message = (f'Step {step} of the engine has not ended after {seconds:.3g} s; '
                   f'{self.watchdog.timeout_s:g} s are allowed.')
        for sequence in sequences:
            if self._requests.answer(sequence, failed(ErrorCode.ENGINE, message), by_engine=False):
                _LOG.error('request %r: %s', sequence.request.request_id, message)
        now = time.monotonic()
        for sequence in self._requests.all():
            if now >= sequence.limit:
                self._requests.answer(sequence, failed(*sequence.overdue(now)), by_engine=False)

    def clear(self) -> None:
        """Let all sequences go, and their pages."""
        for queue in (self.scheduler.running, self.scheduler.paused, self.scheduler.waiting):
            for sequence in list(queue):
                self.scheduler.remove(sequence)

    def _run(self, plan: Plan) -> list[Choice | None] | None:
        """What the runner gives; None when it failed, with the sequences of the plan."""
        try:
            # a step that starts early would keep a new request waiting
            quiet = not (self._requests.has_news or self.scheduler.waiting
                         or self.scheduler.paused)
            return self._runner.run(plan, quiet)
        except DeviceError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the model raises fails this step alone
            _LOG.exception('step %d failed', self.num_steps)
            message = (f'Step {self.num_steps} of the engine failed: '
                       f'{type(error).__name__}: {error}')
            for part in plan.parts:
                self._finish(part.sequence, failed(ErrorCode.ENGINE, message))
        return None

    def _take_news(self) -> None:
        news = self._requests.take()
        for sequence in news.new:
            self.scheduler.add(sequence)
        for sequence in news.answered:
            if sequence.scheduled:                       # else it has also ended here meanwhile
                self.scheduler.remove(sequence)
        for sequence in news.cancelled:
            self._finish(sequence, cancelled('The request was cancelled.'))

    def _end_overdue(self, now: float) -> None:
        scheduler = self.scheduler
        for queue in (scheduler.running, scheduler.paused, scheduler.waiting):
            for sequence in [each for each in queue if now >= each.limit]:
                self._finish(sequence, failed(*sequence.overdue(now)))

    def _deliver(self, plan: Plan, choices: list[Choice | None], begin: float) -> None:
        now = time.monotonic()
        num_decoded = num_prompt_rows = num_decode_rows = 0
        for part, choice in zip(plan.parts, choices, strict=True):
            sequence = part.sequence
            if part.role is Role.PREFILL:
                num_prompt_rows += part.num_rows
            else:
                num_decode_rows += part.num_rows
            if sequence.pages is None:                   # ended during the step
                continue
            if choice is None:
                self.scheduler.commit(part, part.num_rows)
                continue
            token_ids = choice.token_ids
            # what was drawn, all but the last, are drafts that were kept
            refused = len(part.drafts) - max(0, len(token_ids) - 1)
            self.scheduler.commit(part, part.num_rows - refused)
            for token_id in token_ids:
                sequence.append(token_id, now)
            if token_ids:
                num_decoded += len(token_ids)
                sequence.outbox.put(TokenEvent(token_ids, choice.logprobs))
            if choice.error:
                self._finish(sequence, failed(ErrorCode.ENGINE, choice.error))
            elif choice.end is not None:
                self.forecast.answer_done(sequence.num_generated)
                self._finish(sequence, End(choice.end, stop_id=(
                    token_ids[-1] if choice.end is FinishReason.STOP else -1)))
        self.decoded.add(num_decoded, now)
        self.prefilled.add(num_prompt_rows, now)
        num_image_rows = sum(stop - start for span in plan.batch.spans
                             for start, stop in span.blocks)
        self.forecast.step_done(num_prompt_rows, num_decode_rows, now - begin, num_image_rows)
        self.last_step_ms = (time.monotonic() - begin) * 1e3

    def _finish(self, sequence: Sequence, end: End) -> None:
        """Take a sequence out, free its pages, answer its reader."""
        self.scheduler.remove(sequence)
        self._requests.answer(sequence, end)
