# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the host hands a step on CUDA: its rows through pinned memory, and its choices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from host_device import HostStream, any_stream
from test_cuda_model import D, P, Rig, batch, settings

from gemma_thor_ros.models.cuda_sampler import CudaSampler
from gemma_thor_ros.ops.sample import TURN_BYTE, SampleRow, SampleSettings, pack_rows
from gemma_thor_ros.ops.staging import StepBuffer


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return any_stream(request, monkeypatch)


def verify(rig: Rig, copied: bool, count: int = 5) -> list[list[int]]:
    """Tokens of verify steps of one and of two sequences, more of them than there are slots."""
    rig.model.choose(batch((P, 0, 0, 5), wanted=[]), rig.cache, [])
    rig.model.choose(batch((P, 1, 0, 3), wanted=[]), rig.cache, [])
    found = []
    for at in range(count):
        parts = [(D, 0, 5 + at, 2), (D, 1, 3 + at, 1)] if at in (1, 4) else [(D, 0, 5 + at, 2)]
        step = batch(*parts)
        rows = [settings(6 + int(place), sampling='drawn') for place in step.positions]
        found.append(rig.model.choose(step, rig.cache, rows, logits_of=[0] if copied else []
                                      ).tokens.tolist())
    return found


def test_a_verify_step_takes_its_inputs_by_itself(stream: Any,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig('dense', stream, 'bf16')
    wanted = verify(rig, True)
    copies = getattr(stream, 'num_copies', 0)
    assert verify(rig, False) == wanted
    if isinstance(stream, HostStream):
        stream.launches.clear()
        before = stream.num_copies
        assert before - copies == 2 * 3                  # the prompts and their tables
        enqueue = rig.model._enqueue

        def fails(*_: Any) -> None:
            raise RuntimeError('planned')

        step, rows = batch((D, 0, 9, 2)), [settings(10), settings(11)]
        monkeypatch.setattr(rig.model, '_enqueue', fails)
        with pytest.raises(RuntimeError, match='planned'):
            rig.model.choose(step, rig.cache, rows)
        monkeypatch.setattr(rig.model, '_enqueue', enqueue)
        assert stream.num_copies == before + 1           # the device counts it all the same
        assert stream.launches == []
    assert verify(rig, False, 2) == wanted[:2]
    slots = rig.model._slots                             # planted: the host counts otherwise
    monkeypatch.setattr(slots, 'next_run', lambda: 0)
    assert verify(rig, False, 2) != wanted[:2]


def test_a_choice_like_the_last_one_is_packed_like_any(stream: Any) -> None:
    if not isinstance(stream, HostStream):
        pytest.skip('lists are read on the emulated device alone')
    buffer = StepBuffer(stream)
    sampler = CudaSampler(256, stream, buffer)
    few, more = np.array([3, 9]), np.array([7])
    penal = SampleSettings(repetition_penalty=1.2, bias_ids=few, bias_values=np.ones(2, 'f4'))
    cases = [[settings(5, suppress_ids=few), settings(6, suppress_ids=few)],
             [settings(8, suppress_ids=few), settings(9, suppress_ids=few)],
             [settings(9, suppress_ids=more), settings(10, suppress_ids=more)],
             [settings(11, suppress_ids=few), settings(12, suppress_ids=few)],
             [settings(13, suppress_ids=few)], [settings(14, suppress_ids=few)],
             [settings(15, suppress_ids=few, allowed=np.arange(256) > 3)],
             [settings(16, suppress_ids=few)],
             *([SampleRow(penal, 17 + i, seen_ids=few[:i])] for i in range(3)),
             [settings(20, sampling='drawn')], [settings(21, sampling='free')]]
    for case in cases:
        expected = pack_rows(case, 256)
        buffer.begin()
        chosen, records = sampler.send(range(len(case)), case)
        buffer.end()
        found = records[:len(case)].copy()
        found[:, TURN_BYTE] = 0
        assert np.array_equal(found, expected.records), case
        assert np.array_equal(records[len(case):, :TURN_BYTE],
                              sampler.padding()[len(case):, :TURN_BYTE])
        assert np.array_equal(sampler._ids[:expected.ids.size], expected.ids)
        assert np.array_equal(sampler._values[:expected.ids.size], expected.values)
        assert chosen.needs == expected.needs and chosen.picks.tolist() == [*range(len(case))]
