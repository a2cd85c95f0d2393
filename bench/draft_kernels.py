# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times the drafters' bf16 products at the shapes of 26B-A4B, and their draft passes as a whole.

    python bench/draft_kernels.py --receipt FILE.json --commit $(git rev-parse HEAD)

Each product as bench/kernels.py does it, by gemm_bf16 and by stream_bf16 with some constants; each
pass as a graph, with rings of some sizes.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'bench'), str(ROOT / 'test' / 'kernels')]

import cases  # noqa: E402

from gemma_thor_ros.cli import bench_device, bench_draft  # noqa: E402
from gemma_thor_ros.cli.bench_model import random_model  # noqa: E402
from gemma_thor_ros.cli.bench_records import Records  # noqa: E402
from gemma_thor_ros.load_device import compile_specs, drafter_specs  # noqa: E402
from gemma_thor_ros.ops import (  # noqa: E402
    device,
    fragment_order,
    gemm_bf16,
    gemm_nvfp4,
    head_nvfp4,
)
from gemma_thor_ros.ops.step_times import times_us  # noqa: E402
from gemma_thor_ros.weights.drafter_presets import drafter_preset_config  # noqa: E402
from kernels import ROTATE_BYTES, Bench  # noqa: E402

Gate = gemm_bf16.Gate
# N, M, rows, gate
SHAPES: dict[str, tuple[int, int, int, Gate]] = {
    'mtp q': (4096, 1024, 1, 'none'), 'mtp q full': (8192, 1024, 1, 'none'),
    'mtp o': (1024, 4096, 1, 'none'), 'mtp o full, down': (1024, 8192, 1, 'none'),
    'mtp gate-up': (8192, 1024, 1, 'gelu'), 'mtp pre': (1024, 5632, 1, 'none'),
    'mtp post': (2816, 1024, 1, 'none'), 'dflash qkv': (6144, 2816, 16, 'none'),
    'dflash o': (2816, 4096, 16, 'none'), 'dflash gate-up': (5632, 2816, 16, 'silu'),
    'dflash down': (2816, 5632, 16, 'none'), 'dflash kv': (10240, 2816, 16, 'none')}
VARIANTS: list[dict[str, int]] = [
    {}, {'GROUPS': 1}, {'GROUPS': 2}, {'STAGES': 4}, {'STAGES': 5}, {'MIN_BLOCKS': 2}]
# fewer warps with more tiles each leave registers and memory to a second block
WIDE: dict[int, list[dict[str, int]]] = {
    2816: [{'K_WARPS': 4, 'WARP_TILES': 11, 'STAGES': stages, 'MIN_BLOCKS': blocks}
           for stages, blocks in ((6, 1), (8, 1), (10, 1), (6, 2), (8, 2))],
    4096: [{'K_WARPS': 8, 'WARP_TILES': 8, 'STAGES': stages, 'MIN_BLOCKS': 1}
           for stages in (6, 9, 12)]}
FEWEST = (99, gemm_bf16.FEWEST_STREAMED, 5)          # tiles of a warp: none, as served, fewer
# heads of 1,024 columns: constants of gemv_nvfp4
HEADS: list[dict[str, int]] = [
    {}, {'K_WARPS': 16, 'WARP_TILES': 1, 'STAGE_TILES': 1, 'STAGES': 4, 'MIN_BLOCKS': 1},
    {'K_WARPS': 4, 'WARP_TILES': 4, 'STAGE_TILES': 4, 'STAGES': 2, 'MIN_BLOCKS': 7},
    {'K_WARPS': 4, 'WARP_TILES': 4, 'STAGE_TILES': 4, 'STAGES': 3, 'MIN_BLOCKS': 6},
    {'K_WARPS': 4, 'WARP_TILES': 4, 'STAGE_TILES': 2, 'STAGES': 4, 'MIN_BLOCKS': 7},
    {'K_WARPS': 8, 'WARP_TILES': 2, 'STAGE_TILES': 2, 'STAGES': 4, 'MIN_BLOCKS': 3},
    {'K_WARPS': 2, 'WARP_TILES': 8, 'STAGE_TILES': 4, 'STAGES': 3, 'MIN_BLOCKS': 12},
    {'K_WARPS': 16, 'WARP_TILES': 1, 'STAGE_TILES': 1, 'STAGES': 8, 'MIN_BLOCKS': 1},
    {'K_WARPS': 16, 'WARP_TILES': 1, 'STAGE_TILES': 1, 'STAGES': 6, 'MIN_BLOCKS': 2}]


