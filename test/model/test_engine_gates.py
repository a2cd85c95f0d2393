# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The exactness gates on a model of random logits whose pages know whose they are.

Each gate is followed by the errors that it must catch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_gates import (
    CHUNKS,
    TEMPERATURES,
    HashModel,
    Job,
    cancel_gate,
    chunk_gate,
    concurrent_gate,
    make_request,
    run,
    solo,
    stream_gate,
    with_temperature,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.engine import outbox, page_pool, runner, scheduler
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.models.batch import Batch, Role
from gemma_thor_ros.ops.sample import SampleRow, sample_row
from gemma_thor_ros.schema import Priority

JOBS = [Job(make_request('long', 70, 1, max_tokens=40)), Job(make_request('short', 3, 2)),
        Job(make_request('late', 33, 3, repetition_penalty=1.2), 4),
        Job(make_request('gone', 40, 4), 2, 9), Job(make_request('later', 1, 5), 11),
        Job(make_request('hot', 20, 6, temperature=1.5, top_k=0), 6)]
NO_STOP = {'stop_ids': ()}               # long answers: the planted errors must have time to show
PROMPTS = [Job(make_request(f'p{n}', n, n, max_tokens=6)) for n in (1, 16, 17, 31, 256, 300)]
THREE = (make_request('a', 60, 1), make_request('b', 50, 2), make_request('c', 30, 3))
SCARCE = {'num_full_pages': 18, 'num_sliding_pages': 18, 'prefill_chunk': 16, **NO_STOP}

sampling = st.fixed_dictionaries({
    'temperature': st.sampled_from(TEMPERATURES), 'top_k': st.sampled_from([0, 1, 20, 1000]),
    'top_p': st.sampled_from([1.0, 0.9, 0.0]), 'min_p': st.sampled_from([0.0, 0.1]),
    'presence_penalty': st.sampled_from([0.0, 0.5]), 'max_tokens': st.integers(1, 24),
    'repetition_penalty': st.sampled_from([1.0, 1.3]), 'min_tokens': st.just(0)})


@st.composite
def job_lists(draw: st.DrawFn) -> list[Job]:
    jobs = []
    for i in range(draw(st.integers(2, 7))):
        request = make_request(f'r{i}', draw(st.integers(1, 60)), draw(st.integers(0, 99)),
                               **draw(sampling))
        request = replace(request, choice=draw(st.integers(0, 2)),
                          priority=Priority(draw(st.integers(0, 3))))
        join = draw(st.integers(0, 20))
        cancel = draw(st.sampled_from([-1, -1, -1, join, join + 1, join + 5, join + 12]))
        jobs.append(Job(request, join, cancel))
    return jobs


class TestConcurrentEqualsSolo:

    @given(jobs=job_lists(), max_sequences=st.integers(1, 5), chunk=st.integers(1, 40),
           page_size=st.sampled_from([1, 4, 16]), spare=st.integers(0, 30))
    @settings(max_examples=40, deadline=None)
    def test_random_joins_leaves_and_cancels(self, jobs: list[Job], max_sequences: int, chunk: int,
                                             page_size: int, spare: int) -> None:
        """From memory for one sequence to memory for all, with pages reused at once."""
        num_pages = -(-84 // page_size) + spare
        assert concurrent_gate(
            HashModel(), jobs, max_sequences=max_sequences, prefill_chunk=chunk,
            page_size=page_size, num_full_pages=num_pages, num_sliding_pages=num_pages) == []

    @pytest.mark.parametrize('temperature', TEMPERATURES)
    def test_at_each_temperature(self, temperature: float) -> None:
        jobs = with_temperature(JOBS, temperature)
        assert concurrent_gate(HashModel(), jobs, prefill_chunk=16, **NO_STOP) == []

    def test_the_answers_are_not_trivial(self) -> None:
        """The gates would pass an engine that answers nothing."""
        answers = run(HashModel(), JOBS, prefill_chunk=16, **NO_STOP)
        lengths = {name: len(answer.token_ids) for name, answer in answers.items()}
        assert lengths == {**lengths, 'long': 40, 'short': 24, 'late': 24, 'later': 24, 'hot': 24}
        assert 0 < lengths['gone'] < 24
        assert all(len(set(answer.token_ids)) > 1 for answer in answers.values())

    def test_planted_noise_key_of_the_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sampler's noise is keyed by the row of the step instead of the position."""
        right = runner.sample_row

        def wrong(logits: Any, row: Any) -> int:
            offset = logits.ctypes.data - logits.base.ctypes.data
            return right(logits, replace(row, position=offset // logits.nbytes))
        monkeypatch.setattr(runner, 'sample_row', wrong)
        assert concurrent_gate(HashModel(), JOBS, prefill_chunk=16, **NO_STOP) != []
        greedy = with_temperature(JOBS, 0.0)
        assert concurrent_gate(HashModel(), greedy, prefill_chunk=16, **NO_STOP) == []

    def test_planted_running_noise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One random stream for all, as a library's generator gives it."""
        right, rng = runner.sample_row, np.random.default_rng(0)
        monkeypatch.setattr(runner, 'sample_row', lambda logits, row: right(
            logits, replace(row, position=int(rng.integers(1 << 30)))))
        assert concurrent_gate(HashModel(), JOBS, prefill_chunk=16, **NO_STOP) != []

    def test_planted_page_freed_one_page_early(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = page_pool.PageManager.num_dead
        monkeypatch.setattr(page_pool.PageManager, 'num_dead', lambda self, committed: (
            right(self, committed + self.page_size)))
        found = concurrent_gate(HashModel(), JOBS, prefill_chunk=16, **NO_STOP,
                                reference=HashModel(sliding_window=10 ** 6))  # frees no page
        assert any('sliding pages' in line for line in found), found

    def test_planted_page_given_to_two(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A freed page is on the free list twice, for another one; and nobody counts."""
        def wrong(self: page_pool.PagePool, pages: Any) -> None:
            self._free.extend(pages)
            if self.geometry == 'full':
                self._free[-2] = self._free[-1]
        monkeypatch.setattr(page_pool.PagePool, 'give_back', wrong)
        jobs = [Job(make_request('a', 9)), *(Job(make_request(f'b{i}', 40, i), 30)
                                             for i in range(3))]
        found = concurrent_gate(HashModel(), jobs, **NO_STOP)
        assert any('are not of this sequence' in line for line in found), found

    def test_planted_rows_mixed_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The logits of the last sequence go to the first and so on."""
        right = scheduler.build_plan

        def wrong(*args: Any) -> Any:
            plan = right(*args)
            last = plan.batch.logit_rows.size - 1
            return replace(plan, parts=tuple(
                replace(part, logit_row=last - part.logit_row if part.logit_row >= 0 else -1)
                for part in plan.parts))
        monkeypatch.setattr(scheduler, 'build_plan', wrong)
        assert concurrent_gate(HashModel(), JOBS, prefill_chunk=16, **NO_STOP) != []

    def test_planted_row_variant_model(self) -> None:
        """One unit in the last place of the logits depends on the number of rows."""
        class RowVariant(HashModel):
            def forward(self, batch: Batch, kv_cache: Any) -> Any:
                logits = super().forward(batch, kv_cache)
                many = batch.token_ids.size % 2 == 0
                return np.nextafter(logits, np.float32(np.inf)) if many else logits
        assert concurrent_gate(RowVariant(), JOBS, prefill_chunk=16, **NO_STOP) != []


class TestChunkedEqualsOnePrefill:

    @pytest.mark.parametrize('temperature', TEMPERATURES)
    def test_each_chunk(self, temperature: float) -> None:
        jobs = with_temperature(PROMPTS, temperature)
        assert chunk_gate(HashModel(), jobs) == []

    def test_planted_role_by_row_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A last chunk of one prompt row runs as if it were a generated token."""
        def role(self: Sequence) -> Role:
            left = self.num_prompt - self.num_committed
            return Role.DECODE if left <= 1 and self.num_committed else Role.PREFILL
        monkeypatch.setattr(Sequence, 'role', property(role))
        found = chunk_gate(HashModel(), [PROMPTS[4]])  # 256 is 1 more than 15 * 17 and 255
        assert {line.split(':')[0] for line in found} == {'chunk 1', 'chunk 15', 'chunk 17',
                                                          'chunk 255'}

    def test_planted_chunk_in_the_logits(self) -> None:
        """What a chunk computes of itself differs from what it reads back (K, V not rounded)."""
        class Unrounded(HashModel):
            def forward(self, batch: Batch, kv_cache: Any) -> Any:
                logits = super().forward(batch, kv_cache)
                for row, logit_row in zip(logits, batch.logit_rows, strict=True):
                    span = next(s for s in batch.spans if logit_row < s.start_row + s.num_rows)
                    row += np.float32(1e-6) * (span.num_rows > 1) * span.start_position
                return logits
        found = chunk_gate(Unrounded(), PROMPTS)
        assert {line.split(':')[0] for line in found} >= {'chunk 2', 'chunk 17'}

    def test_planted_lost_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A chunk that counts one row more than it ran."""
        right = scheduler.Scheduler.commit

        def wrong(self: scheduler.Scheduler, part: Any, num_kept: int) -> None:
            right(self, part, num_kept)
            if part.role is Role.PREFILL and part.logit_row < 0:
                part.sequence.num_committed += 1
        monkeypatch.setattr(scheduler.Scheduler, 'commit', wrong)
        found = chunk_gate(HashModel(), [PROMPTS[4]])
        assert {line.split(':')[0] for line in found} == {f'chunk {chunk}' for chunk in CHUNKS}


class TestCancelLeavesTheNextRequestRight:

    @pytest.mark.parametrize('temperature', TEMPERATURES)
    def test_at_every_step(self, temperature: float) -> None:
        requests = [job.request for job in with_temperature(
            [Job(request) for request in THREE], temperature)]
        assert cancel_gate(HashModel(), *requests, range(0, 26, 3), **SCARCE) == []

    def test_planted_sequence_that_runs_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its pages are freed, but it stays among the running for one more step."""
        right_remove, right_build = scheduler.Scheduler.remove, scheduler.build_plan
        ghosts: list[tuple[Sequence, Any]] = []

        def remove(self: scheduler.Scheduler, sequence: Sequence) -> None:
            if sequence.pages is not None and sequence.num_generated < 24:
                tables = replace(sequence.pages, full=sequence.pages.full.copy(),
                                 sliding=sequence.pages.sliding.copy())
                ghosts.append((sequence, tables))
            right_remove(self, sequence)

        def build(chosen: Any, *args: Any) -> Any:
            if ghosts and chosen and chosen[0][0] is not ghosts[0][0]:
                sequence, tables = ghosts.pop()
                sequence.pages = tables
                chosen = [*chosen, (sequence, 1)]
            return right_build(chosen, *args)
        monkeypatch.setattr(scheduler.Scheduler, 'remove', remove)
        monkeypatch.setattr(scheduler, 'build_plan', build)
        assert cancel_gate(HashModel(), *THREE, [6, 12], **SCARCE) != []

    def test_planted_history_that_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next request starts with what the cancelled one had committed."""
        right, stale = scheduler.Scheduler.admit, [8]

        def wrong(self: scheduler.Scheduler, now: float) -> None:
            right(self, now)
            for sequence in self.running:
                if sequence.request.request_id == 'b' and stale:
                    sequence.num_committed = stale.pop()
        monkeypatch.setattr(scheduler.Scheduler, 'admit', wrong)
        assert cancel_gate(HashModel(), *THREE, [6], **SCARCE) != []


class TestStreamedEqualsWhole:

    @pytest.mark.parametrize('temperature', TEMPERATURES)
    def test_events_joined(self, temperature: float) -> None:
        jobs = [Job(job.request) for job in with_temperature(JOBS, temperature)]
        assert stream_gate(HashModel(), jobs) == []

    def test_planted_poll_that_keeps_the_last_event_alone(self, monkeypatch: pytest.MonkeyPatch,
                                                          ) -> None:
        right = outbox.Outbox.poll

        def wrong(self: outbox.Outbox) -> Any:
            return right(self)[-1:]
        monkeypatch.setattr(outbox.Outbox, 'poll', wrong)
        assert stream_gate(HashModel(), [Job(job.request) for job in JOBS]) != []


def test_solo_is_what_a_plain_loop_gives() -> None:
    """The engine alone against a loop without engine, pages and threads."""
    model = HashModel()
    job = Job(make_request('loop', 30, 5, temperature=1.5, max_tokens=40))
    history = list(job.request.prompt_ids)
    generated = [False] * len(history)
    tokens: list[int] = []
    row = SampleRow(Sequence(job.request, 0.0).history.settings, 0)
    while len(tokens) < 40:
        logits = np.zeros(128, np.float32)
        model.fill_logits(logits, np.array(history, np.int32), np.array(generated))
        tokens.append(sample_row(logits, replace(row, position=len(history))))
        history.append(tokens[-1])
        generated.append(True)
        if tokens[-1] in (1, 106, 50):
            break
    assert solo(model, [job])['loop'].token_ids == tuple(tokens)
