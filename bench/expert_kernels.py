# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times the launches of a layer's experts, with its dense MLP, by their constants.

    python bench/expert_kernels.py --receipt FILE.json --commit $(git rev-parse HEAD)

As bench/kernels.py measures: a launch in a graph of many, other experts at each, with overlap; and
gate-up and down by turns, as in a step, and as one launch (chain). Routes are even, or uneven as
those of a step whose rows are alike: a few experts that most rows go to. A variant whose results
differ from those of the constants that the op chooses itself is a failure, unless it adds in
another order. With --once every launch runs once, for a profiler.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'bench'), str(ROOT / 'test' / 'kernels')]

import cases  # noqa: E402

from gemma_thor_ros.ops import device, fragment_order, moe_chain, moe_nvfp4  # noqa: E402
from kernels import Bench, compile_together, constants  # noqa: E402

Variant = dict[str, int]
LAUNCHES = 64
TURNS = 16                               # routes of other experts
# rows, experts, whether few of them have most rows
ROUTED = ((1, 8, False), (2, 16, False), (4, 25, False), (8, 40, False), (8, 32, True),
          (16, 32, False), (16, 36, True), (16, 64, False), (16, 80, False))
# By the most rows; the first is what the op chooses.
GATE_UP: dict[int, tuple[Variant, ...]] = {
    1: ({}, {'ONE_BODY': 1}, {'STAGES': 3}, {'STAGE_TILES': 2, 'STAGES': 3, 'ACTIVATIONS': 2},
        {'STAGE_TILES': 2, 'STAGES': 4, 'ACTIVATIONS': 2}),
    8: ({}, {'STAGES': 3}, {'STAGE_TILES': 2, 'STAGES': 3, 'ACTIVATIONS': 2}),
    16: ({}, {'STAGES': 2}, {'STAGE_TILES': 2}, {'STAGE_TILES': 2, 'STAGES': 4},
         {'ACTIVATIONS': 4})}
DOWN: dict[int, tuple[Variant, ...]] = {
    1: ({}, {'ONE_BODY': 0}, {'STAGES': 3}, {'STAGE_TILES': 2, 'STAGES': 3, 'ACTIVATIONS': 2}),
    8: ({}, {'ONE_BODY': 0}, {'STAGES': 3}),
    16: ({}, {'ONE_BODY': 1}, {'STAGES': 2})}
CHAIN: dict[int, tuple[Variant, ...]] = {
    1: ({}, {'STAGES': 3}), 8: ({}, {'STAGES': 3}), 16: ({}, {'STAGES': 2})}


class Layer(NamedTuple):
    """A layer's matrices."""

    gate_up: fragment_order.Nvfp4Fragments
    down: fragment_order.Nvfp4Fragments
    dense_gate_up: fragment_order.Nvfp4Fragments
    dense_down: fragment_order.Nvfp4Fragments


def layer(bench: Bench) -> Layer:
    """Random matrices of the 26B's shapes."""
    cp, stream = bench.cp, bench.stream
    num_experts, inner, hidden = cases.EXPERTS

    def made(shape: tuple[int, ...], *seeds: int) -> fragment_order.Nvfp4Fragments:
        parts = [cases.random_weight(cp, shape, seed, (0x28, 0x48), 0.01) for seed in seeds]
        return fragment_order.to_fragments(parts, interleaved=len(parts) == 2, stream=stream)

    return Layer(made(cases.EXPERTS, 1, 2), made((num_experts, hidden, inner), 3),
                 made((3 * inner, hidden), 4, 5), made((hidden, 3 * inner), 6))


def uneven(cp: Any, rows: int, num_experts: int, distinct: int, seed: int) -> Any:
    """Expert ids (T, K) where a few of at most so many experts have most rows."""
    random = np.random.default_rng(seed)
    liking = np.linspace(0.0, -4.0, distinct)
    chosen = np.argsort(-(liking + random.gumbel(size=(rows, distinct))), axis=1)
    ids = random.permutation(num_experts)[:distinct][chosen[:, :cases.CHOSEN]]
    return cp.asarray(np.ascontiguousarray(ids, np.int32))


