# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""drafted == plain: on random logits and on tiny Gemmas, with a drafter that knows the answers.

Each gate is followed by the errors that it must catch. `--grid` runs all counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from draft_gates import drafted_gate, kept_some, scripted, with_guide
from engine_gates import TEMPERATURES, HashModel, Job, make_request, run, solo
from forward import TINY_DENSE, TINY_MOE, random_model
from preempt_gates import Stepped, with_priority

from gemma_thor_ros.engine import page_pool, runner, scheduler
from gemma_thor_ros.models.scripted import PEAK, ScriptedModel
from gemma_thor_ros.models.scripted_drafter import ScriptedDrafter
from gemma_thor_ros.schema import Priority

VOCAB = 96
WINDOW = 24


@cache
def model(name: str) -> Any:
    if name == 'hash':
        return HashModel(VOCAB, WINDOW)
    raw, rounding, kv_dtype = (
        (TINY_MOE, 'device', 'bf16') if name == 'moe' else (TINY_DENSE, 'none', 'fp8'))
    return random_model({**raw, 'sliding_window': WINDOW}, rounding=rounding, kv_dtype=kv_dtype)


def jobs(count: int, temperature: float, seed: int = 0, max_tokens: int = 40) -> list[Job]:
    """Uneven prompts and answers; the first passes the window's edge."""
    lengths = (33, 5, 18, 1)
    return [Job(make_request(f'r{i}', lengths[i], seed + i, vocab_size=VOCAB,
                             temperature=temperature, max_tokens=max_tokens - 7 * i), 2 * i)
            for i in range(count)]


