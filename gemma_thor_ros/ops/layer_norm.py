# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""ln(x; w, b) = (x - mean(x)) * (var(x) + eps)^(-1/2) * w + b: thrice in the 12B's embedder."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.shapes import check


def layer_norm_ref(out: Array, x: Array, weight: Array, bias: Array, eps: float,
                   rounding: Rounding = 'none') -> None:
    """Write out (T, H) from x (T, H), weight and bias (H,); 'device' rounds the result to bf16.

    The variance is the mean square of what is left after the mean is taken off. out may be x.
    """
    np.subtract(x, x.mean(axis=-1, keepdims=True), out=out)
    variance: Array = np.einsum('...h,...h->...', out, out)
    variance /= out.shape[-1]
    variance += out.dtype.type(eps)
    out /= np.sqrt(variance)[..., None]
    out *= weight
    out += bias
    stored(out, rounding)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float, stream: Any) -> None:
    """Enqueue x = ln(x; weight, bias) in place, rounded to bf16; x (T, H) bf16 or f32."""
    sizes = check('layer_norm', x=x, weight=weight, bias=bias)
    kernel = device.compiled(spec(sizes['H'], x.dtype.itemsize == 4))
    device.launch(kernel, (sizes['T'],), -(-sizes['H'] // 256) * 32,
                  (x, weight, bias, float(eps)), stream)


def spec(hidden_size: int, in_float: bool) -> KernelSpec:
    """What is compiled for H columns."""
    assert hidden_size % 8 == 0 and hidden_size <= 8192, hidden_size
    return KernelSpec.of('layer_norm', H=hidden_size, IN_FLOAT=int(in_float))


def bytes_moved(num_tokens: int, hidden_size: int, element_bytes: int) -> int:
    """Rows read and written, weight and bias."""
    return 2 * (num_tokens + 1) * hidden_size * element_bytes
