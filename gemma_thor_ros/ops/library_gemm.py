# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""y = x W^T in bf16 by cuBLAS, for the vision part alone: one image is one fixed computation.

cuBLAS chooses its kernel by the number of rows, so it has no place where a row must have the same
bits in any company. Sums are float32; the result is rounded once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.shapes import check

# Of cublas_api.h and library_types.h.
_PLAIN, _TRANSPOSED = 0, 1
_BF16, _SUMS_F32, _DEFAULT = 14, 68, -1
_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)    # on the host, for good


@cache
def missing() -> str:
    """Why cuBLAS can't be used here, or ''."""
    try:
        return '' if _handle() else 'cuBLAS gave no handle'
    except Exception as error:  # noqa: BLE001 - whatever a missing or misfit library raises
        return f'{type(error).__name__}: {error}'


@cache
def _handle() -> int:
    """Of this process, for one thread at a time. CuPy's own are of a thread and die with it."""
    handle: int = device.cupy().cuda.cublas.create()
    return handle


def library_gemm(out: Any, x: Any, weight: Any, stream: Any) -> None:
    """Enqueue out (T, N) bf16 = x (T, M) bf16 times weight (N, M) bf16."""
    sizes = check('gemm_bf16', out=out, x=x, weight=weight)
    with stream:                         # CuPy gives its current stream to the library
        # the library's matrices lie column by column: out^T = (W^T)^T x^T
        device.cupy().cuda.cublas.gemmEx(
            _handle(), _TRANSPOSED, _PLAIN, sizes['N'], sizes['T'], sizes['M'],
            _ONE.ctypes.data, weight.data.ptr, _BF16, sizes['M'], x.data.ptr, _BF16, sizes['M'],
            _ZERO.ctypes.data, out.data.ptr, _BF16, sizes['N'], _SUMS_F32, _DEFAULT)
    device.end_overlap(stream)           # what the library puts there need not be a kernel
