# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What a loaded kernel asks of the driver before it is launched."""
from __future__ import annotations

from types import SimpleNamespace

import pytest

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec


def loaded(fixed_bytes: int) -> tuple[device.Kernel, SimpleNamespace]:
    """A kernel with so much fixed shared memory, and what the driver holds of it."""
    raw = SimpleNamespace(num_regs=64, local_size_bytes=0, shared_size_bytes=fixed_bytes,
                          kernel=SimpleNamespace(ptr=1), max_dynamic_shared_size_bytes=None)
    module = SimpleNamespace(get_function=lambda name: raw)
    return device.Kernel(KernelSpec.of('gemm_nvfp4', 'gemm_nvfp4', COLUMNS=64), module), raw


@pytest.mark.parametrize(('fixed', 'dynamic', 'asked'), [
    (0, 48 << 10, None), (0, (48 << 10) + 16, (48 << 10) + 16), (17408, 31744, None),
    (17408, 31760, 31760), (17408, 36864, 36864), (40960, 0, None)])
def test_fixed_and_dynamic_shared_memory_count_together(fixed: int, dynamic: int,
                                                        asked: int | None) -> None:
    kernel, raw = loaded(fixed)
    kernel.allow_shared(dynamic)
    assert raw.max_dynamic_shared_size_bytes == asked
    kernel.allow_shared(max(0, dynamic - 1024))          # what is allowed stays
    assert raw.max_dynamic_shared_size_bytes == asked
