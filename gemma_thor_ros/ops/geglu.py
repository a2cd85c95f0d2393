# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""geglu(gate, up) = gelu_tanh(gate) * up, between the two halves of an MLP or an expert.

gelu_tanh(z) = z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 z^3))).
"""

from __future__ import annotations

import math

import numpy as np

from gemma_thor_ros.ops.rounding import Array, Rounding, stored

_ROOT = math.sqrt(2 / math.pi)


def geglu_ref(out: Array, gate_up: Array, rounding: Rounding = 'none') -> None:
    """Write out (T, I) from gate_up (T, 2I), gate first; 'device' rounds the result to bf16."""
    size = out.shape[-1]
    gate, up = gate_up[..., :size], gate_up[..., size:]
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
    stored(out, rounding)


def bytes_moved(num_tokens: int, intermediate_size: int, element_bytes: int) -> int:
    """gate and up read, their product written."""
    return 3 * num_tokens * intermediate_size * element_bytes