class Step:
    """The launches for rows that go to so many experts."""

    def __init__(self, bench: Bench, weights: Layer, rows: int, distinct: int,
                 skewed: bool) -> None:
        cp = bench.cp
        num_experts, inner, hidden = cases.EXPERTS
        first = (uneven(cp, rows, num_experts, distinct, rows) if skewed else
                 cases.routing(cp, rows, num_experts, cases.CHOSEN, distinct, 0)[0])
        self.ids = [cp.ascontiguousarray((first + turn * distinct) % num_experts)
                    for turn in range(TURNS)]
        counts = np.unique(cp.asnumpy(first), return_counts=True)[1]
        self.context: dict[str, Any] = {
            'rows': rows, 'distinct_experts': int(counts.size), 'most_rows': int(counts.max()),
            'experts_of_more_than_8': int((counts > 8).sum())}
        self.weight_bytes = (int(counts.size) + 3) * 9 * hidden * inner // 16
        self.bench, self.weights = bench, weights
        self.x, self.dense_x = (cases.random_rows(cp, (rows, hidden), seed) for seed in (4, 8))
        self.inner = cases.random_rows(cp, (rows, cases.CHOSEN, inner), 5)
        self.wide = cases.random_rows(cp, (rows, 3 * inner), 7)
        self.results = cases.random_rows(cp, (rows, cases.CHOSEN, hidden), 6)
        self.parts = cases.poisoned(cp, (rows, 3, hidden), 'f32')
        self.arrivals = cp.zeros(moe_chain.arrivals_size(num_experts), cp.uint32)

    def gate_up(self, turn: int) -> None:
        """Enqueue it."""
        moe_nvfp4.moe_nvfp4_gate_up(
            self.inner, self.x, self.ids[turn % TURNS], self.weights.gate_up, self.bench.stream,
            moe_nvfp4.DenseGateUp(self.wide, self.dense_x, self.weights.dense_gate_up))

    def down(self, turn: int) -> None:
        """Enqueue it."""
        moe_nvfp4.moe_nvfp4_down(
            self.results, self.inner, self.ids[turn % TURNS], self.weights.down,
            self.bench.stream,
            moe_nvfp4.DenseDown(self.parts, self.wide, self.weights.dense_down))

    def both(self, turn: int) -> None:
        """Enqueue both."""
        self.gate_up(turn)
        self.down(turn)

    def chain(self, turn: int) -> None:
        """Enqueue both as one launch."""
        weights = self.weights
        moe_chain.moe_chain(
            self.results, self.inner, self.x, self.ids[turn % TURNS], weights.gate_up,
            weights.down, self.arrivals, self.bench.stream,
            (moe_nvfp4.DenseGateUp(self.wide, self.dense_x, weights.dense_gate_up),
             moe_nvfp4.DenseDown(self.parts, self.wide, weights.dense_down)))

    def outputs(self, op: str) -> list[Any]:
        """What launches write, on the host."""
        arrays = {'gate_up': [self.inner, self.wide], 'down': [self.results, self.parts]}.get(
            op, [self.inner, self.wide, self.results, self.parts])
        kept = [array.copy() for array in arrays]
        for array in arrays:
            array.fill(0)
        self.bench.cp.cuda.runtime.deviceSynchronize()
        getattr(self, op)(0)
        self.bench.stream.synchronize()
        got = [self.bench.cp.asnumpy(array) for array in arrays]
        for array, old in zip(arrays, kept, strict=True):
            array[...] = old
        return got


def kind_of(rows: int) -> int:
    """The most rows of the launches that so many take."""
    return next(most for most in moe_nvfp4.KINDS if rows <= most)


def variants(rows: int, op: str) -> Iterator[dict[str, Variant]]:
    """Constants of gate_up or down that differ from the chosen ones."""
    table = {'gate_up': GATE_UP, 'down': DOWN, 'chain': CHAIN}[op]
    yield from ({op: variant} for variant in table[kind_of(rows)])


