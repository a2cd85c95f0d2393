# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""geglu(gate, up) = gelu_tanh(gate) * up, between the two halves of an MLP or an expert.

gelu_tanh(z) = z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 z^3))).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.shapes import check

_ROOT = math.sqrt(2 / math.pi)


def geglu_ref(out: Array, gate_up: Array, rounding: Rounding = 'none') -> None:
    """Write out (T, I) from gate_up (T, 2I), gate first; 'device' rounds the result to bf16."""
    size = out.shape[-1]
    gelu_times(out, gate_up[..., :size], gate_up[..., size:])
    stored(out, rounding)


def gelu_times(out: Array, gate: Array, up: Array) -> None:
    """Write out = gelu_tanh(gate) * up, all of one shape, out apart from the others."""
    number = out.dtype.type
    np.multiply(gate, gate, out=out)
    out *= number(0.044715 * _ROOT)
    out += number(_ROOT)
    out *= gate
    np.tanh(out, out=out)
    out += number(1)
    out *= gate
    out *= number(0.5)
    out *= up


def geglu(out: Any, gate_up: Any, stream: Any) -> None:
    """Enqueue out (T, I) bf16 from gate_up (T, 2I) bf16, gate first."""
    sizes = check('geglu', out=out, gate_up=gate_up)
    assert sizes['2I'] == 2 * sizes['I'], sizes
    kernel = device.compiled(spec(sizes['I']))
    device.launch(kernel, (-(-sizes['I'] // 1024), sizes['T']), 128, (out, gate_up), stream)


def spec(intermediate_size: int) -> KernelSpec:
    """What is compiled for I columns."""
    assert intermediate_size % 8 == 0, intermediate_size
    return KernelSpec.of('geglu', I=intermediate_size)


def bytes_moved(num_tokens: int, intermediate_size: int, element_bytes: int) -> int:
    """gate and up read, their product written."""
    return 3 * num_tokens * intermediate_size * element_bytes
