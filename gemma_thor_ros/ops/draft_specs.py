# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The kernels that a drafter needs beside its target's, with their constants.

For whoever compiles them ahead: the loader, the tests and the record of all architectures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gemma_thor_ros.ops import (
    attention_decode,
    draft_attention,
    draft_context,
    draft_heads,
    draft_pick,
    draft_rows,
    embed,
    gemm_bf16,
    head_nvfp4,
    rms_norm,
    slot_copy,
)
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.row_specs import ROWS, Geometry

_COPIES = ('slot_in', 'slot_out')
_PICKS = ('draft_accept', 'draft_confidence')


class Block(Protocol):
    """What decides a DFlash drafter's kernels, as models/draft_config.DFlashConfig has it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def layer_types(self) -> tuple[str, ...]: ...
    @property
    def sliding_window(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def target_layer_ids(self) -> tuple[int, ...]: ...
    @property
    def causal_layers(self) -> tuple[bool, ...]: ...


def dflash_specs(config: Block, page_size: int, shared_limit: int,
                 rows: Iterable[int] = ROWS) -> list[KernelSpec]:
    """Every spec of a DFlash drafter but those of its target's head, each once.

    shared_limit: bytes that a block may ask for.
    """
    hidden, heads, kv_heads, dim = (config.hidden_size, config.num_attention_heads,
                                    config.num_key_value_heads, config.head_dim)
    specs = [*map(draft_pick.spec, _PICKS), *map(slot_copy.spec, _COPIES)]
    specs += [
        draft_rows.spec('draft_tap', hidden),
        draft_rows.spec('draft_add_norm', hidden, mode='add'),
        draft_rows.spec('draft_add_norm', hidden, mode='leave'), embed.spec(hidden),
        rms_norm.spec('rms_norm', hidden, outputs=1),
        draft_context.spec(dim, dim // 2, kv_heads, page_size),
        draft_heads.spec(dim, heads, kv_heads, heads + 2 * kv_heads, dim // 2)]
    inner, kv_rows = config.intermediate_size, 2 * kv_heads * dim
    products = [(heads * dim + kv_rows, hidden), (hidden, heads * dim), (hidden, inner),
                (hidden, len(config.target_layer_ids) * hidden),
                (len(config.layer_types) * kv_rows, hidden)]
    specs += [gemm_bf16.served_spec(columns, outputs, count, 'none', shared_limit)
              for count in rows for outputs, columns in products]
    specs.append(gemm_bf16.served_spec(hidden, inner, 16, 'silu', shared_limit))
    for kind, causal in zip(config.layer_types, config.causal_layers, strict=True):
        window = config.sliding_window if kind.startswith('sliding') else None
        specs += [draft_attention.spec(entry, dim, kv_heads, heads // kv_heads,
                                       config.block_size, page_size, window, causal)
                  for entry in ('draft_attention', 'draft_attention_combine')]
    return list(dict.fromkeys(specs))


class Assistant(Protocol):
    """What decides an assistant's kernels, as models/draft_config.MtpConfig has it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def backbone_hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def layer_types(self) -> tuple[str, ...]: ...
    def geometry(self, kind: str) -> Geometry: ...


def mtp_specs(config: Assistant, windows: dict[str, int | None], page_size: int, fp8: bool,
              shared_limit: int, hardware: bool) -> list[KernelSpec]:
    """Every spec of an assistant, each once. windows: the target's, by layer type."""
    hidden, backbone = config.hidden_size, config.backbone_hidden_size
    specs = [*map(draft_pick.spec, _PICKS), *map(slot_copy.spec, _COPIES)]
    specs += [
        draft_rows.spec('draft_keep', backbone, page_size=page_size),
        draft_rows.spec('draft_join', backbone, page_size=page_size, from_pages=True),
        draft_rows.spec('draft_join', backbone), draft_rows.spec('draft_add_norm', hidden),
        rms_norm.spec('rms_norm_add', hidden, outputs=1),
        gemm_bf16.served_spec(hidden, config.intermediate_size, 1, 'gelu', shared_limit),
        gemm_bf16.spec(hidden, 1, True),
        head_nvfp4.served_spec(hidden, 1, shared_limit, hardware)]
    products = [(hidden, 2 * backbone), (backbone, hidden), (hidden, config.intermediate_size)]
    for kind in sorted(set(config.layer_types)):
        shape = config.geometry(kind)
        q_size = shape.num_q_heads * shape.head_dim
        products += [(q_size, hidden), (hidden, q_size)]
        specs.append(draft_heads.spec(shape.head_dim, shape.num_q_heads, 0, shape.num_q_heads,
                                      shape.num_rotary_pairs))
        specs += attention_decode.decode_specs(
            shape.head_dim, shape.num_q_heads // shape.num_kv_heads, shape.num_kv_heads, page_size,
            windows[kind], fp8, (1,))
    specs += [gemm_bf16.served_spec(columns, outputs, 1, 'none', shared_limit)
              for outputs, columns in products]
    return list(dict.fromkeys(specs))
