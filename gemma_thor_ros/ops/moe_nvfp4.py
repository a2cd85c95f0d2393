# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The experts of generated rows in NVFP4: gate-up with geglu, down, and the weighted sum.

Three launches, so that whoever norms the sum may read the experts' results itself and leave out
`moe_nvfp4_combine`. Each distinct expert's weights are read once a pass of 16 tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS, Nvfp4Fragments
from gemma_thor_ros.ops.geglu import geglu_ref
from gemma_thor_ros.ops.gemm_nvfp4 import blocks_of
from gemma_thor_ros.ops.linear import StoredWeight, values
from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.shapes import check

MAX_TOKENS = 16                          # of one pass
MAX_PAIRS = 128                          # (token, expert) pairs of one pass
_TILE_BYTES = 576                        # codes and scales
_WARPS = 8                               # of a block
_STAGE_TILES, _STAGES = 4, 3             # of a warp's ring: 54 KB a block, so it fits anywhere
_FEW_STAGES = 2                          # of it for up to 8 tokens, who wait for it less often
_RESIDENT = 2                            # blocks of a multiprocessor at once
KINDS = (1, 8, MAX_TOKENS)               # as many tokens as each kind of launch takes at most
_RESERVED = 1024                         # bytes of shared memory that each block takes besides


class DenseGateUp(NamedTuple):
    """A dense MLP's gate and up, which the launch of the experts' does too."""

    inner: Any                           # (T, DENSE I) bf16, written
    x: Any                               # (T, H) bf16
    weight: Nvfp4Fragments


class DenseDown(NamedTuple):
    """A dense MLP's down; parts[:, j] (T, H) are of columns j I to (j + 1) I, to be added."""

    parts: Any                           # (T, DENSE, H) f32, written
    inner: Any                           # (T, DENSE I) bf16
    weight: Nvfp4Fragments


def dense_parts(dense_size: int, expert_size: int) -> int:
    """Parts of a dense MLP's I that are as long as an expert's; 0: the launches can't take it."""
    fits = dense_size % expert_size == 0 and expert_size % TILE_COLUMNS == 0
    return dense_size // expert_size if fits else 0


def moe_nvfp4_gate_up_ref(inner: Array, x: Array, expert_ids: npt.NDArray[Any],
                          gate: StoredWeight, up: StoredWeight,
                          rounding: Rounding = 'none') -> None:
    """Write inner (T, K, I) from x (T, H); gate and up (E, I, H). Rows with id -1 are left alone.

    'device' rounds both products and geglu's result to bf16.
    """
    for expert in np.unique(expert_ids[expert_ids >= 0]).tolist():
        token, k = np.nonzero(expert_ids == expert)
        matrix = np.concatenate([values(part[expert], x.dtype) for part in (gate, up)])
        product = np.ascontiguousarray(x[token] @ matrix.T)
        stored(product, rounding)
        result = np.empty((token.size, inner.shape[-1]), inner.dtype)
        geglu_ref(result, product, rounding)
        inner[token, k] = result


def moe_nvfp4_down_ref(results: Array, inner: Array, expert_ids: npt.NDArray[Any],
                       down: StoredWeight, rounding: Rounding = 'none') -> None:
    """Write results (T, K, H) from inner (T, K, I); down (E, H, I). 'device' rounds to bf16."""
    for expert in np.unique(expert_ids[expert_ids >= 0]).tolist():
        token, k = np.nonzero(expert_ids == expert)
        product = np.ascontiguousarray(inner[token, k] @ values(down[expert], inner.dtype).T)
        results[token, k] = stored(product, rounding)


def moe_nvfp4_combine_ref(out: Array, results: Array, expert_ids: npt.NDArray[Any],
                          expert_weights: Array) -> None:
    """Write out (T, H), the weighted sum over K, best expert first; never rounded to bf16."""
    out[...] = 0
    for k in range(expert_ids.shape[1]):
        real = expert_ids[:, k] >= 0
        out[real] += expert_weights[real, k, None] * results[real, k]


