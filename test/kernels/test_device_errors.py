# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""bench/device_errors.py: its verdict, and what it catches; the CPU's twin stands for a device."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / 'bench'))

import device_errors
from device_errors import judge

from gemma_thor_ros.cli.bench_records import Records
from gemma_thor_ros.models.gemma4 import Gemma4

ROWS, VOCAB = 400, 50
Array = np.ndarray


class Twin:
    """device_errors.Device by the CPU with a device's roundings."""

    def __init__(self, config: Any, weights: Any, kv_dtype: Any) -> None:
        self.model = Gemma4(config, weights, np.float32, 'device', kv_dtype=kv_dtype)
        self.cache = self.model.new_kv_cache(*device_errors.SIZES)
        self.experts: list[Array] = []
        right = self.model.ops.moe_route

        def note(ids: Any, *rest: Any) -> None:
            right(ids, *rest)
            self.experts.append(np.array(ids))

        self.model.ops = replace(self.model.ops, moe_route=note)

    def run(self, step: Any) -> tuple[Array, Array]:
        self.experts.clear()
        logits = self.model.forward(step, self.cache)
        return logits, np.sort([ids[step.logit_rows] for ids in self.experts], axis=2)

    def pages(self) -> list[tuple[Array, Array]]:
        return [(k.astype(np.float64), v.astype(np.float64))
                for k, v in zip(self.cache.k_pages, self.cache.v_pages, strict=True)]


class WrongPages(Twin):
    """Every 16th key of a layer is its neighbour's, for a reader that takes it for right."""

    def pages(self) -> list[tuple[Array, Array]]:
        found = super().pages()
        found[1][0][:, 3] = found[1][0][:, 4]
        return found


def test_the_same_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_errors, 'DIALOGUES', 1)
    (ids, start), = device_errors.dialogues()
    monkeypatch.setattr(device_errors, 'dialogues', lambda: [(ids[start - 60:], 60)])
    records = Records(None)
    for stand_in, good in ((Twin, True), (WrongPages, False)):
        monkeypatch.setattr(device_errors, 'Device', stand_in)
        assert device_errors.compare('fp8', records, False) is good
    metrics = [record['metric'] for record in records.records]
    assert metrics == 2 * ['op_error', 'top1_differs', 'op_error', 'other_experts']


def rows() -> dict[str, Any]:
    """A comparison that holds: a choice between equals differs, and one behind other experts."""
    rng = np.random.default_rng(1)
    right = rng.standard_normal((ROWS, VOCAB))
    right[:, 7] += 20
    right[0, 9] = right[0, 7] - 1e-3
    found = right + 1e-3 * rng.standard_normal(right.shape)
    found[0, 9] += 2e-3
    found[1, 11] = found[1, 7] + 1e-2                # far from a tie
    same = np.ones(ROWS, np.bool_)
    same[1] = False
    return {'found': found, 'right': right, 'same': same, 'page_errors': np.full(300, 0.01)}


def test_a_verdict() -> None:
    verdict = judge(**rows())
    assert verdict.holds('fp8') and not verdict.holds('bf16')        # of e4m3's size
    assert verdict.differs == 2 / ROWS and verdict.tied == 1 / ROWS
    assert (verdict.beyond, verdict.tied_beyond) == (0, 1)


def same_experts(case: dict[str, Any]) -> None:
    case['same'][1] = True


def many_others(case: dict[str, Any]) -> None:
    case['same'][:30] = False


def many_differ(case: dict[str, Any]) -> None:
    case['right'][:6, 9] = case['right'][:6, 7] - 1e-3
    case['found'][:6, 9] = case['found'][:6, 7] + 1e-3


def not_a_number(case: dict[str, Any]) -> None:
    case['found'][5, 5] = np.nan


def few_pages(case: dict[str, Any]) -> None:
    case['page_errors'][:6] = 0.5


def all_pages(case: dict[str, Any]) -> None:
    case['page_errors'][:] = 0.025


@pytest.mark.parametrize('plant', [same_experts, many_others, many_differ, not_a_number, few_pages,
                                   all_pages])
def test_a_planted_error_shows(plant: Any) -> None:
    case = rows()
    plant(case)
    assert not judge(**case).holds('fp8')
