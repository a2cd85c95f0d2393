# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Errors of the ops on a CUDA device against float64 on the same operands, at the served shapes.

    python bench/op_errors.py --receipt FILE.json --commit $(git rev-parse HEAD)
    python bench/op_errors.py --only products,rows,attention

The largest of (|error| - half a step of the result's type) / sum |terms|, so without the final
rounding; attention against float64 with the roundings that it declares (attention_errors.py). Exit
status 1 where a figure is above its limit. Every case runs twice, the first time only to learn
which kernels to compile.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import kernels

sys.path[:0] = [str(kernels.ROOT / 'test' / 'kernels')]

import affine_cases  # noqa: E402
import attention_errors  # noqa: E402
import cases  # noqa: E402
import machine as machines  # noqa: E402
import test_kv_append as appended  # noqa: E402
import test_rms_norm as norms  # noqa: E402
from attention_errors import Verdict, excess  # noqa: E402

from gemma_thor_ros.ops import (  # noqa: E402
    affine_order,
    device,
    embed,
    fragment_order,
    geglu,
    gemm_affine,
    gemm_bf16,
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
BF16, F32 = 8, 24                        # significant bits
EXCESS = '(|error| - half a step) / sum |terms|'
BEYOND = '(|error| - half a step - open roundings) / sum |p v|'
NORM = 'relative 2-norm, roundings of probabilities included'
PRODUCT, ATTENTION = 4e-6, 1e-5          # limits
ROUNDED = 1e-6                           # one rounding, and float32 arithmetic before it
Judge = Callable[[], float]
Case = tuple[dict[str, Any], float, Callable[[], Judge]]


def products(cp: Any, stream: Any) -> Iterator[Case]:
    """MLX affine and NVFP4, one row and nine, and prompts; each width and group at a tile edge."""
    for model, shapes in SHAPES.items():
        for name, shape in shapes.items():
            context = {'layer': f'{model} {name}'}
            for bits in (4, 8):
                for rows in (1, 9):
                    yield ({'op': 'gemm_affine', **context, 'bits': bits, 'group': 64,
                            'rows': rows}, PRODUCT,
                           partial(affine_sums, cp, stream, shape, bits, 64, rows))
            if name == 'head':
                continue
            for rows in (1, 9, 100):
                yield ({'op': 'gemm_nvfp4' if rows < 17 else 'prefill_gemm', **context,
                        'rows': rows}, PRODUCT, partial(nvfp4_rows, cp, stream, shape, rows))
    for bits, group in EDGES:
        yield ({'op': 'gemm_affine', 'layer': 'edge', 'bits': bits, 'group': group, 'rows': 9},
               PRODUCT, partial(affine_sums, cp, stream, (40, 3 * group), bits, group, 9))


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
    """Embedding rows, norms, gelu, soft cap; the norms, rope and rounding of q, k and v."""
    for model, width, inner in (('26b', 2816, 2112), ('31b', 5376, 21504), ('12b', 3840, 15360)):
        for rows in (1, 16):
            yield ({'op': 'rms_norm', 'layer': model, 'rows': rows}, ROUNDED,
                   partial(normed, on, width, rows))
            yield ({'op': 'rms_norm_add', 'layer': model, 'rows': rows}, ROUNDED,
                   partial(added, on, width, rows))
            yield ({'op': 'geglu', 'layer': model, 'rows': rows}, ROUNDED,
                   partial(gated, on, inner, rows))
            yield ({'op': 'embed', 'layer': model, 'rows': rows}, ROUNDED,
                   partial(embedded, on, width, rows))
            yield ({'op': 'head_bf16', 'part': 'soft cap', 'layer': model, 'rows': rows}, ROUNDED,
                   partial(capped, on, width, rows))
    for name, shape in {'26b sliding': appended.SLIDING, '26b full': appended.FULL,
                        '31b sliding': appended.Geometry(256, 32, 16, True, 128, 1e4),
                        '31b full': appended.Geometry(512, 32, 4, False, 64, 1e6),
                        '12b full': appended.Geometry(512, 16, 1, False, 64, 1e6)}.items():
        for far in (20, 262143):
            yield ({'op': 'kv_append', 'layer': name, 'position': far}, ROUNDED,
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


def embedded(on: machines.Machine, width: int, num_rows: int) -> Judge:
    table, scale = machines.to_bf16(machines.normal(1, 60, width)), 53.0
    ids = (np.arange(num_rows, dtype=np.int32) * 7) % 60
    hidden = on.put(machines.poisoned((num_rows, width), 'f32'))
    on.run(lambda: embed.embed(hidden, on.put(ids), on.put(table), scale, on.stream))
    exact = machines.from_bf16(table[ids]) * scale
    return lambda: excess(np, on.get(hidden).astype(np.float64), exact, np.abs(exact), BF16)


def capped(on: machines.Machine, width: int, num_rows: int) -> Judge:
    """Rows with a single one pick a column each, so that no sum is rounded before its cap."""
    table = machines.to_bf16(20 * machines.normal(1, 512, width))
    columns = np.arange(num_rows) * 5
    x = np.zeros((num_rows, width), np.float32)
    x[np.arange(num_rows), columns] = 1
    logits = on.put(machines.poisoned((num_rows, 512), 'f32'))
    on.run(lambda: gemm_bf16.head_bf16(logits, on.put(machines.to_bf16(x)), on.put(table),
                                       cases.SOFTCAP, on.stream))
    exact = cases.SOFTCAP * np.tanh(machines.from_bf16(table[:, columns].T) / cases.SOFTCAP)
    return lambda: excess(np, on.get(logits).astype(np.float64), exact, np.abs(exact), F32)


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


@contextlib.contextmanager
def learning(specs: dict[Any, None]) -> Iterator[None]:
    """Launches become notes of the kernels that they would need."""
    def compiled(spec: Any) -> Any:
        specs[spec] = None
        return SimpleNamespace(spec=spec)
    with mock.patch.object(device, 'compiled', compiled), mock.patch.object(
            device, 'launch', lambda *args, **options: None):
        yield


def run(bench: kernels.Bench, found: list[Any], measure: Callable[..., None]) -> int:
    """Measure the cases, each a context and more; gives how many could not be."""
    specs: dict[Any, None] = {}
    failures = 0
    with learning(specs):
        for _, *_, case in found:
            with contextlib.suppress(Exception):         # it shows below, with its name
                case()
    kernels.compile_together(list(specs))
    for context, *rest, case in found:
        try:
            measure(bench, context, *rest, case()())
        except Exception:  # noqa: BLE001 - the other cases' figures are worth having
            traceback.print_exc()
            failures += 1
    return failures


def sums(bench: kernels.Bench, context: dict[str, Any], limit: float, value: float) -> None:
    """Record a product's or a row's error."""
    _record(bench, value, EXCESS, limit, context)


def shares(bench: kernels.Bench, context: dict[str, Any], found: Verdict) -> None:
    """Record an attention's error, with what its open roundings are, and without any rounding."""
    limit = None if 'scores' in context else ATTENTION
    _record(bench, found.beyond, BEYOND, limit, {
        **context, 'open_share': round(found.open_share, 6), 'open_allows': round(found.slack, 9)})
    _record(bench, found.norm, NORM, None, context)


def _record(bench: kernels.Bench, value: float, unit: str, limit: float | None,
            context: dict[str, Any]) -> None:
    part = None if limit is None else round(value / limit, 6)
    bench.record('op_error', value, unit, fraction=part, **context)
    over = '' if part is None or part <= 1 else f'  ABOVE {limit:g}'
    print(f'{value:9.2e}', *(f'{key}={value}' for key, value in context.items()), unit, over,
          flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--only', default='products,rows,attention')
    parser.add_argument('--layers', default='', help='only layers whose names begin so: 26b,31b')
    arguments = parser.parse_args()
    layers = tuple(arguments.layers.split(','))
    bench = kernels.Bench('python bench/op_errors.py', arguments.commit)
    on = machines.Machine(bench.cp, bench.stream, False)
    parts: dict[str, tuple[Callable[[], Iterable[Any]], Callable[..., None]]] = {
        'rows': (lambda: row_ops(on), sums),
        'attention': (lambda: attention_errors.served(on), shares),
        'products': (lambda: products(bench.cp, bench.stream), sums)}
    failures = 0
    for name in arguments.only.split(','):
        found, measure = parts[name]
        if name == 'attention':
            attention_errors.prepare(layers)
        failures += run(bench, [case for case in found() if case[0]['layer'].startswith(layers)],
                        measure)
        bench.cp.get_default_memory_pool().free_all_blocks()
        if arguments.receipt:
            arguments.receipt.parent.mkdir(parents=True, exist_ok=True)
            arguments.receipt.write_text(json.dumps(bench.records, indent=1) + '\n')
    above = sum((record['fraction_of_limit'] or 0) > 1 for record in bench.records)
    print(f'{len(bench.records)} figures, {above} above their limits, {failures} not measured')
    return 1 if failures or above else 0


if __name__ == '__main__':
    sys.exit(main())
