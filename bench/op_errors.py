# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Errors of the ops on a CUDA device against float64 on the same operands, at the served shapes.

    python bench/op_errors.py --receipt FILE.json --commit $(git rev-parse HEAD)
    python bench/op_errors.py --only products,rows,attention

Products and row ops: the largest of (|error| - half a step of the result's type) / sum |terms|, so
without the final rounding. Attention, which rounds its probabilities too: the relative 2-norm.
Every case runs twice, the first time only to learn which kernels to compile.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import kernels

sys.path[:0] = [str(kernels.ROOT / 'test' / 'kernels')]

import affine_cases  # noqa: E402
import cases  # noqa: E402
import machine as machines  # noqa: E402
import test_attention_decode as decode  # noqa: E402
import test_kv_append as appended  # noqa: E402
import test_prefill_attention as prompts  # noqa: E402
import test_rms_norm as norms  # noqa: E402

from gemma_thor_ros.ops import (  # noqa: E402
    affine_order,
    device,
    fragment_order,
    geglu,
    gemm_affine,
    gemm_nvfp4,
    prefill_gemm,
    rms_norm,
)

# (N, M) of each model; the heads cut to so many rows
SHAPES = {
    '26b': {'qkv': (8192, 2816), 'o sliding': (2816, 4096), 'o full': (2816, 8192),
            'down': (2816, 2112), 'head': (32768, 2816)},
    '31b': {'qkv': (16384, 5376), 'o sliding': (5376, 8192), 'o full': (5376, 16384),
            'down': (5376, 21504), 'head': (32768, 5376)},
    '12b': {'qkv': (8192, 3840), 'o sliding': (3840, 4096), 'o full': (3840, 8192),
            'down': (3840, 15360), 'head': (32768, 3840)}}
EDGES = [(bits, group) for bits in affine_order.BITS for group in affine_order.GROUPS]
GEOMETRIES = {
    '26b sliding': decode.SLIDING, '26b full': decode.FULL, '12b full': decode.ONE_HEAD,
    '31b sliding': decode.Geometry(256, 16, 2, 1024), '31b full': decode.Geometry(512, 4, 8, None)}
BF16, F32 = 8, 24                        # significant bits
EXCESS, NORM = '(|error| - half a step) / sum |terms|', 'relative 2-norm'
Judge = Callable[[], float]
Case = tuple[dict[str, Any], str, Callable[[], Judge]]


def excess(xp: Any, out: Any, exact: Any, terms: Any, bits: int) -> float:
    """The most that an error is above the final rounding's, in parts of the terms."""
    half = xp.ldexp(xp.full(exact.shape, 0.5), xp.frexp(exact)[1] - bits)
    return float((xp.maximum(xp.abs(out - exact) - half, 0) / terms).max())


def products(cp: Any, stream: Any) -> Iterator[Case]:
    """MLX affine and NVFP4, one row and nine, and prompts; each width and group at a tile edge."""
    for model, shapes in SHAPES.items():
        for name, shape in shapes.items():
            context = {'layer': f'{model} {name}'}
            for bits in (4, 8):
                for rows in (1, 9):
                    yield ({'op': 'gemm_affine', **context, 'bits': bits, 'group': 64,
                            'rows': rows}, EXCESS,
                           partial(affine_sums, cp, stream, shape, bits, 64, rows))
            if name == 'head':
                continue
            for rows in (1, 9, 100):
                yield ({'op': 'gemm_nvfp4' if rows < 17 else 'prefill_gemm', **context,
                        'rows': rows}, EXCESS, partial(nvfp4_rows, cp, stream, shape, rows))
    for bits, group in EDGES:
        yield ({'op': 'gemm_affine', 'layer': 'edge', 'bits': bits, 'group': group, 'rows': 9},
               EXCESS, partial(affine_sums, cp, stream, (40, 3 * group), bits, group, 9))


def affine_sums(cp: Any, stream: Any, shape: tuple[int, int], bits: int, group: int,
                num_rows: int) -> Judge:
    """The head's form gives sums before any rounding, with a cap that changes nothing."""
    weight = affine_cases.random_affine(cp, 1, shape, bits, group)
    made = affine_order.to_affine([weight], stream=stream)
    x = cases.random_rows(cp, (num_rows, shape[1]), 4)
    x[-1] &= 0x7FFF                      # one sign: the groups' sums are large
    sums = cases.poisoned(cp, (num_rows, shape[0]), 'f32')
    _settle(cp, stream, lambda: gemm_affine.head_affine(sums, x, made, 1e6, stream))

    def judge() -> float:
        rows, worst = cases.from_bf16(cp, x), 0.0
        for start in range(0, shape[0], 8192):
            part = slice(start, min(start + 8192, shape[0]))
            values = weight.values(cp, part)
            exact, terms = rows @ values.T, cp.abs(rows) @ cp.abs(values).T
            # tanhf and two roundings stand behind the sums
            worst = max(worst, excess(cp, sums[:, part], exact, terms + 0.1 * cp.abs(exact), F32))
        return worst
    return judge


def nvfp4_rows(cp: Any, stream: Any, shape: tuple[int, int], num_rows: int) -> Judge:
    weight = cases.random_weight(cp, shape, 2, (0x28, 0x48), 0.01)
    made = fragment_order.to_fragments([weight], stream=stream)
    x = cases.random_rows(cp, (num_rows, shape[1]), 5)
    out = cases.poisoned(cp, (num_rows, shape[0]), 'bf16')
    run = gemm_nvfp4.gemm_nvfp4 if num_rows < 17 else prefill_gemm.prefill_gemm
    _settle(cp, stream, lambda: run(out, x, made, stream))

    def judge() -> float:
        rows, matrix = cases.from_bf16(cp, x), cases.dequantized(cp, weight)
        return excess(cp, cases.from_bf16(cp, out), rows @ matrix.T,
                      cp.abs(rows) @ cp.abs(matrix).T, BF16)
    return judge


def _settle(cp: Any, stream: Any, launch: Callable[[], None]) -> None:
    cp.cuda.runtime.deviceSynchronize()
    launch()
    stream.synchronize()


def row_ops(on: machines.Machine) -> Iterator[Case]:
    """Norms, gelu, and the norms, rope and rounding of q, k and v."""
    for model, width, inner in (('26b', 2816, 2112), ('31b', 5376, 21504), ('12b', 3840, 15360)):
        for rows in (1, 16):
            yield ({'op': 'rms_norm', 'layer': model, 'rows': rows}, EXCESS,
                   partial(normed, on, width, rows))
            yield ({'op': 'rms_norm_add', 'layer': model, 'rows': rows}, EXCESS,
                   partial(added, on, width, rows))
            yield ({'op': 'geglu', 'layer': model, 'rows': rows}, EXCESS,
                   partial(gated, on, inner, rows))
    for name, shape in {'26b sliding': appended.SLIDING, '26b full': appended.FULL,
                        '31b sliding': appended.Geometry(256, 32, 16, True, 128, 1e4),
                        '31b full': appended.Geometry(512, 32, 4, False, 64, 1e6),
                        '12b full': appended.Geometry(512, 16, 1, False, 64, 1e6)}.items():
        for far in (20, 262143):
            yield ({'op': 'kv_append', 'layer': name, 'position': far}, EXCESS,
                   partial(heads, on, shape, far))


def normed(on: machines.Machine, width: int, num_rows: int) -> Judge:
    rows = norms.Rows(on, num_rows, width, 1)
    on.run(lambda: rms_norm.rms_norm(rows.out, rows.residual, rows.on[3:], norms.EPS, on.stream))
    exact = norms.rms(rows.x, rows.weights[3])
    return lambda: excess(np, machines.from_bf16(on.get(rows.out[0])), exact, np.abs(exact), BF16)


def added(on: machines.Machine, width: int, num_rows: int) -> Judge:
    rows = norms.Rows(on, num_rows, width, 1)
    on.run(lambda: rms_norm.rms_norm_add(rows.residual, rows.out, on.put(rows.a), rows.on[0],
                                         rows.on[3:], norms.EPS, 0.75, on.stream))
    branch = norms.rms(machines.from_bf16(rows.a), rows.weights[0])
    return lambda: excess(np, on.get(rows.residual).astype(np.float64), (rows.x + branch) * 0.75,
                          (np.abs(rows.x) + np.abs(branch)) * 0.75, F32)


def gated(on: machines.Machine, width: int, num_rows: int) -> Judge:
    gate_up = machines.to_bf16(3 * machines.normal(2, num_rows, 2 * width))
    out = on.put(machines.poisoned((num_rows, width), 'bf16'))
    on.run(lambda: geglu.geglu(out, on.put(gate_up), on.stream))

    def judge() -> float:
        exact = np.empty((num_rows, width))
        wide = machines.from_bf16(gate_up)
        geglu.geglu_ref(exact, wide)
        terms = np.abs(wide[:, :width] * wide[:, width:]) / 2    # 1 + tanh cancels where z < 0
        return excess(np, machines.from_bf16(on.get(out)), exact, terms, BF16)
    return judge


def heads(on: machines.Machine, shape: appended.Geometry, far: int) -> Judge:
    """q, k and v in bf16; the terms are the largest number of the head."""
    step = appended.Step(shape, 7, 64, far)
    q, k_pages, v_pages = step.run(on, False)

    def judge() -> float:
        exact = step.expected()
        found = q[step.rows], *(pages[step.pages, step.slots] for pages in (k_pages, v_pages))
        wanted = exact[0][step.rows], *exact[1:]
        return max(excess(np, machines.from_bf16(ours), theirs,
                          np.abs(theirs).max(-1, keepdims=True), BF16)
                   for ours, theirs in zip(found, wanted, strict=True))
    return judge


def attention(on: machines.Machine) -> Iterator[Case]:
    """Generated rows, 1 and 16 of them, and 129 of a prompt, over bf16 and FP8 pages."""
    for name, shape in GEOMETRIES.items():
        for fp8 in (False, True):
            context = {'layer': name, 'kv': 'fp8' if fp8 else 'bf16'}
            for rows in (1, 16):
                yield ({'op': 'attention_decode', **context, 'rows': rows, 'depth': 1500}, NORM,
                       partial(generated, on, shape, fp8, rows))
            yield ({'op': 'prefill_attention', **context, 'rows': 129, 'depth': 1000}, NORM,
                   partial(prompted, on, shape, fp8))


def generated(on: machines.Machine, shape: decode.Geometry, fp8: bool, num_rows: int,
              start: int = 1500) -> Judge:
    pages = decode.Pages(shape, [start + num_rows], 16, fp8)
    q, spans = decode.queries(shape, num_rows), [(0, num_rows, start)]
    out = decode.attend(on, pages, q, spans)
    return lambda: machines.error(machines.from_bf16(out), decode.expected(pages, q, spans))


def prompted(on: machines.Machine, shape: decode.Geometry, fp8: bool, start: int = 1000,
             num_rows: int = 129) -> Judge:
    pages = decode.Pages(shape, [start + num_rows], 16, fp8)
    q, spans = decode.queries(shape, num_rows), [(0, num_rows, start, 0)]
    out = prompts.attend(on, pages, q, spans)
    return lambda: machines.error(machines.from_bf16(out), prompts.expected(pages, q, spans))


@contextlib.contextmanager
def learning(specs: dict[Any, None]) -> Iterator[None]:
    """Launches become notes of the kernels that they would need."""
    def compiled(spec: Any) -> Any:
        specs[spec] = None
        return SimpleNamespace(spec=spec)
    with mock.patch.object(device, 'compiled', compiled), mock.patch.object(
            device, 'launch', lambda *args, **options: None):
        yield


def run(bench: kernels.Bench, found: list[Case]) -> int:
    """Measure the cases; gives how many could not be."""
    specs: dict[Any, None] = {}
    failures = 0
    with learning(specs):
        for _, _, case in found:
            with contextlib.suppress(Exception):         # it shows below, with its name
                case()
    kernels.compile_together(list(specs))
    for context, unit, case in found:
        try:
            value = case()()
        except Exception:  # noqa: BLE001 - the other cases' figures are worth having
            traceback.print_exc()
            failures += 1
            continue
        bench.record('op_error', value, unit, **context)
        print(f'{value:9.2e}', *(f'{key}={value}' for key, value in context.items()), flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--only', default='products,rows,attention')
    arguments = parser.parse_args()
    bench = kernels.Bench('python bench/op_errors.py', arguments.commit)
    on = machines.Machine(bench.cp, bench.stream, False)
    parts = {'rows': lambda: row_ops(on), 'attention': lambda: attention(on),
             'products': lambda: products(bench.cp, bench.stream)}
    failures = 0
    for name in arguments.only.split(','):
        failures += run(bench, list(parts[name]()))
        bench.cp.get_default_memory_pool().free_all_blocks()
        if arguments.receipt:
            arguments.receipt.parent.mkdir(parents=True, exist_ok=True)
            arguments.receipt.write_text(json.dumps(bench.records, indent=1) + '\n')
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
