# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""bench/step_rings.py: the walk finds what is best together, and launches keep all row tiles."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemma_thor_ros.ops import device, gemm_affine, gemm_nvfp4, gemv

LIMIT = 232448
BENCH = str(Path(__file__).resolve().parents[3] / 'bench')


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """step_rings and ring_walk, on a device that is not there."""
    monkeypatch.setattr(sys, 'path', [BENCH, *sys.path])
    monkeypatch.setattr(device, 'info', lambda: SimpleNamespace(
        arch='sm_90a', num_multiprocessors=132, shared_bytes_per_block=LIMIT))
    return import_module('step_rings')


def variant(stages: int, blocks: int) -> tuple[tuple[str, int], ...]:
    return ('STAGES', stages), ('MIN_BLOCKS', blocks)


def test_the_walk_finds_what_is_best_together(bench: Any) -> None:
    """Each of the two alone is worse with what is best for both; and one variant can't run."""
    options = [variant(stages, blocks) for stages in (2, 3, 4) for blocks in (1, 2, 3)]
    noise = random.Random(3)

    def us(choice: Any) -> float:
        a, b = (dict(choice[key,]) for key in 'ab')
        if a['STAGES'] == 3:
            raise RuntimeError('too much shared memory')
        both = a['MIN_BLOCKS'] + b['MIN_BLOCKS']
        together = 0 if (a['STAGES'], b['STAGES']) == (4, 4) else 2 * (a['STAGES'] + b['STAGES'])
        return (600 + 4 * both + together) * noise.uniform(0.999, 1.001)

    def times(choices: Sequence[Any], turns: int) -> list[list[float]]:
        return [[us(choice) for _ in range(turns)] for choice in choices]

    served = {('a',): variant(2, 2), ('b',): variant(2, 3)}
    clock = iter(range(1 << 30))
    walk = bench.Walk(dict.fromkeys(served, options), served, times, lambda *_: True)
    walk.run(1500, now=lambda: float(next(clock)))
    walk.prune()
    assert walk.best == {('a',): variant(4, 1), ('b',): variant(4, 1)}
    assert walk.served == served


@pytest.mark.parametrize('affine', [False, True])
def test_another_variant_covers_all_row_tiles(bench: Any, affine: bool) -> None:
    columns, tiles, head = 3840, 1920, ('x', 'codes', 'scales')
    spec = (gemm_affine.single_spec(columns, 4, 64, 'geglu', LIMIT, num_row_tiles=tiles) if affine
            else gemm_nvfp4.single_spec(columns, True, False, tiles, LIMIT))
    assert spec is not None
    share = gemv.share(tiles, 132, dict(spec.defines)['MIN_BLOCKS'])
    args = ('out', *head, *(() if affine else ('row_scales',)), share.each, share.more, 7, 1.0)
    own = bench.Launch(None, spec, (share.blocks,), 480, args, 'stream')
    assert bench.row_tiles(own) == tiles
    product = bench.Product(own)
    assert product.spec(product.served) == spec
    found = product.variants()
    assert product.served in found and len(found) > 20
    for one in found:
        changed = product.changed(own, one)
        values = dict(changed.spec.defines)
        assert bench.row_tiles(changed) == tiles and changed.args[-2:] == (7, 1.0)
        assert changed.grid[0] <= 132 * values['MIN_BLOCKS']
        assert (changed.shared_bytes + 1024) * values['MIN_BLOCKS'] <= LIMIT + 1024
