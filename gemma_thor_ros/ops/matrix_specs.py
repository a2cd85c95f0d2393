# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The weight-streaming kernels that a generated row needs, with their constants.

For whoever compiles them ahead: the loader, the tests and the record of all architectures.
"""

from __future__ import annotations

from collections.abc import Iterable

from gemma_thor_ros.ops import fragment_order, gemm_bf16, gemm_nvfp4, head_nvfp4, moe_nvfp4
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.row_specs import ROWS, Geometry


def matrix_specs(hidden_size: int, intermediate_size: int, geometries: Iterable[Geometry],
                 experts: tuple[int, int, int] | None, shared_limit: int, hardware: bool,
                 rows: Iterable[int] = ROWS) -> list[KernelSpec]:
    """Every spec of one model with NVFP4 weights and either head, each once.

    experts: (E, K, I) of a mixture, else None. shared_limit: bytes that a block may ask for.
    """
    attended = sorted({shape.num_q_heads * shape.head_dim for shape in geometries})
    specs = [fragment_order.spec(hardware)]
    for count in rows:
        specs += [gemm_nvfp4.spec(columns, count, False, hardware)
                  for columns in (hidden_size, *attended, intermediate_size)]
        specs += [gemm_nvfp4.spec(hidden_size, count, True, hardware),
                  head_nvfp4.spec(hidden_size, count, shared_limit, hardware),
                  gemm_bf16.spec(hidden_size, count, True)]
        if experts:
            num_experts, num_chosen, expert_size = experts
            sizes = (count, num_chosen, num_experts, hardware)
            specs += [moe_nvfp4.gate_up_spec(hidden_size, *sizes),
                      moe_nvfp4.down_spec(expert_size, *sizes),
                      moe_nvfp4.combine_spec(num_chosen)]
    return list(dict.fromkeys(specs))


def draft_specs(columns: Iterable[int], rows: Iterable[int] = ROWS) -> list[KernelSpec]:
    """bf16 projections with these widths: a drafter's."""
    return list(dict.fromkeys(gemm_bf16.spec(width, count, False)
                              for width in columns for count in rows))
