# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Requests with a guide: what it allows is chosen, its faults stay its own, it ends the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.engine import Engine
from gemma_thor_ros.models.scripted import ScriptedModel
from gemma_thor_ros.schema import ErrorCode, FinishReason, Priority, Request

MakeEngine = Callable[..., Engine]
MakeModel = Callable[..., ScriptedModel]
MakeRequest = Callable[..., Request]
WAIT = 20.0


class StepGuide:
    """Allows a set of ids at each position; None: all but the banned ones."""

    def __init__(self, steps: Sequence[Sequence[int] | None], banned: tuple[int, ...] = (),
                 size: int = 512) -> None:
        self.steps = steps
        self.banned = banned
        self.size = size
        self.taken: list[int] = []

    @property
    def finished(self) -> bool:
        return len(self.taken) == len(self.steps)

    def allowed(self) -> bytes | None:
        ids = self.steps[len(self.taken)]
        if ids is None:
            return None
        bits = np.zeros(self.size, np.uint8)
        bits[list(ids)] = 1
        return np.packbits(bits, bitorder='little').tobytes()

    def accept(self, token_id: int) -> None:
        self.taken.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        del self.taken[len(self.taken) - num_tokens:]


def answer(engine: Engine, request: Request) -> tuple[list[int], Any]:
    return engine.submit(request).collect(WAIT)


def test_the_mask_overrides_what_the_model_wants(make_engine: MakeEngine,
                                                 make_request: MakeRequest) -> None:
    """The script says 201, 211, 221; ids out of its reach are chosen by noise or the lowest."""
    guide = StepGuide([[300, 301], [211, 5], [400]])
    tokens, finish = answer(make_engine(), make_request((200, 210, 220), guide=guide))
    assert (tokens, finish.reason) == ([300, 211, 400], FinishReason.STOP)
    assert (finish.stop_id, guide.taken) == (400, tokens)


@pytest.mark.parametrize('temperature', [0.0, 1.0, 2.0])
def test_banned_ids_stand_for_a_mask_that_allows_the_rest(
        make_engine: MakeEngine, make_request: MakeRequest, temperature: float) -> None:
    """The same token as with the mask of all others, at any temperature."""
    others = sorted(set(range(512)) - {201, 106})
    found = [answer(make_engine(), make_request((200,), guide=guide, temperature=temperature))[0]
             for guide in (StepGuide([None], (201, 106)), StepGuide([others]))]
    assert found[0] == found[1]
    assert found[0][0] not in (201, 106)


@pytest.mark.parametrize('size', [64, 1024])
def test_a_mask_may_be_shorter_or_longer_than_the_vocabulary(
        make_engine: MakeEngine, make_request: MakeRequest, size: int) -> None:
    guide = StepGuide([[63], [9]], size=size)
    assert answer(make_engine(), make_request(guide=guide))[0] == [63, 9]


def test_stop_ids_end_a_guided_answer_as_any_other(make_engine: MakeEngine,
                                                   make_request: MakeRequest) -> None:
    guide = StepGuide([[8], [106], [9]])
    tokens, finish = answer(make_engine(), make_request(guide=guide))
    assert (tokens, finish.stop_id) == ([8, 106], 106)
    guide = StepGuide([[8]] * 9)
    _, finish = answer(make_engine(), make_request(guide=guide, max_tokens=4))
    assert finish.reason is FinishReason.LENGTH


def test_min_tokens_yields_where_only_a_stop_id_is_left(make_engine: MakeEngine,
                                                        make_request: MakeRequest) -> None:
    guide = StepGuide([[8, 106], [1, 106], [9]])
    tokens, finish = answer(make_engine(), make_request(guide=guide, min_tokens=5))
    assert tokens[0] == 8
    assert (len(tokens), finish.reason) == (2, FinishReason.STOP)


class Faulty(StepGuide):
    """Fails at its second token."""

    def __init__(self, method: str) -> None:
        super().__init__([[7], [8], [9]])
        self.method = method

    def allowed(self) -> bytes | None:
        if self.method == 'allowed' and len(self.taken) == 1:
            raise RuntimeError('no mask')
        return super().allowed() if self.method != 'empty' or not self.taken else bytes(64)

    def accept(self, token_id: int) -> None:
        if self.method == 'accept' and len(self.taken) == 1:
            raise RuntimeError('not this one')
        super().accept(token_id)


@pytest.mark.parametrize(('method', 'message'), [
    ('allowed', 'The guide of the answer failed at position 4: RuntimeError: no mask.'),
    ('accept', 'The guide of the answer failed at position 4: RuntimeError: not this one.'),
    ('empty', 'No token could be chosen at position 4: every token id is masked.')])
def test_a_guide_that_fails_ends_its_request_alone(
        make_engine: MakeEngine, make_request: MakeRequest, method: str, message: str) -> None:
    engine = make_engine()
    others = [engine.submit(make_request((200, 210, 220), request_id=f'plain{i}'))
              for i in range(2)]
    tokens, finish = answer(engine, make_request((1, 2, 3), guide=Faulty(method)))
    assert (tokens, finish.reason, finish.code) == ([7], FinishReason.ERROR, ErrorCode.ENGINE)
    assert finish.message == message
    for outbox in others:
        assert outbox.collect(WAIT)[0] == [201, 211, 221, 106]
    assert answer(engine, make_request((200,)))[0] == [201, 106]


def test_a_dropped_sequence_goes_on_where_its_guide_is(
        make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest) -> None:
    """Memory for one: an operator's request takes it, then the guided one is computed again."""
    steps = [[300 + i, 400 + i] for i in range(20)]
    engine = make_engine(make_model(lambda prompt: [1] * 30), start=False, num_sliding_pages=8,
                         num_full_pages=8, max_rows=2)
    engine.start(threaded=False)
    guide = StepGuide(steps)
    low = engine.submit(make_request((5, 6, 7), request_id='low', guide=guide, max_tokens=24,
                                     priority=Priority.BACKGROUND))
    for _ in range(6):
        engine.step()
    assert len(guide.taken) >= 4
    high = engine.submit(make_request((9, 9), request_id='high', max_tokens=20, ignore_eos=True,
                                      priority=Priority.OPERATOR))
    while engine.step():
        pass
    assert engine.stats().drops == 1
    assert high.collect(WAIT)[1].reason is FinishReason.LENGTH
    tokens, finish = low.collect(WAIT)
    assert (len(tokens), finish.reason, guide.taken) == (20, FinishReason.STOP, tokens)
    alone = answer(make_engine(make_model(lambda prompt: [1] * 30)), make_request(
        (5, 6, 7), guide=StepGuide(steps), max_tokens=24))[0]
    assert tokens == alone