def products(bench: Bench) -> None:
    """Every shape by both kernels, and the constants of the second."""
    served = gemm_bf16.stream_spec
    for name, (outputs, columns, rows, gate) in SHAPES.items():
        shape = (outputs * (1 if gate == 'none' else 2), columns)
        limit = bench.info.shared_bytes_per_block
        chosen: dict[Any, dict[str, int]] = {}
        for variant in VARIANTS + (WIDE.get(columns, []) if rows == 16 else []):
            if gate != 'none' and variant.get('GROUPS') == 1:
                continue
            spec = served(columns, outputs, rows, gate, limit, **variant)
            if spec is not None:
                chosen.setdefault(spec, variant)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(device.compiled, chosen))
        count = -(-ROTATE_BYTES // (2 * shape[0] * shape[1]))
        weights = [cases.random_rows(bench.cp, shape, 6)]
        weights += [weights[0].copy() for _ in range(count - 1)]
        x = cases.random_rows(bench.cp, (rows, columns), 7)
        out = cases.poisoned(bench.cp, (rows, outputs), 'bf16')

        def enqueue(index: int, gate: Gate, x: Any, out: Any, weights: list[Any]) -> None:
            weight = weights[index % len(weights)]
            if gate == 'none':
                gemm_bf16.gemm_bf16(out, x, weight, bench.stream)
            else:
                gemm_bf16.gated_bf16(out, x, weight, gate, bench.stream)

        run = partial(enqueue, gate=gate, x=x, out=out, weights=weights)
        num_bytes = gemm_bf16.bytes_moved(rows, *shape)
        for kernel, variant in [('gemm_bf16', {}), *(('stream_bf16', v) for v in chosen.values())]:
            gemm_bf16.FEWEST_STREAMED = 1 if kernel == 'stream_bf16' else 99
            gemm_bf16._MOST_STREAMED_WARPS = 16
            gemm_bf16.stream_spec = partial(served, **variant)
            try:
                bench.measure(kernel, num_bytes, run, 96, layer=name, rows=rows, **variant)
            finally:
                gemm_bf16.stream_spec, gemm_bf16.FEWEST_STREAMED = served, FEWEST[1]


def passes(bench: Bench) -> None:
    """Draft passes as graphs: by gemm_bf16, as they are served, and with fewer streams."""
    model = random_model('26b-a4b', 'fp8', 2048)
    part = bench_device.Bench(model, Records(None), {}, lambda line: None, bench.read_gb_s)
    for kind in bench_draft.NUM_DRAFTS:
        one = bench_draft._Drafting(part, kind, drafter_preset_config(f'26b-a4b-{kind}'), 1024,
                                    'fp8')
        one.begin()
        drafts = bench_draft.NUM_DRAFTS[kind]
        one.drafter.draft([one.span(bench_device.FIRST_ID, 1024, drafts)], None, one.cache)
        for fewest in FEWEST:
            gemm_bf16.FEWEST_STREAMED = fewest
            compile_specs(drafter_specs(one.config, model.config, bench_device.PAGE_SIZE, 'fp8'),
                          16, lambda share: None)
            times = times_us(model.stream, one.drafter.launches(drafts, one.cache))
            median = statistics.median(times)
            bench.record('draft_ms', median / 1e3, 'ms', [min(times) / 1e3, max(times) / 1e3],
                         one.bytes / median / 1e3 / bench.read_gb_s, path='graph', drafter=kind,
                         fewest_tiles=fewest)
            print(f'{kind} pass, streams from {fewest} tiles on: {median:.1f} us, '
                  f'{one.bytes / median / 1e3 / bench.read_gb_s:.0%} of the limit', flush=True)
        gemm_bf16.FEWEST_STREAMED = FEWEST[1]
    model.attach(None)


def heads(bench: Bench) -> None:
    """The head of an assistant for one row, with other cuts of its 1,024 columns."""
    vocab_size, columns = cases.HEAD[0], 1024
    made = fragment_order.to_fragments(
        [cases.random_weight(bench.cp, (vocab_size, columns), 3, (0x28, 0x48), 0.02)],
        stream=bench.stream)
    x = cases.random_rows(bench.cp, (1, columns), 5)
    logits = cases.poisoned(bench.cp, (1, vocab_size), 'f32')
    usual = gemm_nvfp4.single_spec
    for variant in HEADS:
        gemm_nvfp4.single_spec = partial(usual, **variant)
        try:
            bench.measure('head', head_nvfp4.bytes_moved(1, vocab_size, columns),
                          lambda _: head_nvfp4.head_nvfp4(logits, x, made, cases.SOFTCAP,
                                                          bench.stream), 8, **variant)
        finally:
            gemm_nvfp4.single_spec = usual


def main() -> int:
    """Run the parts; print and write each figure as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--receipt', type=Path)
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--parts', default='passes,products,heads')
    args = parser.parse_args()
    bench = Bench('python bench/draft_kernels.py', args.commit)
    bench.bandwidth()
    for part in args.parts.split(','):
        {'passes': passes, 'products': products, 'heads': heads}[part](bench)
        if args.receipt is not None:
            args.receipt.write_text(json.dumps(bench.records, indent=1) + '\n', encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
