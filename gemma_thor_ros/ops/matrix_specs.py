# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The weight-streaming kernels that a generated row needs, with their constants.

For whoever compiles them ahead: the loader, the tests and the record of all architectures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gemma_thor_ros.ops import (
    fragment_order,
    gemm_bf16,
    gemm_nvfp4,
    head_nvfp4,
    moe_chain,
    moe_nvfp4,
)
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import row_tiles
from gemma_thor_ros.ops.row_specs import Geometry

ROWS = (1, 8, 16)                        # one row alone, and the most of either kind in company


def matrix_specs(hidden_size: int, intermediate_size: int, geometries: Iterable[Geometry],
                 experts: tuple[int, int, int] | None, shared_limit: int, hardware: bool,
                 multiprocessors: int, rows: Iterable[int] = ROWS, *,
                 twins: bool = False) -> list[KernelSpec]:
    """Every spec of one model with NVFP4 weights and either head, each once.

    experts: (E, K, I) of a mixture, else None. shared_limit: bytes that a block may ask for.
    multiprocessors: of the device.
    twins: also the experts' one launch, which steps leave alone (CudaOps.chained).
    """
    matrices = [(intermediate_size, hidden_size)]      # (M, N)
    for shape in geometries:
        heads = shape.num_q_heads + shape.num_kv_heads * (2 if shape.has_v_proj else 1)
        matrices += [(hidden_size, heads * shape.head_dim),
                     (shape.num_q_heads * shape.head_dim, hidden_size)]
    specs = [fragment_order.spec(hardware)]
    for count in rows:
        uses = [(*matrix, False) for matrix in matrices]
        for columns, outputs, pair in [*uses, (hidden_size, intermediate_size, True)]:
            specs.append(gemm_nvfp4.served_spec(columns, count, pair, hardware,
                                                row_tiles(outputs, pair), shared_limit,
                                                multiprocessors))
        specs += [head_nvfp4.served_spec(hidden_size, count, shared_limit, hardware,
                                         multiprocessors=multiprocessors),
                  gemm_bf16.spec(hidden_size, count, True)]
    if experts:
        num_experts, num_chosen, expert_size = experts
        parts = moe_nvfp4.dense_parts(intermediate_size, expert_size)
        for count in moe_nvfp4.KINDS:
            sizes = (count, num_chosen, num_experts, hardware)
            for dense in sorted({0, parts}):         # 0: beside a dense MLP in bf16
                specs += [moe_nvfp4.gate_up_spec(hidden_size, *sizes, dense),
                          moe_nvfp4.down_spec(expert_size, *sizes, dense)]
                if twins:
                    specs.append(moe_chain.spec(hidden_size, expert_size, *sizes, dense))
        specs.append(moe_nvfp4.combine_spec(num_chosen))
    return list(dict.fromkeys(specs))


def bf16_specs(shapes: Mapping[str, tuple[int, ...]], shared_limit: int,
               rows: Iterable[int] = ROWS) -> list[KernelSpec]:
    """Every spec of matrices that a checkpoint left in bf16, each once.

    shapes: name -> (N, M) of those of the layers, experts and routers left out. As in
    cuda_weights.py q, k and v lie in one, and gate and up.
    """
    uses: dict[tuple[int, int], None] = {}               # N, M
    for name, (outputs, columns) in shapes.items():
        stem, _, kind = name.rpartition('.')
        if kind in ('q_proj', 'gate_proj'):
            beside = ('k_proj', 'v_proj') if kind == 'q_proj' else ('up_proj',)
            outputs += sum(shapes[other][0] for other in (f'{stem}.{part}' for part in beside)
                           if other in shapes)
        elif kind not in ('o_proj', 'down_proj'):
            continue
        uses[outputs, columns] = None
    return list(dict.fromkeys(
        gemm_bf16.served_spec(columns, outputs, count, 'none', shared_limit)
        for count in rows for outputs, columns in uses))