def moe_nvfp4_gate_up(inner: Any, x: Any, expert_ids: Any, weight: Nvfp4Fragments,
                      stream: Any, dense: DenseGateUp | None = None) -> None:
    """Enqueue inner (T, K, I) bf16 from x (T, H) bf16, expert_ids (T, K) i32 (-1: padding).

    With dense T is at most MAX_TOKENS.
    """
    assert weight.interleaved
    sizes = check('moe_nvfp4_gate_up', {'I': weight.num_outputs, 'H': weight.columns},
                  inner=inner, x=x, expert_ids=expert_ids)
    given, parts = dense or DenseGateUp(inner, x, weight), 0     # not looked at without dense
    if dense:
        parts = _check_gate_up(sizes['T'], weight, dense)
    for start in range(0, sizes['T'], MAX_TOKENS):
        rows = slice(start, min(start + MAX_TOKENS, sizes['T']))
        num_tokens = rows.stop - start
        kernel = device.compiled(gate_up_spec(
            weight.columns, num_tokens, sizes['K'], weight.num_experts,
            device.has_e2m1_conversion(), parts))
        tiles = weight.num_row_tiles
        items = (most_experts(num_tokens, sizes['K'], weight) + parts) * tiles
        launch(kernel, items,
                (inner[rows], given.inner, x[rows], given.x, expert_ids[rows], *arrays(weight),
                 *arrays(given.weight), num_tokens * sizes['K'], tiles), stream)


def moe_nvfp4_down(results: Any, inner: Any, expert_ids: Any, weight: Nvfp4Fragments,
                   stream: Any, dense: DenseDown | None = None) -> None:
    """Enqueue results (T, K, H) bf16 from inner (T, K, I) bf16; right behind moe_nvfp4_gate_up.

    With dense T is at most MAX_TOKENS.
    """
    assert not weight.interleaved
    sizes = check('moe_nvfp4_down', {'H': weight.num_outputs, 'I': weight.columns},
                  results=results, inner=inner, expert_ids=expert_ids)
    given, parts = dense or DenseDown(results, inner, weight), 0
    if dense:
        parts = _check_down(sizes['T'], weight, dense)
    for start in range(0, sizes['T'], MAX_TOKENS):
        rows = slice(start, min(start + MAX_TOKENS, sizes['T']))
        num_tokens = rows.stop - start
        kernel = device.compiled(down_spec(
            weight.columns, num_tokens, sizes['K'], weight.num_experts,
            device.has_e2m1_conversion(), parts))
        tiles = weight.num_row_tiles
        items = (most_experts(num_tokens, sizes['K'], weight) + parts) * tiles
        launch(kernel, items,
                (results[rows], given.parts, inner[rows], given.inner, expert_ids[rows],
                 *arrays(weight), *arrays(given.weight), num_tokens * sizes['K'], tiles,
                 weight.num_outputs), stream)


