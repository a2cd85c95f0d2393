# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""bench/step_trace.py: traced kernels compile, and records become launches and their links."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import kv_append


@pytest.fixture(scope='module')
def trace() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / 'bench' / 'step_trace.py'
    spec = importlib.util.spec_from_file_location('step_trace', path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def records(*launches: tuple[int, list[tuple[int, int]]]) -> np.ndarray:
    """Launch number and (came, released) of its blocks, in any order."""
    rows = [(came, released, number << 32 | block, 0)
            for number, times in launches for block, (came, released) in enumerate(times)]
    return np.random.default_rng(0).permutation(np.array(rows, np.uint64))


def test_a_traced_kernel_compiles_and_writes_its_times(trace: ModuleType) -> None:
    spec = kv_append.spec(256, 16, 8, True, 128, 64, True)
    text = trace.traced(compiler.kernel_source(spec.file), 3, 1 << 40)
    code = compiler.nvrtc().compile(text, spec.file,
                                    compiler.options_for('sm_90a', spec.defines))
    assert b'kv_append' in code.cubin
    assert text.count('globaltimer') == 2 and f'{1 << 40}ull' in text


def test_every_kernel_that_waits_can_be_traced(trace: ModuleType) -> None:
    folder = Path(__file__).resolve().parents[3] / 'kernels'
    for path in folder.glob('*.cu'):
        assert trace.WAIT not in path.read_text(encoding='utf-8'), path.name
        trace.traced(compiler.kernel_source(path.stem), 0, 0)


def test_launches_and_their_links(trace: ModuleType) -> None:
    # launch 7's second block comes 200 ns behind the release
    step = records((5, [(900, 1000)]), (7, [(1500, 3000), (3200, 3200)]), (5, [(100, 4500)]))
    assert [len(launch) for launch in trace.launches_of(step)] == [1, 2, 1]
    links = trace.links_of(step)
    assert [(link.number, link.following, link.blocks) for link in links] == [
        (5, 7, 1), (7, 5, 2)]
    assert [link.us for link in links] == pytest.approx([2.0, 1.5])
    assert (links[1].first, links[1].median, links[1].last) == pytest.approx((1.5, 0.65, -0.2))


def test_steps_that_were_cut_otherwise_are_left_out(trace: ModuleType) -> None:
    links = [trace.Link(1, 2, 4, us, 1.0, 1.0, 1.0) for us in (1.0, 2.0, 4.0)]
    kinds = trace.by_kind([[links[0]] * 2, [links[1]] * 2, [links[2]] * 2, [links[2]]])
    assert list(kinds) == [(1, 2)]
    assert [link.us for link in kinds[1, 2]] == [2.0, 2.0]
