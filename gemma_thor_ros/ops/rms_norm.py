# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""rms(x; w) = x * (mean(x^2) + eps)^(-1/2) * w, alone, onto a residual, and as a sum of two.

The weight multiplies as it is (no 1 + w). Called around attention, MLP and experts and before the
head.
"""

from __future__ import annotations

import numpy as np

from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.scratch import Scratch


def inverse_rms(x: Array, eps: float) -> Array:
    """(mean(x^2) + eps)^(-1/2) over the last axis: (..., H) -> (...).

    einsum runs along the row, in an order that depends on H alone.
    """
    mean: Array = np.einsum('...h,...h->...', x, x)
    mean /= x.shape[-1]
    mean += x.dtype.type(eps)
    np.sqrt(mean, out=mean)
    np.divide(x.dtype.type(1), mean, out=mean)
    return mean


def rms_norm_ref(out: Array, x: Array, weight: Array, eps: float,
                 rounding: Rounding = 'none') -> None:
    """Write out (T, H) from x (T, H) and weight (H,); 'device' rounds the result to bf16."""
    np.multiply(x, inverse_rms(x, eps)[..., None], out=out)
    out *= weight
    stored(out, rounding)


def rms_norm_add_ref(residual: Array, branch: Array, weight: Array, eps: float, scale: float,
                     *, scratch: Scratch) -> None:
    """residual = (residual + rms(branch; weight)) * scale, all (T, H); never rounded.

    scale is the layer_scalar where the sum ends the layer, else 1.
    """
    normed = scratch.get('rms_norm_add', *branch.shape)
    rms_norm_ref(normed, branch, weight, eps)
    residual += normed
    if scale != 1.0:
        residual *= residual.dtype.type(scale)


def rms_norm_sum_ref(out: Array, a: Array, weight_a: Array, b: Array, weight_b: Array, eps: float,
                     *, scratch: Scratch) -> None:
    """out = rms(a; weight_a) + rms(b; weight_b), all (T, H): dense MLP and experts meet here.

    Not rounded: the sum goes straight into another norm.
    """
    normed = scratch.get('rms_norm_sum', *b.shape)
    rms_norm_ref(out, a, weight_a, eps)
    rms_norm_ref(normed, b, weight_b, eps)
    out += normed


def bytes_moved(num_tokens: int, hidden_size: int, num_arrays: int, element_bytes: int) -> int:
    """num_arrays rows of each token read or written, and the weight."""
    return (num_tokens * num_arrays + 1) * hidden_size * element_bytes
