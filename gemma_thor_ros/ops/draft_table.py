# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What models/dflash and models/mtp ask of a device, and the CPU's filling of it.

Drafts never decide which tokens come out, so these ops need not be row-invariant: a product runs
over all rows at once. They round where the target's ops round. Arrays are opaque to the caller
except for their shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from gemma_thor_ros.ops.attention import AttentionSpan, attention_ref, plan_attention
from gemma_thor_ros.ops.embed import embed_ref
from gemma_thor_ros.ops.geglu import geglu_ref
from gemma_thor_ros.ops.kv_append import PageRows, norm_rope_ref, rope_table
from gemma_thor_ros.ops.linear import LinearWeight, TableWeight
from gemma_thor_ros.ops.rms_norm import rms_norm_add_ref, rms_norm_ref
from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.ops.swiglu import swiglu_ref

Rope = tuple[Array, Array]


class DraftOps:
    """The drafters' ops on the CPU, in one numeric mode. One thread may use it."""

    def __init__(self, dtype: npt.DTypeLike, rounding: Rounding, num_threads: int = 1) -> None:
        self.dtype = np.dtype(dtype)
        self.rounding: Rounding = rounding
        self._scratch = Scratch(dtype)
        self._num_threads = num_threads
        self._blas = ThreadpoolController().select(user_api='blas')

    def scope(self) -> Any:
        """A context manager around one call of a drafter."""
        return self._blas.limit(limits=self._num_threads)

    def place(self, rows: npt.NDArray[np.int64], num_rows: int, values: Array) -> Array:
        """(num_rows, N) zeros with values (n, N) in the given rows."""
        out = np.zeros((num_rows, values.shape[1]), self.dtype)
        out[rows] = values
        return out

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """Rows side by side: (T, H) each -> (T, n H), stored."""
        return stored(np.concatenate(parts, axis=-1, dtype=self.dtype), self.rounding)

    def embed(self, token_ids: npt.NDArray[Any], table: TableWeight, scale: float) -> Array:
        """(T,) -> (T, H), scaled by the target's factor."""
        out = np.empty((token_ids.size, table.linear.shape[1]), self.dtype)
        embed_ref(out, token_ids, table, scale, self.rounding)
        return out

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """rms(x; weight) of rows (T, H)."""
        out = np.empty_like(x)
        rms_norm_ref(out, x, weight, eps, self.rounding)
        return out

    def add(self, residual: Array, branch: Array) -> None:
        """residual += branch, never rounded."""
        residual += branch

    def add_norm(self, residual: Array, branch: Array, weight: Array, eps: float,
                 scale: float) -> None:
        """residual = (residual + rms(branch; weight)) * scale, never rounded."""
        rms_norm_add_ref(residual, branch, weight, eps, scale, scratch=self._scratch)

    def linear(self, x: Array, weight: LinearWeight, start: int = 0,
               stop: int | None = None) -> Array:
        """x (T, M) by rows start .. stop - 1 of weight (N, M), stored."""
        return stored(self._product(x, weight, start, stop), self.rounding)

    def rope(self, positions: npt.NDArray[Any], theta: float, head_dim: int,
             num_pairs: int) -> Rope:
        """cos and sin of positions (T,)."""
        return rope_table(positions, theta, head_dim, num_pairs, self.dtype)

    def norm_rope(self, heads: Array, weight: Array, rope: Rope, eps: float,
                  scale: float = 1.0) -> Array:
        """rope(rms(heads; weight)) * scale of heads (T, N, D), weight (D,), stored."""
        out = norm_rope_ref(heads, weight, *rope, eps, scratch=self._scratch)
        if scale != 1.0:
            out *= out.dtype.type(scale)
        return stored(out, self.rounding)

    def write_pages(self, pages: Array, values: Array, where: PageRows) -> None:
        """Put values[rows] (n, KV, D) into slots of pages (P, S, KV, D)."""
        pages[where.pages, where.slots] = values[where.rows]

    def copy_pages(self, pages: Array, sources: npt.NDArray[Any],
                   targets: npt.NDArray[Any]) -> None:
        """Copy whole pages."""
        pages[targets] = pages[sources]

    def plan_attention(self, spans: Sequence[AttentionSpan], window: int | None, page_size: int,
                       group: int) -> Any:
        """Prepare the attention of a draft's rows."""
        return plan_attention([(span, True) for span in spans], window, page_size, group,
                              self.dtype)

    def attention(self, q: Array, k_pages: Array, v_pages: Array, plan: Any) -> Array:
        """softmax(q k^T) v of q (T, Q, D) -> (T, Q D)."""
        out = np.empty_like(q)
        attention_ref(out, q, k_pages, v_pages, plan, scratch=self._scratch,
                      rounding=self.rounding)
        return out.reshape(q.shape[0], -1)

    def swiglu(self, gate_up: Array) -> Array:
        """silu(gate) * up of (T, 2I)."""
        out = np.empty((gate_up.shape[0], gate_up.shape[1] // 2), self.dtype)
        swiglu_ref(out, gate_up, self.rounding)
        return out

    def geglu(self, gate_up: Array) -> Array:
        """gelu_tanh(gate) * up of (T, 2I)."""
        out = np.empty((gate_up.shape[0], gate_up.shape[1] // 2), self.dtype)
        geglu_ref(out, gate_up, self.rounding)
        return out

    def head(self, x: Array, table: TableWeight, softcap: float | None) -> Array:
        """Logits (R, V) of normed rows, with a cap or none; not rounded."""
        logits = self._product(x, table.linear)
        if softcap is not None:
            logits /= logits.dtype.type(softcap)
            np.tanh(logits, out=logits)
            logits *= logits.dtype.type(softcap)
        return logits

    def _product(self, x: Array, weight: LinearWeight, start: int = 0,
                 stop: int | None = None) -> Array:
        stop = weight.shape[0] if stop is None else stop
        out = np.empty((x.shape[0], stop - start), self.dtype)
        for low, high in weight.blocks:
            low, high = max(low, start), min(high, stop)
            if low < high:
                np.matmul(x, weight.rows(low, high).T, out=out[:, low - start:high - start])
        return out
