# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times the matrix kernels at the shapes of 26B-A4B, and their error against float64.

    python bench/kernels.py --receipt FILE.json --commit $(git rev-parse HEAD)

Each figure is the time of one launch in a CUDA graph of many, over copies of the weight that
together exceed the L2, with and without programmatic dependent launch; median of the replays.
Percentages are of the read bandwidth that the same run measures. Random weights, all codes.
"""
from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'test' / 'kernels')]

import cases  # noqa: E402

from gemma_thor_ros.ops import compile as compiler  # noqa: E402
from gemma_thor_ros.ops import (  # noqa: E402
    device,
    fragment_order,
    gemm_bf16,
    gemm_nvfp4,
    head_nvfp4,
    moe_nvfp4,
    prefill_attention,
    prefill_gemm,
    prefill_moe,
)

ROTATE_BYTES = 250 << 20                 # four times an H200's L2
LAUNCHES = 192
REPLAYS = 9
ROWS = (1, 8, 16)
SHAPES = {
    'q alone': (4096, 2816), 'qkv sliding': (8192, 2816), 'qkv full': (9216, 2816),
    'o sliding': (2816, 4096), 'o full': (2816, 8192), 'down': (2816, 2112)}
DRAFT = {'draft q': (4096, 2816), 'draft gate-up': (11264, 2816), 'draft down': (2816, 5632)}
ROW_VARIANTS: list[dict[str, int]] = [{'ROW_TILES': 2, 'MIN_BLOCKS': 2}]
VERIFY_VARIANTS: list[dict[str, int]] = [{'ROW_TILES': 2, 'MIN_BLOCKS': 1}]
PROMPTS = (64, 512, 4096)                # rows of a prefill step
BF16_TFLOPS = 790.0                      # an H200's matrix rate, measured with wgmma
# window, query heads, kv heads, head dim of 26B-A4B
ATTENDED = {'sliding': (1024, 16, 8, 256), 'full': (None, 16, 2, 512)}
ROUTED = ((1, 8), (2, 16), (8, 40), (16, 32), (16, 64), (16, 80))    # rows, distinct experts


class Bench:
    """One run: the device, its measured bandwidth, and the records so far."""

    def __init__(self, command: str, commit: str) -> None:
        self.cp = device.cupy()
        self.stream = self.cp.cuda.Stream()
        self.info = device.info()
        self.read_gb_s = 0.0
        self.records: list[dict[str, Any]] = []
        self._common = {
            'card': self.info.name, 'driver': driver_version(),
            'nvrtc': '.'.join(map(str, compiler.nvrtc().version)), 'commit': commit,
            'date': datetime.date.today().isoformat(), 'command': command}

    def record(self, metric: str, value: float, unit: str, spread: Sequence[float] = (),
               fraction: float | None = None, **context: Any) -> None:
        """Keep one figure in the form of a receipt."""
        self.records.append({
            'metric': metric, 'value': round(value, 9), 'unit': unit, 'context': context,
            'fraction_of_limit': fraction, **self._common, 'spread': list(spread)})

    def times_us(self, enqueue: Callable[[int], None], launches: int = LAUNCHES) -> list[float]:
        """Microseconds of one launch, from each replay of a graph of launches 0, 1, ..."""
        cp = self.cp
        cp.cuda.runtime.deviceSynchronize()
        enqueue(0)                       # loads the kernel outside the capture
        self.stream.synchronize()
        graph = device.capture(self.stream, lambda: [enqueue(i) for i in range(launches)] and None)
        times = []
        with self.stream:
            for index in range(REPLAYS + 2):
                start, end = cp.cuda.Event(), cp.cuda.Event()
                start.record(self.stream)
                graph.launch(self.stream)
                end.record(self.stream)
                end.synchronize()
                if index >= 2:
                    times.append(cp.cuda.get_elapsed_time(start, end) * 1e3 / launches)
        return times

    def measure(self, op: str, num_bytes: int, enqueue: Callable[[int], None],
                launches: int = LAUNCHES, **context: Any) -> None:
        """Time with and without overlap; print and record both."""
        shown = []
        for overlap in (True, False):
            with launches_that_overlap(overlap):
                times = self.times_us(enqueue, launches)
            median = statistics.median(times)
            rate = num_bytes / median / 1e3
            self.record('op_gb_s', rate, 'GB/s', [num_bytes / t / 1e3 for t in
                                                  (max(times), min(times))],
                        rate / self.read_gb_s, op=op, us=round(median, 3), overlap=overlap,
                        **context)
            shown.append(f'{median:8.2f} us {rate:6.0f} GB/s {rate / self.read_gb_s:4.0%}')
        words = ' '.join(f'{key}={value}' for key, value in context.items())
        print(f'{op:14} {words:44} overlap {shown[0]} | plain {shown[1]}', flush=True)

    def measure_rate(self, op: str, num_flops: int, enqueue: Callable[[int], None],
                     launches: int = 24, **context: Any) -> None:
        """Time of work that the matrix units bound; print and record it."""
        times = self.times_us(enqueue, launches)
        median = statistics.median(times)
        rate = num_flops / median / 1e6
        self.record('op_tflop_s', rate, 'TFLOP/s', [num_flops / t / 1e6 for t in
                                                    (max(times), min(times))],
                    rate / BF16_TFLOPS, op=op, us=round(median, 3), overlap=True, **context)
        words = ' '.join(f'{key}={value}' for key, value in context.items())
        print(f'{op:18} {words:40} {median:9.1f} us {rate:6.0f} TFLOP/s '
              f'{rate / BF16_TFLOPS:4.0%}', flush=True)

    def bandwidth(self) -> None:
        """Read 4 GiB."""
        cp = self.cp
        data = cp.random.RandomState(0).randint(0, 1 << 31, 1 << 26).astype(cp.uint32)
        data = cp.tile(data, 16)
        sums = cp.empty(self.info.num_multiprocessors * 8 * 256, cp.uint32)
        kernel = device.compiled(compiler.KernelSpec.of('read_bandwidth'))
        times = self.times_us(lambda _: device.launch(
            kernel, (self.info.num_multiprocessors * 8,), 256, (sums, data, data.size // 4),
            self.stream, overlap=False), 4)
        rates = [data.nbytes / t / 1e3 for t in times]
        self.read_gb_s = statistics.median(rates)
        self.record('read_gb_s', self.read_gb_s, 'GB/s', [min(rates), max(rates)],
                    bytes=data.nbytes)
        print(f'read bandwidth {self.read_gb_s:.0f} GB/s ({min(rates):.0f} to {max(rates):.0f})')


def driver_version() -> str:
    """As the kernel module says it, else the newest CUDA that it takes."""
    module = Path('/proc/driver/nvidia/version')
    if module.is_file():
        found = re.search(r'\d+\.\d+\.\d+', module.read_text(encoding='utf-8'))
        if found:
            return found[0]
    return f'CUDA {device.cupy().cuda.runtime.driverGetVersion()}'


@contextmanager
def launches_that_overlap(overlap: bool) -> Any:
    """Turn programmatic dependent launch off for a while."""
    original = device.launch
    if not overlap:
        device.launch = partial(original, overlap=False)
    try:
        yield
    finally:
        device.launch = original


@contextmanager
def constants(module: Any, name: str, **override: int) -> Any:
    """Launch with other compile-time constants than the op's own choice."""
    original = getattr(module, name)
    setattr(module, name, partial(original, **override))
    try:
        yield
    finally:
        setattr(module, name, original)


