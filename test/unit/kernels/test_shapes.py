# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A mismatch at an op's door names both arguments."""
from __future__ import annotations

import numpy as np
import pytest

from gemma_thor_ros.ops.shapes import DTYPES, SHAPES, check


def arrays() -> dict[str, np.ndarray]:
    return {'out': np.zeros((3, 32), np.uint16), 'x': np.zeros((3, 64), np.uint16)}


def test_sizes_come_back_by_letter() -> None:
    assert check('gemm_nvfp4', {'M': 64}, **arrays()) == {'M': 64, 'T': 3, 'N': 32}


@pytest.mark.parametrize(('change', 'words'), [
    ({'out': np.zeros((4, 32), np.uint16)}, 'x has T=3 but out has 4'),
    ({'x': np.zeros((3, 48), np.uint16)}, 'x has M=48 but the weight has 64'),
    ({'x': np.zeros((3, 64), np.float32)}, 'x is float32, not bf16'),
    ({'x': np.zeros((3, 64, 1), np.uint16)}, 'x has 3 axes, not 2'),
    ({'x': np.zeros((3, 128), np.uint16)[:, ::2]}, 'x is not contiguous'),
])
def test_mismatches_are_named(change: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check('gemm_nvfp4', {'M': 64}, **{**arrays(), **change})


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(AssertionError, match='gemm_nvfp4'):
        check('gemm_nvfp4', out=arrays()['out'])


def test_the_table_knows_its_types() -> None:
    for op, table in SHAPES.items():
        for name, (axes, dtype) in table.items():
            assert axes and set(dtype.split('|')) <= DTYPES.keys(), (op, name)