def moe_nvfp4_combine(out: Any, results: Any, expert_ids: Any, expert_weights: Any,
                      stream: Any) -> None:
    """Enqueue out (T, H) f32, the weighted sum of results (T, K, H) bf16; H even."""
    sizes = check('moe_nvfp4_combine', out=out, results=results, expert_ids=expert_ids,
                  expert_weights=expert_weights)
    assert sizes['H'] % 2 == 0, sizes
    kernel = device.compiled(combine_spec(sizes['K']))
    device.launch(kernel, (-(-sizes['H'] // 512), sizes['T']), 256,
                  (out, results, expert_ids, expert_weights, sizes['H'] // 2), stream)


def check_dense(num_tokens: int, gate_up: Nvfp4Fragments, down: Nvfp4Fragments,
                dense: tuple[DenseGateUp, DenseDown]) -> int:
    """Parts of a dense MLP that launches of these experts can do too; its shapes are right."""
    parts = _check_gate_up(num_tokens, gate_up, dense[0])
    assert parts == _check_down(num_tokens, down, dense[1]), parts
    return parts


def _check_gate_up(num_tokens: int, weight: Nvfp4Fragments, dense: DenseGateUp) -> int:
    assert num_tokens <= MAX_TOKENS and dense.weight.interleaved, num_tokens
    parts = dense_parts(dense.weight.num_outputs, weight.num_outputs)
    assert parts, (dense.weight.num_outputs, weight.num_outputs)
    check('gemm_nvfp4', {'N': dense.weight.num_outputs, 'M': weight.columns, 'T': num_tokens},
          out=dense.inner, x=dense.x)
    return parts


def _check_down(num_tokens: int, weight: Nvfp4Fragments, dense: DenseDown) -> int:
    assert num_tokens <= MAX_TOKENS and not dense.weight.interleaved, num_tokens
    parts = check('dense_parts', {'H': weight.num_outputs, 'T': num_tokens,
                                  'M': dense.weight.columns},
                  parts=dense.parts, inner=dense.inner)['J']
    assert parts == dense_parts(dense.weight.columns, weight.columns), parts
    assert dense.weight.num_outputs == weight.num_outputs, dense.weight.num_outputs
    return parts


def arrays(weight: Nvfp4Fragments) -> tuple[Any, Any, Any]:
    """In the order of the entries."""
    return weight.codes, weight.scales, weight.row_scales


def launch(kernel: Any, items: int, args: tuple[Any, ...], stream: Any) -> None:
    """As many blocks as the device holds at once share the items; no more blocks than items."""
    constants, info = dict(kernel.spec.defines), device.info()
    num_bytes = shared_bytes(constants)
    fitting = (info.shared_bytes_per_block + _RESERVED) // (
        num_bytes + fixed_bytes(constants) + _RESERVED)
    resident = max(1, min(constants['MIN_BLOCKS'], fitting))
    device.launch(kernel, (min(items, info.num_multiprocessors * resident),),
                  constants['WARPS'] * 32, args, stream, num_bytes)


def shared_bytes(constants: dict[str, int]) -> int:
    """Dynamic shared memory of a block: its warps' rings."""
    stage = constants['STAGE_TILES'] * _TILE_BYTES + 16          # with two scales of rows
    return constants['WARPS'] * constants['STAGES'] * stage


def fixed_bytes(constants: dict[str, int]) -> int:
    """At least its other shared memory: the routing, and what pairs of warps exchange."""
    halves = 512 * constants['WARPS'] * constants['BLOCKS'] * (constants['SPLIT'] - 1)
    return 1024 + 12 * constants['NUM_EXPERTS'] + halves


def most_experts(num_tokens: int, num_chosen: int, weight: Nvfp4Fragments) -> int:
    """As many distinct experts as these tokens can have."""
    assert num_tokens * num_chosen <= MAX_PAIRS, (num_tokens, num_chosen)
    return min(num_tokens * num_chosen, weight.num_experts)


def gate_up_spec(columns: int, num_tokens: int, num_chosen: int, num_experts: int,
                 hardware: bool, dense: int = 0, **override: int) -> KernelSpec:
    """What is compiled for gate-up; dense: parts of the dense MLP that the launch does too.

    A row's sums run over the columns of each half in their order, whatever else is chosen here.
    """
    constants = {**_constants(0, columns, num_tokens, num_chosen, num_experts, hardware, dense),
                 'SPLIT': 2 if columns % (2 * TILE_COLUMNS) == 0 else 1,
                 'FETCH_DENSE': int(dense > 0), 'WIDE': 3, 'NARROW': 2,
                 'WARM': int(blocks_of(num_tokens) > 1)}         # few rows are listed soon
    return KernelSpec.of('moe_nvfp4', 'moe_nvfp4_gate_up', **{**constants, **override})


def down_spec(columns: int, num_tokens: int, num_chosen: int, num_experts: int, hardware: bool,
              dense: int = 0, **override: int) -> KernelSpec:
    """What is compiled for down; dense as in gate_up_spec."""
    constants = _constants(1, columns, num_tokens, num_chosen, num_experts, hardware, dense)
    # few rows have few items a warp: each stage's instructions are waited for as often as run
    constants['ONE_BODY'] = int(blocks_of(num_tokens) == 1)
    return KernelSpec.of('moe_nvfp4', 'moe_nvfp4_down', **{**constants, **override})


def _constants(entry: int, columns: int, num_tokens: int, num_chosen: int, num_experts: int,
               hardware: bool, dense: int) -> dict[str, int]:
    blocks = blocks_of(num_tokens)
    return {
        'ENTRY': entry, 'COLUMNS': columns, 'COLUMN_TILES': -(-columns // TILE_COLUMNS),
        'WARPS': _WARPS, 'MIN_BLOCKS': _RESIDENT, 'STAGE_TILES': _STAGE_TILES,
        'STAGES': _STAGES if blocks > 1 else _FEW_STAGES,
        'SPLIT': 1, 'ACTIVATIONS': 4, 'WIDE_ACTIVATIONS': 2, 'ONE_BODY': 0,
        'WIDE': 5, 'NARROW': 4, 'BLOCKS': blocks, 'CHOSEN': num_chosen,
        'NUM_EXPERTS': num_experts, 'E2M1_HARDWARE': int(hardware), 'DENSE': dense}


def combine_spec(num_chosen: int) -> KernelSpec:
    """What is compiled for the sum."""
    return KernelSpec.of('moe_nvfp4', 'moe_nvfp4_combine', ENTRY=2, CHOSEN=num_chosen)


def bytes_moved(num_tokens: int, num_chosen: int, distinct_experts: int, hidden_size: int,
                intermediate_size: int) -> int:
    """The chosen experts' weights once; rows in and out of every expert, combine's included."""
    pairs = num_tokens * num_chosen
    weights = distinct_experts * 27 * hidden_size * intermediate_size // 16
    return weights + 2 * pairs * (3 * hidden_size + 2 * intermediate_size) + (
        num_tokens * hidden_size * 4)