def copies_of(bench: Bench, made: fragment_order.Nvfp4Fragments) -> list[Any]:
    """The same matrix several times, so that no replay finds it in the L2."""
    count = max(2, -(-ROTATE_BYTES // made.nbytes))
    return [made] + [fragment_order.Nvfp4Fragments(
        made.codes.copy(), made.scales.copy(), made.row_scales, made.num_outputs, made.columns,
        made.interleaved, made.num_experts) for _ in range(count - 1)]


def projections(bench: Bench) -> None:
    """Every projection of a layer, and how the two ways to feed it compare."""
    cp, stream = bench.cp, bench.stream
    for name, shape in {**SHAPES, 'gate-up': cases.GATE_UP}.items():
        pair = name == 'gate-up'
        parts = [cases.random_weight(cp, shape, seed, (0x28, 0x48), 0.01)
                 for seed in range(1 + pair)]
        made = fragment_order.to_fragments(parts, interleaved=pair, stream=stream)
        weights = copies_of(bench, made)
        for rows in ROWS:
            x = cases.random_rows(cp, (rows, shape[1]), 2)
            out = cases.poisoned(cp, (rows, shape[0]), 'bf16')
            gemm_nvfp4.gemm_nvfp4(out, x, made, stream)
            stream.synchronize()
            products = [cases.from_bf16(cp, x) @ cases.dequantized(cp, part).T for part in parts]
            expected = cases.geglu(cp, *products) if pair else products[0]
            bench.record('op_error', cases.error(cp, cases.from_bf16(cp, out), expected),
                         'relative 2-norm', op='gemm_nvfp4', layer=name, rows=rows)
            variants: list[dict[str, int]] = [{}]
            if name in ('qkv sliding', 'o sliding', 'gate-up'):
                variants += ROW_VARIANTS if rows == 1 else []
                variants += VERIFY_VARIANTS if rows == 16 else []
            for variant in variants:
                with constants(gemm_nvfp4, 'spec', **variant):
                    bench.measure(
                        'gemm_nvfp4', gemm_nvfp4.bytes_moved(rows, *shape, pair),
                        lambda i, x=x, out=out, weights=weights: gemm_nvfp4.gemm_nvfp4(
                            out, x, weights[i % len(weights)], stream),
                        layer=name, rows=rows, **variant)


def heads(bench: Bench) -> None:
    """The head in NVFP4 and in bf16."""
    cp, stream = bench.cp, bench.stream
    vocab_size, hidden = cases.HEAD
    packed = cases.random_weight(cp, cases.HEAD, 3, (0x28, 0x48), 0.02)
    made = fragment_order.to_fragments([packed], stream=stream)
    dense = cp.random.RandomState(4).randint(0x3C00, 0x3D00, cases.HEAD).astype(cp.uint16)
    for rows in ROWS:
        x = cases.random_rows(cp, (rows, hidden), 5)
        logits = cases.poisoned(cp, (rows, vocab_size), 'f32')
        variants = [{}, {'WARPS': 12}, {'WARPS': 20}]
        for variant in variants if rows == 16 else [{}]:
            with constants(head_nvfp4, 'spec', **variant):
                bench.measure('head_nvfp4', head_nvfp4.bytes_moved(rows, *cases.HEAD),
                              lambda i, x=x, logits=logits: head_nvfp4.head_nvfp4(
                                  logits, x, made, cases.SOFTCAP, stream), 8, rows=rows, **variant)
        part = slice(0, 16384)
        z = cases.from_bf16(cp, x) @ cases.dequantized(cp, cases.Packed(
            packed.packed[part], packed.group_scales[part], packed.global_scale)).T
        expected = cases.SOFTCAP * cp.tanh(z / cases.SOFTCAP)
        bench.record('op_error', cases.error(cp, logits[:, part], expected), 'relative 2-norm',
                     op='head_nvfp4', rows=rows)
        bench.measure('head_bf16', gemm_bf16.bytes_moved(rows, *cases.HEAD, 4),
                      lambda i, x=x, logits=logits: gemm_bf16.head_bf16(
                          logits, x, dense, cases.SOFTCAP, stream), 4, rows=rows)


def drafts(bench: Bench) -> None:
    """bf16 projections of a drafter."""
    cp, stream = bench.cp, bench.stream
    for name, shape in DRAFT.items():
        count = -(-ROTATE_BYTES // (2 * shape[0] * shape[1]))
        weights = [cases.random_rows(cp, shape, 6)]
        weights += [weights[0].copy() for _ in range(count - 1)]
        for rows in (1, 16):
            x = cases.random_rows(cp, (rows, shape[1]), 7)
            out = cases.poisoned(cp, (rows, shape[0]), 'bf16')
            for variant in ({}, {'PREFETCH': 4}) if rows == 16 else ({},):
                with constants(gemm_bf16, 'spec', **variant):
                    bench.measure('gemm_bf16', gemm_bf16.bytes_moved(rows, *shape),
                                  lambda i, x=x, out=out, weights=weights: gemm_bf16.gemm_bf16(
                                      out, x, weights[i % len(weights)], stream),
                                  layer=name, rows=rows, **variant)


def experts(bench: Bench) -> None:
    """Gate-up, down and combine for rows that hit so many distinct experts."""
    cp, stream = bench.cp, bench.stream
    num_experts, inner_size, hidden = cases.EXPERTS
    gate, up = (cases.random_weight(cp, cases.EXPERTS, seed, (0x28, 0x48), 0.01)
                for seed in (1, 2))
    gate_up = fragment_order.to_fragments([gate, up], interleaved=True, stream=stream)
    down = fragment_order.to_fragments([cases.random_weight(
        cp, (num_experts, hidden, inner_size), 3, (0x28, 0x48), 0.01)], stream=stream)
    dense_gate_up = fragment_order.to_fragments(
        [cases.random_weight(cp, (3 * inner_size, hidden), seed, (0x28, 0x48), 0.01)
         for seed in (4, 5)], interleaved=True, stream=stream)
    dense_down = fragment_order.to_fragments([cases.random_weight(
        cp, (hidden, 3 * inner_size), 6, (0x28, 0x48), 0.01)], stream=stream)
    for rows, distinct in ROUTED:
        routes = [cases.routing(cp, rows, num_experts, cases.CHOSEN, distinct, 0)]
        for turn in range(1, 16):        # other experts at every launch
            shifted = (routes[0][0] + turn * distinct) % num_experts
            routes.append((cp.ascontiguousarray(shifted), routes[0][1]))
        hit = len(np.unique(cp.asnumpy(routes[0][0])))
        x = cases.random_rows(cp, (rows, hidden), 4)
        inner = cases.random_rows(cp, (rows, cases.CHOSEN, inner_size), 5)
        results = cases.random_rows(cp, (rows, cases.CHOSEN, hidden), 6)
        out = cases.poisoned(cp, (rows, hidden), 'f32')
        weight_bytes = hit * 9 * hidden * inner_size // 16
        pairs = rows * cases.CHOSEN
        context = {'rows': rows, 'distinct_experts': hit}
        dense_bytes = 9 * 3 * hidden * inner_size // 16
        wide = cases.random_rows(cp, (rows, 3 * inner_size), 7)
        first = moe_nvfp4.DenseGateUp(wide, x, dense_gate_up)
        second = moe_nvfp4.DenseDown(cases.poisoned(cp, (rows, 3, hidden), 'f32'), wide,
                                     dense_down)
        for dense in (False, True):      # their constants: bench/expert_kernels.py
            bench.measure('moe_gate_up', 2 * (weight_bytes + dense * dense_bytes),
                          lambda i, x=x, inner=inner, routes=routes, first=first, dense=dense:
                          moe_nvfp4.moe_nvfp4_gate_up(inner, x, routes[i % 16][0], gate_up,
                                                      stream, first if dense else None), 96,
                          **context, dense=dense)
            bench.measure('moe_down', weight_bytes + dense * dense_bytes,
                          lambda i, inner=inner, results=results, routes=routes, second=second,
                          dense=dense:
                          moe_nvfp4.moe_nvfp4_down(results, inner, routes[i % 16][0], down,
                                                   stream, second if dense else None), 96,
                          **context, dense=dense)
        bench.measure('moe_combine', pairs * hidden * 2 + rows * hidden * 4,
                      lambda i, out=out, results=results, routes=routes:
                      moe_nvfp4.moe_nvfp4_combine(out, results, *routes[i % 16], stream), 96,
                      **context)


def prompts(bench: Bench) -> None:
    """The products of prompt rows, by tile."""
    cp, stream = bench.cp, bench.stream
    for name, shape in {**SHAPES, 'gate-up': cases.GATE_UP}.items():
        pair = name == 'gate-up'
        parts = [cases.random_weight(cp, shape, seed, (0x28, 0x48), 0.01)
                 for seed in range(1 + pair)]
        made = fragment_order.to_fragments(parts, interleaved=pair, stream=stream)
        for rows in PROMPTS:
            x = cases.random_rows(cp, (rows, shape[1]), 2)
            out = cases.poisoned(cp, (rows, shape[0]), 'bf16')
            for tile in prefill_gemm.TILES:
                bench.measure_rate(
                    'prefill_gemm', prefill_gemm.flops(rows, *shape, pair),
                    lambda _, x=x, out=out, made=made, tile=tile: prefill_gemm.prefill_gemm(
                        out, x, made, stream, tile), layer=name, rows=rows, tile=tile)
    num_experts, inner_size, hidden = cases.EXPERTS
    gate, up = (cases.random_weight(cp, cases.EXPERTS, seed, (0x28, 0x48), 0.01)
                for seed in (1, 2))
    gate_up = fragment_order.to_fragments([gate, up], interleaved=True, stream=stream)
    down = fragment_order.to_fragments([cases.random_weight(
        cp, (num_experts, hidden, inner_size), 3, (0x28, 0x48), 0.01)], stream=stream)
    for rows in PROMPTS:
        ids, _ = cases.routing(cp, rows, num_experts, cases.CHOSEN, num_experts, 0)
        x = cases.random_rows(cp, (rows, hidden), 4)
        inner = cases.random_rows(cp, (rows, cases.CHOSEN, inner_size), 5)
        results = cases.random_rows(cp, (rows, cases.CHOSEN, hidden), 6)
        scratch = prefill_moe.ExpertOrder.empty(cp, rows, cases.CHOSEN, num_experts)
        product = prefill_gemm.flops(rows * cases.CHOSEN, inner_size, hidden)
        for tile in prefill_moe.TILES:
            context = {'rows': rows, 'tile': tile}
            bench.measure('prefill_sort', rows * cases.CHOSEN * 4 * (2 * num_experts + 1),
                          lambda _, ids=ids, scratch=scratch, tile=tile: prefill_moe.prefill_sort(
                              scratch, ids, num_experts, stream, tile), 24, **context)
            bench.measure_rate(
                'prefill_gate_up', 2 * product,
                lambda _, x=x, inner=inner, ids=ids, scratch=scratch, tile=tile:
                prefill_moe.prefill_gate_up(inner, x, ids, scratch, gate_up, stream, tile),
                **context)
            bench.measure_rate(
                'prefill_down', product,
                lambda _, inner=inner, results=results, ids=ids, scratch=scratch, tile=tile:
                prefill_moe.prefill_down(results, inner, ids, scratch, down, stream, tile),
                **context)


def prompt_attention(bench: Bench) -> None:
    """One chunk of a prompt over what is before it."""
    cp, stream = bench.cp, bench.stream
    page_size = 32
    for name, (window, q_heads, kv_heads, head_dim) in ATTENDED.items():
        for fp8 in (True, False):
            for rows, start in ((512, 0), (4096, 0), (4096, 28672)):
                num_pages = -(-(start + rows) // page_size)
                shape = (num_pages, page_size, kv_heads, head_dim)
                k, v = (cp.full(shape, 0x30, cp.uint8) if fp8 else cases.random_rows(cp, shape, 8)
                        for _ in range(2))
                q = cases.random_rows(cp, (rows, q_heads, head_dim), 7)
                out = cases.poisoned(cp, q.shape, 'bf16')
                spans = cp.asarray(np.array([[0, rows, start, 0]], np.int32))
                table = cp.arange(num_pages, dtype=cp.int32)[None]
                ones = cp.ones(kv_heads, cp.float32)
                bench.measure_rate(
                    'prefill_attention',
                    prefill_attention.flops(rows, start, window, q_heads, head_dim),
                    lambda _, args=(out, q, k, v, spans, table, (ones, ones), window, rows):
                    prefill_attention.prefill_attention(*args, stream), 4,
                    layer=name, rows=rows, start=start, fp8=fp8)


def compile_all() -> None:
    """Fill the cache with what this run needs, in parallel."""
    hardware, shared = device.has_e2m1_conversion(), device.info().shared_bytes_per_block
    specs = [fragment_order.spec(hardware), moe_nvfp4.combine_spec(cases.CHOSEN)]
    for rows in (1, 16):
        for outputs, columns in (*cases.PROJECTIONS, cases.GATE_UP):
            specs += [gemm_nvfp4.spec(columns, rows, pair, hardware,
                                      fragment_order.row_tiles(outputs, pair))
                      for pair in (False, True)]
        specs += [gemm_bf16.spec(columns, rows, False) for _, columns in cases.BF16]
        specs += [gemm_bf16.spec(2816, rows, True), head_nvfp4.spec(2816, rows, shared, hardware)]
    specs += [prefill_gemm.spec(tile, pair, hardware)
              for tile in prefill_gemm.TILES for pair in (False, True)]
    specs += [prefill_gemm.experts_spec(shape, pair, hardware)
              for shape in prefill_moe.TILES.values() for pair in (False, True)]
    compile_together(specs)


def compile_experts() -> None:
    """The same for the experts."""
    hardware = device.has_e2m1_conversion()
    sizes = [(rows, cases.CHOSEN, cases.EXPERTS[0], hardware, dense)
             for rows in moe_nvfp4.KINDS for dense in (0, 3)]
    compile_together([moe_nvfp4.combine_spec(cases.CHOSEN)]
                     + [moe_nvfp4.gate_up_spec(2816, *size) for size in sizes]
                     + [moe_nvfp4.down_spec(704, *size) for size in sizes])


def compile_together(specs: Sequence[compiler.KernelSpec]) -> None:
    """Into the cache, by several threads."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda spec: compiler.cached_cubin(spec, device.info().arch), specs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--only', default='', help='names of parts, with commas between')
    arguments = parser.parse_args()
    device.info()
    bench = Bench('python bench/kernels.py', arguments.commit)
    if not arguments.only:
        compile_all()
    compile_experts()
    failures = 0
    parts = (projections, experts, heads, drafts, prompts, prompt_attention)
    wanted = arguments.only.split(',') if arguments.only else [part.__name__ for part in parts]
    for part in (Bench.bandwidth, *(part for part in parts if part.__name__ in wanted)):
        try:
            part(bench)
        except Exception:  # noqa: BLE001  the other parts' figures are worth having
            traceback.print_exc()
            failures += 1
        bench.cp.get_default_memory_pool().free_all_blocks()
        if arguments.receipt:
            arguments.receipt.parent.mkdir(parents=True, exist_ok=True)
            arguments.receipt.write_text(json.dumps(bench.records, indent=1) + '\n')
    for record in bench.records:
        if record['metric'] == 'op_error':
            print('error', record['context'], f"{record['value']:.2e}")
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
