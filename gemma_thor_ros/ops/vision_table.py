# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What models/vision asks of a device, and the CPU's filling of it; a GPU's is vision_cuda.py.

The ops of the text layers do most of a tower; those that only vision has stand here. Arrays are
opaque to the caller except for their shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops.layer_norm import layer_norm_ref
from gemma_thor_ros.ops.linear import RowTiles, linear_ref
from gemma_thor_ros.ops.rms_norm import rms_norm_ref
from gemma_thor_ros.ops.rounding import stored
from gemma_thor_ros.ops.table import OpTable
from gemma_thor_ros.ops.vision_attention import (
    axial_rope_table,
    vision_attention_ref,
    vision_heads_ref,
)
from gemma_thor_ros.ops.vision_patches import (
    add_positions_ref,
    patch_numbers_ref,
    pool_ref,
    standardize_ref,
)

# Of patches where the device has them, and how many stand in a row, to soft tokens.
Work = Callable[[Any, int], Any]
# Of a linear layer's input, low and high, and of its output.
Bounds = tuple[float, float, float, float]


class VisionOps(Protocol):
    """Outputs come first. P patches of one image, padded to whole tiles of `row_tile` rows.

    `empty` gives what goes into products, `wide` what is added up and keeps its bits.
    """

    @property
    def row_tile(self) -> int: ...
    def scope(self) -> Any: ...
    def image(self, patches: npt.NDArray[np.uint8], columns: int, work: Work) -> Any: ...
    def empty(self, *shape: int) -> Any: ...
    def wide(self, *shape: int) -> Any: ...
    def numbers(self, patches: Any, num_rows: int, centred: bool) -> Any: ...
    def linear(self, out: Any, x: Any, weight: Any) -> None: ...
    def clipped_linear(self, out: Any, x: Any, weight: Any, bounds: Bounds) -> None: ...
    def geglu(self, inner: Any, products: Any) -> None: ...
    def add_bias(self, x: Any, bias: Any) -> None: ...
    def norm(self, out: Any, x: Any, weight: Any, eps: float) -> None: ...
    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> None: ...
    def add_norms(self, residual: Any, outs: Sequence[Any], branch: Any, weight: Any,
                  weights: Sequence[Any], eps: float) -> None: ...
    def add_positions(self, x: Any, x_table: Any, y_table: Any, columns: int) -> None: ...
    def rope(self, num_patches: int, columns: int, theta: float, head_dim: int) -> Any: ...
    def turn_heads(self, qkv: Any, q_norm: Any, k_norm: Any, rope: Any, num_heads: int,
                   eps: float) -> None: ...
    def attend_all(self, out: Any, qkv: Any, num_heads: int) -> None: ...
    def pool(self, out: Any, x: Any, columns: int, size: int, scale: float) -> None: ...
    def standardize(self, x: Any, bias: Any, scale: Any) -> None: ...


class CpuVisionOps:
    """The NumPy twins; each method's contract is its twin's docstring."""

    def __init__(self, table: OpTable) -> None:
        self._table = table
        self._rounding = table.rounding

    @property
    def row_tile(self) -> int:
        """The rows of an image are one product, since nobody else's stand beside them."""
        return 1

    def scope(self) -> Any:
        """Context manager around one image."""
        return self._table.scope(1)

    def empty(self, *shape: int) -> Any:
        """An array of zeros, so that padding rows stay finite."""
        return np.zeros(shape, self._table.dtype)

    def wide(self, *shape: int) -> Any:
        """The same: all is of one type here."""
        return self.empty(*shape)

    def image(self, patches: npt.NDArray[np.uint8], columns: int, work: Work) -> Any:
        """What work(patches, columns) gives."""
        return work(patches, columns)

    def numbers(self, patches: Any, num_rows: int, centred: bool) -> Any:
        """(num_rows, M) from patches (P, M); zeros in the padding rows."""
        out = self.empty(num_rows, patches.shape[1])
        patch_numbers_ref(out[:patches.shape[0]], patches, centred, self._rounding)
        return out

    def linear(self, out: Any, x: Any, weight: Any) -> None:
        """x W^T."""
        linear_ref(out, x, weight, 0, tiles=RowTiles(1, x.shape[0]), rounding=self._rounding)

    def clipped_linear(self, out: Any, x: Any, weight: Any, bounds: Bounds) -> None:
        """clip(clip(x) W^T); out (T, N) may be columns of a wider array."""
        self.linear(out, np.clip(x, *bounds[:2]), weight)
        np.clip(out, *bounds[2:], out=out)

    def geglu(self, inner: Any, products: Any) -> None:
        """gelu_tanh(gate) * up."""
        self._table.geglu(inner, products)

    def add_bias(self, x: Any, bias: Any) -> None:
        """x += bias."""
        x += bias
        stored(x, self._rounding)

    def norm(self, out: Any, x: Any, weight: Any, eps: float) -> None:
        """rms(x; weight), or without a weight where it is None."""
        weight = np.ones(x.shape[1], x.dtype) if weight is None else weight
        rms_norm_ref(out, x, weight, eps, self._rounding)

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> None:
        """x = ln(x; weight, bias) in place."""
        layer_norm_ref(x, x, weight, bias, eps, self._rounding)

    def add_norms(self, residual: Any, outs: Sequence[Any], branch: Any, weight: Any,
                  weights: Sequence[Any], eps: float) -> None:
        """residual += rms(branch; weight), then its norms."""
        self._table.add_norms(residual, outs, branch, weight, weights, eps, 1.0)

    def add_positions(self, x: Any, x_table: Any, y_table: Any, columns: int) -> None:
        """x += the embeddings of each patch's place."""
        add_positions_ref(x, x_table, y_table, columns)

    def rope(self, num_patches: int, columns: int, theta: float, head_dim: int) -> Any:
        """cos and sin of each patch's place."""
        return axial_rope_table(num_patches, columns, theta, head_dim, self._table.dtype)

    def turn_heads(self, qkv: Any, q_norm: Any, k_norm: Any, rope: Any, num_heads: int,
                   eps: float) -> None:
        """Norm and turn the heads in place."""
        cos, sin = rope
        vision_heads_ref(qkv, q_norm, k_norm, cos, sin, num_heads, eps, self._rounding)

    def attend_all(self, out: Any, qkv: Any, num_heads: int) -> None:
        """softmax(q k^T) v."""
        vision_attention_ref(out, qkv, num_heads, self._rounding)

    def pool(self, out: Any, x: Any, columns: int, size: int, scale: float) -> None:
        """Means of blocks."""
        pool_ref(out, x, columns, size, scale)

    def standardize(self, x: Any, bias: Any, scale: Any) -> None:
        """(x - bias) * scale in place."""
        standardize_ref(x, bias, scale, self._rounding)
