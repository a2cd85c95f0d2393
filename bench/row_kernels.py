# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times what a generated row needs beside the matrix products, at the shapes of 26B-A4B.

    python bench/row_kernels.py --receipt FILE.json --commit $(git rev-parse HEAD)

As bench/kernels.py: one launch in a graph of many, with and without overlap. Attention reads
other pages at every launch, so that long contexts come from memory and not from the L2.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'bench'), str(ROOT / 'test' / 'kernels')]

from gemma_thor_ros.ops import attention_decode as attention  # noqa: E402
from gemma_thor_ros.ops import kv_append, moe_route, rms_norm, sample  # noqa: E402
from kernels import Bench, compile_together, constants  # noqa: E402

HIDDEN, EXPERTS, CHOSEN, VOCAB = 2816, 128, 8, 262144
EPS = 1e-6
# name: head dim, kv heads, query heads per kv head, window, rotary pairs, v projection
GEOMETRIES = {'sliding': (256, 8, 2, 1024, 128, True), 'full': (512, 2, 8, None, 64, False)}
DEPTHS = {'sliding': (256, 1024, 4096), 'full': (256, 4096, 16384, 131072)}
ROWS = (1, 16)
PAGE_SIZE = 16
LAUNCHES = 48
# constants of attention beside its own choice, by layer, FP8 and rows
VARIANTS: dict[tuple[str, bool, int], tuple[dict[str, int], ...]] = {
    ('full', True, 1): ({}, {'MIN_BLOCKS': 1}), ('sliding', True, 1): ({}, {'MIN_BLOCKS': 1}),
    ('sliding', False, 1): ({}, {'MIN_BLOCKS': 1})}
# A step's attention by ways, of several rows and of one; the spec does not say CHUNK and CLUSTER.
VERIFY_DEPTHS = (256, 600, 1040, 4112)   # a step behind 1,024 rows sees one chunk more
LONG_DEPTHS = (16384, 131072)            # of one row, without a window
WAYS: dict[tuple[str, int], tuple[dict[str, int], ...]] = {
    ('sliding', 16): ({}, {'MIN_BLOCKS': 1}),
    ('sliding', 1): ({}, {'CLUSTER': 1}),
    ('full', 16): ({}, {'NT': 2, 'MIN_BLOCKS': 2}, {'CHUNK': 64}),
    ('full', 1): ({}, {'CHUNK': 64})}
ROUTE_VARIANTS: dict[int, tuple[dict[str, int], ...]] = {
    1: ({},), 16: ({}, {'EIGHTS': 2})}
CACHE_BYTES = 512 << 20                  # of pages in turn, eight times an H200's L2


def bf16(bench: Bench, *shape: int) -> Any:
    """bf16 bits of normal numbers."""
    bits = bench.cp.random.RandomState(1).standard_normal(shape).astype(bench.cp.float32)
    return (bits.view(bench.cp.uint32) >> 16).astype(bench.cp.uint16)


def floats(bench: Bench, *shape: int) -> Any:
    """float32 normal numbers."""
    return bench.cp.random.RandomState(2).standard_normal(shape).astype(bench.cp.float32)


def norms(bench: Bench) -> None:
    """The end of a half layer: after attention, and after the experts with their sum."""
    cp = bench.cp
    weights = [floats(bench, HIDDEN) for _ in range(6)]
    for rows in ROWS:
        x, branch = floats(bench, rows, HIDDEN), bf16(bench, rows, HIDDEN)
        out = [cp.empty((rows, HIDDEN), cp.uint16) for _ in range(3)]
        ids = cp.zeros((rows, CHOSEN), cp.int32)
        experts = ids, floats(bench, rows, CHOSEN)
        results = bf16(bench, rows, CHOSEN, HIDDEN)
        row_bytes = rows * HIDDEN

        def add(_: int, x: Any = x, out: Any = out, branch: Any = branch) -> None:
            rms_norm.rms_norm_add(x, out, branch, weights[0], weights[3:], EPS, 1.0, bench.stream)

        def add_experts(_: int, x: Any = x, out: Any = out, branch: Any = branch,
                        results: Any = results, experts: Any = experts) -> None:
            rms_norm.rms_norm_sum_add(x, out[:1], branch, results, *weights[:3], weights[3:4],
                                      EPS, 1.0, bench.stream, experts)

        bench.measure('rms_norm_add', row_bytes * 16 + 16 * HIDDEN, add, rows=rows)
        bench.measure('rms_norm_sum', row_bytes * (12 + 2 * CHOSEN) + 16 * HIDDEN, add_experts,
                      rows=rows)