def changed(op: str, variant: Variant) -> AbstractContextManager[None]:
    """Other constants for launches of an op."""
    if op == 'chain':
        return constants(moe_chain, 'spec', **variant)
    return constants(moe_nvfp4, f'{op}_spec', **variant)


def measure(bench: Bench, step: Step, op: str, ways: dict[str, Variant], shares: int) -> None:
    """Time one way and record it; shares: matrices of an expert that are read."""
    with ExitStack() as stack:
        for name, variant in ways.items():
            stack.enter_context(changed(name, variant))
        enqueue: Callable[[int], None] = getattr(step, op)
        times = bench.times_us(enqueue, LAUNCHES)
    median = statistics.median(times)
    rate = shares * step.weight_bytes / median / 1e3
    bench.record('op_gb_s', rate, 'GB/s', [shares * step.weight_bytes / t / 1e3 for t in
                                           (max(times), min(times))],
                 rate / bench.read_gb_s, op=f'moe_{op}', us=round(median, 3), overlap=True,
                 **step.context, **{f'{name}_constants': way for name, way in ways.items() if way})
    words = ' '.join(str(value) for value in step.context.values())
    print(f'{op:8} {words:14} {median:7.2f} us {rate / bench.read_gb_s:4.0%} '
          f'{" ".join(f"{k}={v}" for way in ways.values() for k, v in way.items())}', flush=True)


def run(bench: Bench, only: set[int], once: bool) -> int:
    """All rows and variants; how many failed."""
    weights, failures = layer(bench), 0
    for rows, distinct, skewed in ROUTED:
        if only and rows not in only:
            continue
        step = Step(bench, weights, rows, distinct, skewed)
        if once:
            for op in ('gate_up', 'down', 'chain'):
                getattr(step, op)(1)
            bench.stream.synchronize()
            continue
        for op, shares in (('gate_up', 2), ('down', 1), ('chain', 3)):
            expected = step.outputs('both' if op == 'chain' else op)
            for ways in variants(rows, op):
                try:
                    with changed(op, ways[op]):
                        got = step.outputs(op)
                    same = all(bool((a == b).all()) for a, b in zip(expected, got, strict=True))
                    if not same and 'SPLIT' not in ways[op]:
                        failures += 1
                        print('DIFFERENT RESULTS', op, ways)
                    measure(bench, step, op, ways, shares)
                except Exception:  # noqa: BLE001  the other figures are worth having
                    traceback.print_exc()
                    failures += 1
        measure(bench, step, 'both', {}, 3)
    return failures


def compile_all(only: set[int]) -> None:
    """Fill the cache, in parallel."""
    hardware = device.has_e2m1_conversion()
    num_experts, inner, hidden = cases.EXPERTS
    specs = [fragment_order.spec(hardware)]
    for rows in sorted({rows for rows, _, _ in ROUTED if not only or rows in only}):
        sizes = (rows, cases.CHOSEN, num_experts, hardware, 3)
        specs += [moe_nvfp4.gate_up_spec(hidden, *sizes, **ways['gate_up'])
                  for ways in variants(rows, 'gate_up')]
        specs += [moe_nvfp4.down_spec(inner, *sizes, **ways['down'])
                  for ways in variants(rows, 'down')]
        specs += [moe_chain.spec(hidden, inner, *sizes, **ways['chain'])
                  for ways in variants(rows, 'chain')]
    compile_together(list(dict.fromkeys(specs)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--rows', default='', help='only these numbers of rows, with commas')
    parser.add_argument('--once', action='store_true', help='measure nothing')
    arguments = parser.parse_args()
    only = {int(word) for word in arguments.rows.split(',') if word}
    bench = Bench('python bench/expert_kernels.py', arguments.commit)
    compile_all(only)
    if not arguments.once:
        bench.bandwidth()
    failures = run(bench, only, arguments.once)
    if arguments.receipt:
        arguments.receipt.parent.mkdir(parents=True, exist_ok=True)
        arguments.receipt.write_text(json.dumps(bench.records, indent=1) + '\n')
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
