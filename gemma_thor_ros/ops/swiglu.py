# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""swiglu(gate, up) = gate / (1 + exp(-gate)) * up: the MLP of DFlash's draft layers."""

from __future__ import annotations

import numpy as np

from gemma_thor_ros.ops.rounding import Array, Rounding, stored


def swiglu_ref(out: Array, gate_up: Array, rounding: Rounding = 'none') -> None:
    """Write out (T, I) from gate_up (T, 2I), gate first; 'device' rounds the result to bf16."""
    size = out.shape[-1]
    gate, up = gate_up[..., :size], gate_up[..., size:]
    with np.errstate(over='ignore'):     # a very negative gate: 1 / infinity is the right 0
        np.exp(-gate, out=out)
    out += out.dtype.type(1)
    np.divide(gate, out, out=out)
    out *= up
    stored(out, rounding)


def bytes_moved(num_tokens: int, intermediate_size: int, element_bytes: int) -> int:
    """gate and up read, their product written."""
    return 3 * num_tokens * intermediate_size * element_bytes
