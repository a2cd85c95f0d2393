# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Embedding rows from the tied table in MLX affine codes, in the order in which the head reads it.

The twin is embed_ref, which takes any stored table.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.affine_order import AffineFragments
from gemma_thor_ros.ops.compile import KernelSpec


def embed_affine(hidden: Any, token_ids: Any, table: AffineFragments, scale: float,
                 stream: Any) -> None:
    """Enqueue hidden (T, H) f32 from token_ids (T,) i32 and the table (V, H).

    The first launch of a step, as embed.embed is, and like it does not overlap the one before.
    """
    num_tokens, width = hidden.shape
    assert width == table.columns and token_ids.shape == (num_tokens,), (
        hidden.shape, table.columns, token_ids.shape)
    kernel = device.compiled(spec(width, table.bits, table.group_size))
    device.launch(kernel, (num_tokens,), -(-width // 256) * 32,
                  (hidden, token_ids, table.words, table.scales, float(scale)), stream,
                  overlap=False)


def spec(hidden_size: int, bits: int, group_size: int) -> KernelSpec:
    """What is compiled for H columns."""
    assert hidden_size % group_size == 0 and hidden_size <= 8192, (hidden_size, group_size)
    return KernelSpec.of('embed_affine', H=hidden_size, BITS=bits, GROUP=group_size)


def bytes_moved(num_tokens: int, hidden_size: int, bits: int, group_size: int) -> int:
    """Rows read and rows written."""
    read = hidden_size * bits // 8 + hidden_size // group_size * 4
    return num_tokens * (read + hidden_size * 4)