class TestDraftedEqualsPlain:

    @pytest.mark.parametrize('temperature', TEMPERATURES)
    @pytest.mark.parametrize('right', [0.0, 0.6, 1.0])
    def test_random_logits(self, temperature: float, right: float, grid: bool) -> None:
        for seed in range(20 if grid else 1):
            for count in ((1, 2, 3, 4) if grid else (4,)):
                assert drafted_gate(
                    model('hash'), partial(jobs, count, temperature, seed), scripted(right),
                    num_drafts=7, stop_ids=(), expect=kept_some if right == 0.6 else bool) == []

    @pytest.mark.parametrize('name', ['dense', 'moe'])
    def test_tiny_gemma(self, name: str, grid: bool) -> None:
        for seed in range(20 if grid else 1):
            for temperature in TEMPERATURES if grid else (0.7,):
                for count in ((1, 2, 3, 4) if grid else (3,)):
                    assert drafted_gate(
                        model(name), partial(jobs, count, temperature, seed),
                        scripted(0.7), num_drafts=15, stop_ids=(), expect=kept_some) == []

    @pytest.mark.parametrize('num_drafts', [1, 15, None])
    @pytest.mark.parametrize('page_size', [1, 8])
    def test_each_length(self, num_drafts: int | None, page_size: int) -> None:
        """Also the rule's own, which may want none."""
        assert drafted_gate(model('hash'), partial(jobs, 4, 0.7), scripted(0.8),
                            num_drafts=num_drafts, page_size=page_size, stop_ids=()) == []

    @pytest.mark.parametrize('sampling', [
        {'repetition_penalty': 1.4}, {'presence_penalty': 1.0, 'frequency_penalty': 0.5},
        {'logit_bias': ((7, 3.0), (8, 3.0), (9, -100.0))}, {'top_k': 3, 'min_p': 0.1},
        {'min_tokens': 20, 'logit_bias': ((1, 8.0),)}, {'stop_ids': tuple(range(60, 70))}])
    @pytest.mark.parametrize('temperature', [0.0, 1.5])
    def test_settings(self, sampling: dict[str, Any], temperature: float) -> None:
        def make() -> list[Job]:
            return [replace(job, request=replace(job.request, sampling=replace(
                job.request.sampling, **sampling))) for job in jobs(3, temperature)]
        assert drafted_gate(model('hash'), make, scripted(0.8), num_drafts=6,
                            suppress_tokens=(3, 4), stop_ids=(1, 50)) == []

    @pytest.mark.parametrize('temperature', [0.0, 1.5])
    def test_guide(self, temperature: float) -> None:
        """The mask of a row follows the drafts before it, and no refused one."""
        def make() -> list[Job]:
            return [replace(job, request=with_guide(job.request, VOCAB, 10 + 9 * i))
                    for i, job in enumerate(jobs(3, temperature))]
        assert drafted_gate(model('hash'), make, scripted(0.7), num_drafts=6, stop_ids=(),
                            expect=kept_some) == []

    def test_cancels_in_mid_round(self) -> None:
        """A cancel during a step drops what the step kept, however much that is."""
        for step in range(3, 12):
            def make(step: int = step) -> list[Job]:
                first, second, third = jobs(3, 0.7)
                return [replace(first, cancel_step=step), replace(second, join_step=step + 1),
                        third]
            assert drafted_gate(model('hash'), make, scripted(0.8), num_drafts=5, stop_ids=(),
                                num_full_pages=18, num_sliding_pages=18) == []

    @pytest.mark.parametrize('options', [{}, {'num_full_pages': 12, 'num_sliding_pages': 12}])
    def test_preempted_and_dropped_at_each_step(self, options: dict[str, Any], grid: bool) -> None:
        victim = with_priority(jobs(1, 0.7, max_tokens=50)[0].request, Priority.BACKGROUND)
        intruder = with_priority(jobs(2, 0.7)[1].request, Priority.OPERATOR)
        both = [Job(victim), Job(intruder)]
        whole = solo(model('hash'), both, stop_ids=())
        for step in range(1, 14, 1 if grid else 3):
            stepped = Stepped(
                model('hash'), drafter=scripted(0.8)(whole, both), num_drafts=4, max_sequences=1,
                **options)
            stepped.submit(victim)
            stepped.step(step)
            stepped.submit(intruder)
            found = stepped.finish()
            stats = stepped.engine.stats()
            stepped.close()
            for name, answer in found.items():
                assert not answer.differs(whole[name], False), (step, name)
            assert (stats.preemptions, stats.drops) == (1, bool(options)), stats
            assert stats.draft_failure == '' and stats.accepted_tokens > 10, stats

    def test_stop_id_inside_an_accepted_run(self) -> None:
        """What comes behind it is dropped, and not counted."""
        first = jobs(1, 0.7)[0].request
        plain = solo(model('hash'), [Job(first)], stop_ids=())['r0'].token_ids
        for index in range(2, 12):
            stop = plain[index]
            length = plain.index(stop) + 1
            found = run(model('hash'), [Job(first)], max_rows=16, num_drafts=15, stop_ids=(stop,),
                        drafter=ScriptedDrafter(
                            lambda history, generated: plain[int(generated.sum()):], VOCAB,
                            window=WINDOW))['r0']
            assert found.token_ids == plain[:length]
            assert found.usage.completion_tokens == len(found.logprobs) == length
            assert found.usage.accepted_tokens <= max(0, length - 2)

    def test_several_tokens_come_in_one_event(self) -> None:
        whole = solo(model('hash'), jobs(1, 0.0), stop_ids=())
        found = run(model('hash'), jobs(1, 0.0), max_rows=16, num_drafts=9, stop_ids=(),
                    drafter=scripted(1.0)(whole, jobs(1, 0.0)))['r0']
        assert found.num_events == 5 and len(found.token_ids) == 40
        assert found.usage.rounds == 4 and found.usage.accepted_tokens == 35
        assert found.usage.drafted_tokens == 9 + 9 + 9 + 8
        assert found.usage.accepted_by_position == (4,) * 8 + (3,)

    def test_the_scripted_model_drafts_its_script(self) -> None:
        target = ScriptedModel(lambda prompt: range(10, 40), 128)
        found = run(target, [Job(make_request('a', 4, max_tokens=99))], max_rows=16,
                    num_drafts=9, drafter=ScriptedDrafter(target.rest, 128))['a']
        assert len(found.token_ids) == 31 and found.num_events == 4


