# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Per-layer embeddings of E2B and E4B: a second table gives every layer P numbers of each token.

inputs = (rms(x0 W^T / sqrt(H); norm) + T[token] * sqrt(P)) / sqrt(2), for each layer alone, with
x0 the scaled embedding; a layer adds rms(W2 (gelu_tanh(W1 x) * inputs); norm) to its residual.
The CPU has these ops alone so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops.geglu import gelu_times
from gemma_thor_ros.ops.linear import TableWeight
from gemma_thor_ros.ops.rms_norm import inverse_rms
from gemma_thor_ros.ops.rounding import Array, Rounding, round_to_bf16, stored


def per_layer_inputs_ref(out: Array, token_ids: npt.NDArray[Any], table: TableWeight,
                         norm_weight: Array, hidden_size: int, eps: float,
                         rounding: Rounding = 'none') -> None:
    """Turn out (T, L P), which holds x0 W^T, into the inputs of all layers.

    token_ids (T,), -1 for padding, which has no embedding; table (V, L P); norm_weight (P,). The
    table's scale is sqrt(P) rounded to bf16. 'device' rounds the result to bf16.
    """
    size = norm_weight.size
    heads = out.reshape(out.shape[0], -1, size)
    heads *= out.dtype.type(hidden_size ** -0.5)
    heads *= inverse_rms(heads, eps)[..., None]
    heads *= norm_weight
    real = token_ids >= 0
    scale = round_to_bf16(np.array([size ** 0.5], np.float64))[0]
    if real.any():
        out[real] += table.rows(token_ids[real]) * out.dtype.type(scale)
    out *= out.dtype.type(2.0 ** -0.5)
    stored(out, rounding)


def per_layer_gate_ref(gate: Array, inputs: Array, rounding: Rounding = 'none') -> None:
    """gate (T, P) = gelu_tanh(gate) * inputs (T, P); 'device' rounds it to bf16."""
    gelu_times(gate, gate.copy(), inputs)
    stored(gate, rounding)


def narrowed_ref(out: Array, x: Array, rounding: Rounding = 'none') -> None:
    """out = x (T, H) as it goes into a product: 'device' rounds it to bf16."""
    out[...] = x
    stored(out, rounding)


def bytes_moved(num_tokens: int, sizes: Sequence[int], element_bytes: int) -> int:
    """Each row's numbers of the given sizes, read or written once."""
    return num_tokens * sum(sizes) * element_bytes
