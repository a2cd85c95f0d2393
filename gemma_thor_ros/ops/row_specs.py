# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The kernels that a generated row needs beside the matrix products, with their constants.

For whoever compiles them ahead: the loader, the tests and the record of all architectures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gemma_thor_ros.ops import (
    attention_decode,
    embed,
    geglu,
    kv_append,
    moe_route,
    rms_norm,
    sample,
    slot_copy,
)
from gemma_thor_ros.ops.compile import KernelSpec

ROWS = (1, 16)                           # the fewest and the most rows of one sequence


class Geometry(Protocol):
    """What the layers of one type share, as models/config.LayerGeometry has it."""

    @property
    def num_q_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def window(self) -> int | None: ...
    @property
    def num_rotary_pairs(self) -> int: ...
    @property
    def has_v_proj(self) -> bool: ...


def row_specs(hidden_size: int, intermediate_size: int, geometries: Iterable[Geometry],
              experts: tuple[int, int] | None, page_size: int, fp8: bool,
              rows: Iterable[int] = ROWS, parts: int = 0) -> list[KernelSpec]:
    """Every spec of one model, each once.

    experts: (E, K) of a mixture, else None; parts: moe_nvfp4.dense_parts of its dense MLP.
    """
    rows = tuple(rows)
    specs = [embed.spec(hidden_size), geglu.spec(intermediate_size),
             rms_norm.spec('rms_norm', hidden_size, outputs=1),
             rms_norm.spec('rms_norm_add', hidden_size, outputs=3 if experts else 1)]
    if experts:
        specs += [rms_norm.spec('rms_norm_sum_add', hidden_size, outputs=1, a_float=count > 0,
                                num_chosen=experts[1], parts=count)
                  for count in sorted({0, parts})]
        specs += [moe_route.spec(hidden_size, *experts)]
        specs += moe_route.add_specs(hidden_size, *experts, rows)
    else:
        specs.append(rms_norm.spec('rms_norm_add', hidden_size, outputs=1))
    for shape in geometries:
        specs.append(kv_append.spec(
            shape.head_dim, shape.num_q_heads, shape.num_kv_heads, shape.has_v_proj,
            shape.num_rotary_pairs, page_size, fp8))
        sizes = (shape.head_dim, shape.num_q_heads // shape.num_kv_heads, shape.num_kv_heads,
                 page_size, shape.window, fp8)
        specs += attention_decode.decode_specs(*sizes, rows)
        specs += attention_decode.append_specs(*sizes, shape.has_v_proj, shape.num_rotary_pairs)
    specs += [slot_copy.spec('slot_in'), *sample.specs()]
    return list(dict.fromkeys(specs))
