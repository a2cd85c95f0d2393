# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""ln(x; w, b) = (x - mean(x)) * (var(x) + eps)^(-1/2) * w + b: thrice in the 12B's embedder."""

from __future__ import annotations

import numpy as np

from gemma_thor_ros.ops.rounding import Array, Rounding, stored


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


def bytes_moved(num_tokens: int, hidden_size: int, element_bytes: int) -> int:
    """Rows read and written, weight and bias."""
    return 2 * (num_tokens + 1) * hidden_size * element_bytes