class TestPlantedErrors:

    def fails(self, **options: Any) -> bool:
        try:
            return drafted_gate(model('hash'), partial(jobs, 4, 0.7), scripted(0.7),
                                **{'num_drafts': 7, 'stop_ids': (), **options}) != []
        except AssertionError:                           # the drafter found its pages wrong
            return True

    def test_without_an_error(self) -> None:
        assert not self.fails()

    def test_draft_kept_because_it_is_the_likeliest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The usual greedy rule above temperature 0."""
        right = runner.Runner._choose

        def wrong(self: Any, logits: np.ndarray, sequence: Any, num_drawn: int) -> Any:
            best = int(logits.argmax())
            if best in drafts.get(sequence.num_tokens + num_drawn, ()):
                return best, ''
            return right(self, logits, sequence, num_drawn)

        drafts: dict[int, list[int]] = {}

        class Likeliest(HashModel):
            """Notes the likeliest token of each row, as a greedy drafter would guess it."""

            def fill_logits(self, logits: np.ndarray, history: np.ndarray,
                            generated: np.ndarray) -> None:
                super().fill_logits(logits, history, generated)
                if generated.any():
                    drafts.setdefault(history.size, []).append(int(logits.argmax()))
        monkeypatch.setattr(runner.Runner, '_choose', wrong)
        assert drafted_gate(Likeliest(VOCAB, WINDOW), partial(jobs, 2, 0.7), scripted(0.7),
                            num_drafts=7, stop_ids=(), reference=model('hash')) != []

    def test_draft_kept_unseen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first draft is taken without a look at the target's token."""
        right = runner.Runner._draw

        def wrong(self: Any, logits: Any, part: Any) -> Any:
            found = right(self, logits, part)
            if part.drafts and len(found.token_ids) == 1 and found.end is None:
                return replace(found, token_ids=part.drafts[:1])
            return found
        monkeypatch.setattr(runner.Runner, '_draw', wrong)
        assert self.fails()

    def test_refused_rows_that_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stale key: the slot of a refused draft is not written again."""
        class Stale(HashModel):
            def forward(self, batch: Any, kv_cache: Any, *tap: Any) -> Any:
                old = kv_cache.full_ids.copy()
                logits = super().forward(batch, kv_cache)
                for span in batch.spans:
                    page, slot = divmod(span.start_position, kv_cache.page_size)
                    page = span.full_pages[page]
                    if span.role.value == 'decode' and old[page, slot] >= 0:
                        kv_cache.full_ids[page, slot] = old[page, slot]
                return logits
        found = drafted_gate(Stale(VOCAB, WINDOW), partial(jobs, 2, 0.7), scripted(0.7),
                             num_drafts=7, stop_ids=(), reference=model('hash'))
        assert any('are not of this sequence' in line for line in found), found

    def test_stale_key_in_a_gemma(self) -> None:
        wrong = random_model({**TINY_DENSE, 'sliding_window': WINDOW})
        right = wrong.ops.kv_append

        def stale(q: Any, k_pages: np.ndarray, v_pages: Any, qkv: Any, norm: Any, cos: Any,
                  sin: Any, where: Any, *rest: Any) -> None:
            old = k_pages[where.pages, where.slots].copy()
            right(q, k_pages, v_pages, qkv, norm, cos, sin, where, *rest)
            written = np.any(old != 0, axis=(1, 2))
            k_pages[where.pages[written], where.slots[written]] = old[written]
        make = partial(jobs, 1, 0.7)
        reference = random_model({**TINY_DENSE, 'sliding_window': WINDOW})
        gate = partial(drafted_gate, wrong, make, scripted(0.6), num_drafts=7, stop_ids=(),
                       reference=reference, max_checkpoint_pages=0)
        assert gate() == []
        wrong.ops = replace(wrong.ops, kv_append=stale)
        assert gate() != []

    def test_page_freed_one_page_early(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = page_pool.PageManager.num_dead

        def wrong(self: Any, committed: int) -> int:
            return right(self, committed + self.max_rows + self.page_size)
        monkeypatch.setattr(page_pool.PageManager, 'num_dead', wrong)
        assert self.fails(reference=HashModel(VOCAB, 10 ** 6))

    def test_window_of_the_drafter_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its window is the longer one; pages go by the target's."""
        wide = scripted(0.7, window=4 * WINDOW)
        gate = partial(drafted_gate, model('hash'), partial(jobs, 2, 0.7, 0, 60), wide,
                       num_drafts=7, stop_ids=())
        assert gate() == []
        right = page_pool.PageManager.num_dead

        def wrong(self: Any, committed: int) -> int:
            self.window = WINDOW
            return right(self, committed)
        monkeypatch.setattr(page_pool.PageManager, 'num_dead', wrong)
        with pytest.raises(AssertionError, match='PageFault'):
            gate()

    def test_refused_drafts_that_count_as_committed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = scheduler.Scheduler.commit

        def wrong(self: Any, part: Any, num_kept: int) -> None:
            right(self, part, max(num_kept, min(part.num_rows, num_kept + 1)))
        monkeypatch.setattr(scheduler.Scheduler, 'commit', wrong)
        assert self.fails()

    def test_drafts_past_the_last_position(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A draft more than the request has room for."""
        from gemma_thor_ros.engine import speculation
        right = speculation.Speculation.propose

        def wrong(self: Any, chosen: Sequence[tuple[Any, int]]) -> Any:
            return {sequence: (*ids, 5) for sequence, ids in right(self, chosen).items()}
        monkeypatch.setattr(speculation.Speculation, 'propose', wrong)
        assert self.fails()

    def test_guide_that_follows_the_drafts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The guide is shown all drafts, and the refused ones are not taken back."""
        right = runner.Runner._draw

        def wrong(self: Any, logits: Any, part: Any) -> Any:
            found = right(self, logits, part)
            guide = part.sequence.request.guide
            for token_id in part.drafts[len(found.token_ids):]:
                if guide is not None:
                    guide._tokens.append(token_id)
            return found
        monkeypatch.setattr(runner.Runner, '_draw', wrong)

        def make() -> list[Job]:
            return [replace(job, request=with_guide(job.request, VOCAB, 30))
                    for job in jobs(2, 0.7)]
        assert drafted_gate(model('hash'), make, scripted(0.6), num_drafts=6, stop_ids=()) != []

    def test_penalty_that_counts_all_drafts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = runner.Runner._draw

        def wrong(self: Any, logits: Any, part: Any) -> Any:
            for token_id in part.drafts:
                part.sequence.history.append(token_id)
            return right(self, logits, part)
        monkeypatch.setattr(runner.Runner, '_draw', wrong)

        def make() -> list[Job]:
            return [replace(job, request=replace(job.request, sampling=replace(
                job.request.sampling, presence_penalty=2.0))) for job in jobs(2, 0.0)]
        assert drafted_gate(model('hash'), make, scripted(0.6), num_drafts=6, stop_ids=()) != []


class TestFaults:

    def answers(self, drafter: Any, **options: Any) -> tuple[Any, Any]:
        stepped = Stepped(model('hash'), drafter=drafter, **options)
        stepped.submit(*(job.request for job in jobs(3, 0.7)))
        found = stepped.finish()
        stats = stepped.engine.stats()
        stepped.close()
        return found, stats

    @pytest.mark.parametrize('fault', ['raises', 'shape', 'id', 'absorb'])
    def test_a_drafter_that_fails_is_left_out(self, fault: str,
                                              caplog: pytest.LogCaptureFixture) -> None:
        whole = solo(model('hash'), jobs(3, 0.7), stop_ids=())
        drafter: Any = scripted(1.0)(whole, jobs(3, 0.7))
        right = drafter.draft

        def draft(*args: Any) -> Any:
            if drafter.num_calls > 1 and fault == 'raises':
                raise OSError('planted fault')
            drafts = right(*args)
            if fault == 'shape':
                return replace(drafts, token_ids=drafts.token_ids[:, :1])
            if fault == 'id':
                drafts.token_ids[0, 1] = VOCAB
            return drafts

        def absorb(*args: Any) -> None:
            raise OSError('planted fault')
        drafter.draft = draft
        if fault == 'absorb':
            drafter.absorb = absorb
        found, stats = self.answers(drafter, num_drafts=4)
        assert all(not found[name].differs(whole[name], False) for name in whole)
        assert stats.draft_failure and 'goes on without drafts' in caplog.text
        assert (stats.accepted_tokens > 0) == (fault == 'raises')

    def test_always_wrong_is_switched_off_and_costs_no_token(self) -> None:
        """Each probe is one round; the steps are as many as without drafts."""
        whole = solo(model('hash'), jobs(3, 0.7), stop_ids=())
        found, stats = self.answers(scripted(0.0, confidence=0.9)(whole, jobs(3, 0.7)))
        assert all(not found[name].differs(whole[name], False) for name in whole)
        assert stats.accepted_tokens == 0 < stats.draft_rounds
        assert stats.draft_rounds < stats.plain_rounds / 3

    def test_no_drafts_when_none_are_wanted(self) -> None:
        found, stats = self.answers(scripted(1.0)({}, []), num_drafts=0)
        assert stats.drafter == '' and stats.draft_rounds == 0 and len(found) == 3


def test_logits_of_the_scripted_model_are_what_its_drafter_says() -> None:
    target = ScriptedModel(lambda prompt: [9, 8, 7], 16)
    history, generated = np.array([3, 4, 9], np.int32), np.array([False, False, True])
    logits = np.zeros(16, np.float32)
    target.end_id = 5
    target.fill_logits(logits, history, generated)
    assert target.rest(history, generated) == (8, 7, 5) and logits[8] == PEAK