def routes(bench: Bench) -> None:
    """The router's product and choice."""
    cp = bench.cp
    weight = [bf16(bench, EXPERTS, HIDDEN) for _ in range(8)]
    scale = floats(bench, EXPERTS)
    for rows in ROWS:
        x, sequences = bf16(bench, rows, HIDDEN), cp.zeros(rows, cp.int32)
        ids, chosen = cp.empty((rows, CHOSEN), cp.int32), cp.empty((rows, CHOSEN), cp.float32)
        sizes = moe_route.scratch_sizes(rows, HIDDEN, EXPERTS)
        scores, tickets = cp.empty(sizes[0], cp.float32), cp.zeros(sizes[1], cp.uint32)
        bench.measure('moe_route', moe_route.bytes_moved(rows, HIDDEN, EXPERTS, 2),
                      lambda i, x=x, sequences=sequences, ids=ids, chosen=chosen, scores=scores,
                      tickets=tickets: moe_route.moe_route(
                          ids, chosen, scores, tickets, x, weight[i % 8], scale, sequences,
                          bench.stream), rows=rows)


def half_layers(bench: Bench) -> None:
    """Norms and router in one launch, and in two."""
    cp = bench.cp
    weight = [bf16(bench, EXPERTS, HIDDEN) for _ in range(8)]
    norms, scale = [floats(bench, HIDDEN) for _ in range(4)], floats(bench, EXPERTS)
    for rows in ROWS:
        x, branch = floats(bench, rows, HIDDEN), bf16(bench, rows, HIDDEN)
        outs = [cp.empty((rows, HIDDEN), cp.uint16) for _ in range(3)]
        ids, chosen = cp.empty((rows, CHOSEN), cp.int32), cp.empty((rows, CHOSEN), cp.float32)
        sizes = moe_route.scratch_sizes(rows, HIDDEN, EXPERTS)
        scores, tickets = cp.empty(sizes[0], cp.float32), cp.zeros(sizes[1], cp.uint32)
        sequences = cp.zeros(rows, cp.int32)
        results = ids, chosen, scores, tickets

        def together(i: int, x: Any = x, branch: Any = branch, outs: Any = outs,
                     results: Any = results, sequences: Any = sequences) -> None:
            moe_route.moe_route_add(*results, x, outs[:2], branch, norms[0], norms[1:], EPS, 1.0,
                                    weight[i % 8], scale, sequences, bench.stream)

        def apart(i: int, x: Any = x, branch: Any = branch, outs: Any = outs,
                  results: Any = results, sequences: Any = sequences) -> None:
            rms_norm.rms_norm_add(x, outs, branch, norms[0], norms[1:], EPS, 1.0, bench.stream)
            moe_route.moe_route(*results, outs[2], weight[i % 8], scale, sequences, bench.stream)

        num_bytes = moe_route.bytes_moved(rows, HIDDEN, EXPERTS, 2)
        for variant in ROUTE_VARIANTS[rows]:
            with constants(moe_route, 'add_spec', **variant):
                bench.measure('moe_route_add', num_bytes, together, rows=rows, **variant)
        bench.measure('rms_norm_add + moe_route', num_bytes, apart, rows=rows)


