# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""These tests need a CUDA device; without one they are skipped, with the reason."""
from __future__ import annotations

from typing import Any

import pytest

from gemma_thor_ros.ops import device


@pytest.fixture(scope='session')
def cp() -> Any:
    """CuPy on a device that works."""
    cupy = pytest.importorskip('cupy', reason='CuPy is not installed, so there is no CUDA device')
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f'no CUDA device: {error}')
    if not count:
        pytest.skip('no CUDA device')
    return cupy


@pytest.fixture(scope='session')
def stream(cp: Any) -> Any:
    """The stream that all kernels run on."""
    assert device.info().name
    return cp.cuda.Stream()              # waits for what CuPy's own stream still does