class Pages:
    """K and V of one sequence, `copies` times, so that no launch finds them in the L2."""

    def __init__(self, bench: Bench, name: str, fp8: bool, depth: int) -> None:
        cp = bench.cp
        self.dim, self.kv, group, self.window, self.pairs, self.has_v = GEOMETRIES[name]
        self.heads, self.fp8, self.depth = self.kv * group, fp8, depth
        self.element = 1 if fp8 else 2
        self.seen = depth if self.window is None else min(depth, self.window)
        num_bytes = 2 * self.seen * self.kv * self.dim * self.element
        self.copies = min(LAUNCHES, max(2, CACHE_BYTES // num_bytes))
        each = self.seen // PAGE_SIZE + 3
        shape = (self.copies * each, PAGE_SIZE, self.kv, self.dim)
        # numbers around 1: exponents are near their zero
        codes = (0x28, 0x40) if fp8 else (0x3E80, 0x4000)
        self.pages = [cp.random.RandomState(3).randint(*codes, shape, cp.int32).astype(
            cp.uint8 if fp8 else cp.uint16) for _ in range(2)]
        order = np.random.default_rng(4).permutation(shape[0]).astype(np.int32)
        length = depth // PAGE_SIZE + 1
        held = min(each, length)
        self.tables = []
        for copy in range(self.copies):
            table = np.full((1, length), -1, np.int32)
            table[0, length - held:] = order[copy * each:copy * each + held]
            self.tables.append(cp.asarray(table))
        self.ones = cp.ones(self.kv, cp.float32)


def variants_of(name: str, fp8: bool, rows: int) -> tuple[dict[str, int], ...]:
    """The constants to time, the op's own choice first."""
    return VARIANTS.get((name, fp8, rows), ({},))


def compile_attention() -> None:
    """All that attend() launches, by several threads."""
    specs = []
    for name, (dim, kv, group, window, pairs, has_v) in GEOMETRIES.items():
        for fp8 in (True, False):
            sizes = dim, group, kv, PAGE_SIZE, window, fp8
            for rows in ROWS:
                specs += [attention.spec('attention_decode_combine', *sizes, rows)]
                specs += [attention.spec('attention_decode', *sizes, rows, **variant)
                          for variant in variants_of(name, fp8, rows)]
            specs += [attention.append_spec(*sizes, has_v, pairs, **variant)
                      for variant in variants_of(name, fp8, 1)]
    compile_together(specs)


def attend(bench: Bench) -> None:
    """Attention at several depths, in FP8 and bf16."""
    compile_attention()
    cp = bench.cp
    for name, depths in DEPTHS.items():
        for fp8, depth, rows in ((f, d, r) for f in (True, False) for d in depths for r in ROWS):
            p = Pages(bench, name, fp8, depth)
            q, out = (bf16(bench, rows, p.heads, p.dim) for _ in range(2))
            scratch = attention.AttentionScratch.empty(
                cp, rows, 1, p.heads, p.dim, attention.max_chunks(depth, p.window))
            spans = cp.asarray(np.array([[0, rows, depth - rows, 0]], np.int32))

            def run(i: int, p: Pages = p, q: Any = q, out: Any = out, scratch: Any = scratch,
                    spans: Any = spans, rows: int = rows) -> None:
                attention.attention_decode(out, q, *p.pages, scratch, spans,
                                           p.tables[i % p.copies], (p.ones, p.ones), p.window,
                                           rows, bench.stream)

            num_bytes = attention.bytes_moved(p.seen, rows, p.heads, p.kv, p.dim, p.element)
            context = {'layer': name, 'kv': 'fp8' if fp8 else 'bf16', 'depth': depth,
                       'rows': rows}
            for variant in variants_of(name, fp8, rows):
                with constants(attention, 'spec', **variant):
                    bench.measure('attention', num_bytes, run, LAUNCHES, **context, **variant)
            if rows == 1:
                measure_append(bench, p, out, scratch, spans, num_bytes, context)


def measure_append(bench: Bench, p: Pages, out: Any, scratch: Any, spans: Any, num_bytes: int,
                   context: dict[str, Any],
                   variants: tuple[dict[str, int], ...] | None = None) -> None:
    """Norms, rope, the write of K and V and attention of one row in one launch."""
    cp = bench.cp
    qkv = bf16(bench, 1, (p.heads + p.kv * (2 if p.has_v else 1)) * p.dim)
    norm = floats(bench, p.dim)
    turns = cp.asarray(kv_append.rope_turns(1e4, p.dim, p.pairs))
    for variant in variants or variants_of(context['layer'], p.fp8, 1):
        with constants(attention, 'append_spec', **variant):
            bench.measure('attention_append', num_bytes, lambda i: attention.attention_append(
                out, qkv, *p.pages, scratch, spans, p.tables[i % p.copies], (norm, norm), turns,
                (p.ones, p.ones), (p.ones, p.ones), p.window, EPS, bench.stream), LAUNCHES,
                **context, **variant)


@contextmanager
def way(variant: dict[str, int]) -> Iterator[dict[str, int]]:
    """Launch attention in another way; what is left for the spec."""
    rest = dict(variant)
    with ExitStack() as stack:
        for name, value in (('_CHUNK', rest.pop('CHUNK', 0)),
                            ('_cluster', rest.pop('CLUSTER', 0))):
            if value:
                chosen: Any = value if name == '_CHUNK' else partial(_always, value)
                stack.callback(setattr, attention, name, getattr(attention, name))
                setattr(attention, name, chosen)
        yield rest


def _always(value: int, *_: Any) -> int:
    return value


def ways_specs(name: str, rows: int) -> list[Any]:
    """What the ways of a layer launch."""
    dim, kv, group, window, pairs, has_v = GEOMETRIES[name]
    specs = []
    for variant, fp8 in ((v, f) for v in WAYS[name, rows] for f in (True, False)):
        sizes = dim, group, kv, PAGE_SIZE, window, fp8
        with way(variant) as rest:
            specs.append(attention.spec('attention_decode_combine', *sizes, rows, **rest))
            cluster = attention._cluster({'B': 1, 'D': dim, 'Q': kv * group, 'KV': kv}, window,
                                         rows)
            if rows == 1:
                specs.append(attention.append_spec(*sizes, has_v, pairs, CLUSTER=cluster, **rest))
                specs.append(attention.spec('attention_decode_combine', *sizes, rows))
            else:
                specs.append(attention.spec('attention_decode', *sizes, rows, CLUSTER=cluster,
                                            **rest))
    return specs


def ways(bench: Bench, name: str) -> None:
    """Attention and sum of 16 rows of one sequence and of one row, by ways."""
    cp, rows = bench.cp, 16
    compile_together(list(dict.fromkeys(ways_specs(name, rows) + ways_specs(name, 1))))
    window = GEOMETRIES[name][3]
    depths = VERIFY_DEPTHS if window else VERIFY_DEPTHS + LONG_DEPTHS
    for fp8, depth in ((f, d) for f in (True, False) for d in depths):
        p = Pages(bench, name, fp8, depth)
        most = max(attention.max_chunks(max(depth, 8192), window), 129 if not window else 0)
        q, out = (bf16(bench, rows, p.heads, p.dim) for _ in range(2))
        scratch = attention.AttentionScratch.empty(cp, rows, 1, p.heads, p.dim, most)
        single = attention.AttentionScratch(scratch.partial[:1], scratch.partial_ml[:1],
                                            scratch.tickets)
        spans = cp.asarray(np.array([[0, rows, depth - rows, 0]], np.int32))
        one = cp.asarray(np.array([[0, 1, depth - 1, 0]], np.int32))

        def run(i: int, p: Pages = p, q: Any = q, out: Any = out, scratch: Any = scratch,
                spans: Any = spans) -> None:
            attention.attention_decode(out, q, *p.pages, scratch, spans, p.tables[i % p.copies],
                                       (p.ones, p.ones), p.window, rows, bench.stream)

        num_bytes = attention.bytes_moved(p.seen, rows, p.heads, p.kv, p.dim, p.element)
        context = {'layer': name, 'kv': 'fp8' if fp8 else 'bf16', 'depth': depth}
        for variant in WAYS[name, rows] if depth not in LONG_DEPTHS else ():
            with way(variant) as rest, constants(attention, 'spec', **rest):
                bench.measure('attention', num_bytes, run, LAUNCHES, **context, rows=rows,
                              **variant)
        for variant in WAYS[name, 1]:
            with way(variant) as rest:
                measure_append(bench, p, out[:1], single, one, num_bytes,
                               context | {'rows': 1} | {key: value for key, value in
                                                        variant.items() if key not in rest},
                               (rest,))


def append(bench: Bench) -> None:
    """Norms, rope and the write of K and V."""
    cp = bench.cp
    for name, fp8, rows in ((n, f, r) for n in GEOMETRIES for f in (True, False) for r in ROWS):
        p = Pages(bench, name, fp8, 1024)
        qkv = bf16(bench, rows, (p.heads + p.kv * (2 if p.has_v else 1)) * p.dim)
        q, norm = bf16(bench, rows, p.heads, p.dim), floats(bench, p.dim)
        positions = cp.asarray(1024 - rows + np.arange(rows, dtype=np.int32))
        turns = cp.asarray(kv_append.rope_turns(1e4, p.dim, p.pairs))
        zeros = cp.zeros(rows, cp.int32)

        def run(i: int, p: Pages = p, qkv: Any = qkv, q: Any = q, norm: Any = norm,
                positions: Any = positions, turns: Any = turns, zeros: Any = zeros) -> None:
            kv_append.kv_append(q, *p.pages, qkv, norm, norm, turns, zeros, positions,
                                p.tables[i % p.copies], (p.ones, p.ones), EPS, bench.stream)

        bench.measure('kv_append', kv_append.bytes_moved(rows, p.heads, p.kv, p.dim, 2), run,
                      layer=name, kv='fp8' if fp8 else 'bf16', rows=rows)


def samplers(bench: Bench) -> None:
    """The four launches of a choice, by what the settings ask for."""
    cp = bench.cp
    logits = 3 * floats(bench, 16, VOCAB)
    logits[:, ::9001] += 12
    for name, settings in {
            'greedy': sample.SampleSettings(temperature=0.0), 'noise': sample.SampleSettings(),
            'top-k 64, top-p': sample.SampleSettings(top_k=64, top_p=0.95),
            'top-p': sample.SampleSettings(top_p=0.95),
            'min-p': sample.SampleSettings(min_p=0.05),
            'top-k 1000, top-p': sample.SampleSettings(top_k=1000, top_p=0.95)}.items():
        for rows in ROWS:
            packed = sample.pack_rows([sample.SampleRow(settings, i) for i in range(rows)], VOCAB)
            on = tuple(cp.asarray(a) for a in (packed.records, packed.ids, packed.values,
                                               packed.masks))
            sizes = sample.scratch_sizes(rows, VOCAB)
            scratch = (cp.zeros(sizes[0], cp.uint32), cp.zeros(sizes[1], cp.uint64),
                       cp.zeros(sizes[2], cp.uint64))
            tokens = cp.empty(rows, cp.int32)
            bench.measure('sample', sample.bytes_moved(rows, VOCAB),
                          lambda i, rows=rows, on=on, scratch=scratch, tokens=tokens,
                          needs=packed.needs: sample.sample(
                              tokens, logits[:rows], on, scratch, bench.stream, needs), 24,
                          settings=name, rows=rows)


PARTS = {'norms': norms, 'routes': routes, 'append': append,
         'half_layers': half_layers,
         'samplers': samplers, 'attend': attend,
         **{f'ways_{name}': partial(ways, name=name) for name in GEOMETRIES}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--parts', default=','.join(PARTS), help='some of these')
    arguments = parser.parse_args()
    bench = Bench('python bench/row_kernels.py', arguments.commit)
    failures = 0
    bench.bandwidth()
    for part in arguments.parts.split(','):
        try:
            PARTS[part](bench)
        except Exception:  # noqa: BLE001  the other parts' figures are worth having
            traceback.print_exc()
            failures += 1
        bench.cp.get_default_memory_pool().free_all_blocks()
    if arguments.receipt:
        arguments.receipt.parent.mkdir(parents=True, exist_ok=True)
        arguments.receipt.write_text(json.dumps(bench.records, indent=1) + '\n')
    slow = [r['context']['us'] for r in bench.records if r['metric'] == 'op_gb_s']
    print(f'{len(slow)} figures, median {statistics.median(slow):.1f} us' if slow else 'none')
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
