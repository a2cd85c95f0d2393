# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times products of 2 to 16 rows in NVFP4 as a stream, shared out in several ways.

    python bench/stream_kernels.py --models 26b,12b --rows 16,8 --receipt FILE.json

As bench/kernels.py does, beside the kernel that serves where no stream does. Every way must give
the bits of that kernel; one that does not is said to be wrong, and the exit code is 1.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import kernels

sys.path[:0] = [str(kernels.ROOT / 'test' / 'kernels')]

import cases  # noqa: E402

from gemma_thor_ros.ops import (  # noqa: E402
    device,
    fragment_order,
    gemm_nvfp4,
    head_nvfp4,
    stream_nvfp4,
)

# (N, M); gate-up: (I, M)
SHAPES: dict[str, dict[str, tuple[int, int]]] = {
    '26b': {'qkv sliding': (8192, 2816), 'qkv full': (9216, 2816), 'o sliding': (2816, 4096),
            'o full': (2816, 8192), 'head': (262144, 2816)},
    '12b': {'qkv sliding': (8192, 3840), 'o sliding': (3840, 4096), 'o full': (3840, 8192),
            'gate-up': (15360, 3840), 'down': (3840, 15360)},
    '31b': {'qkv sliding': (16384, 5376), 'o sliding': (5376, 8192), 'o full': (5376, 16384),
            'gate-up': (21504, 5376), 'down': (5376, 21504), 'head': (262144, 5376)}}
FORMS = {'gate-up': 1, 'head': 2}        # 0: plain
NAMES = ('CLUSTER', 'TEAMS', 'ROW_TILES', 'STAGE_TILES', 'STAGES')


def ways(shape: tuple[int, int], rows: int, form: int, hardware: bool, limit: int,
         multiprocessors: int, most: int) -> list[dict[str, int]]:
    """Of each size of cluster those that are reckoned cheapest."""
    tiles = fragment_order.row_tiles(shape[0], form == 1)
    found: list[tuple[float, dict[str, int]]] = []
    for cluster in (1, 2, 4, 8):
        of_cluster: dict[tuple[int, int], tuple[float, dict[str, int]]] = {}
        for teams in (1, 2, 3, 4):
            for row_tiles in (1, 2, 3, 4):
                for stage_tiles in (1, 2):
                    spec = stream_nvfp4.spec(
                        shape[1], rows, form, hardware, tiles, gemm_nvfp4.cut(shape[1]), limit,
                        multiprocessors, CLUSTER=cluster, TEAMS=teams, ROW_TILES=row_tiles,
                        STAGE_TILES=stage_tiles)
                    if spec is None:
                        continue
                    values = dict(spec.defines)
                    way = (stream_nvfp4.cost(values, tiles, multiprocessors),
                           {name: values[name] for name in NAMES})
                    key = (teams, row_tiles)
                    of_cluster[key] = min(of_cluster.get(key, way), way, key=lambda one: one[0])
        found += sorted(of_cluster.values(), key=lambda one: one[0])[:most]
    return [way for _, way in found]


@contextmanager
def shared_out(way: dict[str, int] | None) -> Any:
    """Launch in this way; None: without a stream."""
    modules = gemm_nvfp4, head_nvfp4
    originals: list[Any] = [module.stream_spec for module in modules]
    for module, original in zip(modules, originals, strict=True):
        module.stream_spec = partial(original, **way) if way else lambda *_: None
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            module.stream_spec = original


def run(out: Any, x: Any, weight: Any, stream: Any) -> None:
    """A product, or the head where logits are wanted."""
    if out.dtype == 'float32':
        head_nvfp4.head_nvfp4(out, x, weight, cases.SOFTCAP, stream)
    else:
        gemm_nvfp4.gemm_nvfp4(out, x, weight, stream)


def sweep(bench: kernels.Bench, model: str, rows: tuple[int, ...], most: int) -> int:
    """All products of a model; how many ways gave other bits."""
    cp, stream = bench.cp, bench.stream
    info, hardware = device.info(), device.has_e2m1_conversion()
    chosen = {(name, count): ways(shape, count, FORMS.get(name, 0), hardware,
                                  info.shared_bytes_per_block, info.num_multiprocessors, most)
              for name, shape in SHAPES[model].items() for count in rows}
    kernels.compile_together([spec for (name, count), found in chosen.items() for way in found
                              for spec in [_spec(SHAPES[model][name], count, name, way)] if spec])
    wrong = 0
    for name, shape in SHAPES[model].items():
        pair = name == 'gate-up'
        parts = [cases.random_weight(cp, shape, seed, (0x28, 0x48), 0.01)
                 for seed in range(1 + pair)]
        made = fragment_order.to_fragments(parts, interleaved=pair, stream=stream)
        stream.synchronize()
        weights = kernels.copies_of(bench, made)
        for count in rows:
            x = cases.random_rows(cp, (count, shape[1]), 2)
            expected = None
            for way in (None, *chosen[name, count]):
                out = cases.poisoned(cp, (count, shape[0]), 'f32' if name == 'head' else 'bf16')
                cp.cuda.runtime.deviceSynchronize()
                with shared_out(way):
                    run(out, x, made, stream)
                    stream.synchronize()
                    if expected is None:
                        expected = out.copy()
                    right = bool((out == expected).all())
                    wrong += not right
                    times = bench.times_us(
                        lambda i, out=out, x=x, weights=weights: run(
                            out, x, weights[i % len(weights)], stream),
                        8 if name == 'head' else 96)
                num_bytes = (head_nvfp4.bytes_moved(count, *shape) if name == 'head'
                             else gemm_nvfp4.bytes_moved(count, *shape, pair))
                _report(bench, num_bytes, times, right, layer=f'{model} {name}', rows=count,
                        clusters=_clusters(shape, count, name, way) if way else 0,
                        **(way or {'CLUSTER': 0}))
        del parts, made, weights
        cp.get_default_memory_pool().free_all_blocks()
    return wrong


def _spec(shape: tuple[int, int], count: int, name: str, way: dict[str, int]) -> Any:
    info, form = device.info(), FORMS.get(name, 0)
    return stream_nvfp4.spec(
        shape[1], count, form, device.has_e2m1_conversion(),
        fragment_order.row_tiles(shape[0], form == 1), gemm_nvfp4.cut(shape[1]),
        info.shared_bytes_per_block, info.num_multiprocessors, **way)


def _clusters(shape: tuple[int, int], count: int, name: str, way: dict[str, int]) -> int:
    """How many the device has room for, as it says."""
    spec = _spec(shape, count, name, way)
    values = dict(spec.defines)
    return device.clusters_at_once(device.compiled(spec), values['CLUSTER'],
                                   stream_nvfp4.warps(values) * 32,
                                   stream_nvfp4.shared_bytes(values))


def _report(bench: kernels.Bench, num_bytes: int, times: list[float], right: bool,
            **context: Any) -> None:
    median = statistics.median(times)
    rate = num_bytes / median / 1e3
    bench.record('op_gb_s', rate, 'GB/s', [num_bytes / max(times) / 1e3,
                                           num_bytes / min(times) / 1e3],
                 rate / bench.read_gb_s, op='stream_nvfp4' if context['CLUSTER'] else 'gemm_nvfp4',
                 us=round(median, 3), **context)
    words = ' '.join(f'{key}={value}' for key, value in context.items())
    print(f'{words:88} {median:8.2f} us {rate / bench.read_gb_s:4.0%}'
          f'{"" if right else "  WRONG BITS"}', flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--models', default='26b,12b,31b')
    parser.add_argument('--rows', default='16,8')
    parser.add_argument('--ways', type=int, default=3, help='ways tried of each size of cluster')
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    arguments = parser.parse_args()
    bench = kernels.Bench('python bench/stream_kernels.py', arguments.commit)
    bench.bandwidth()
    rows, wrong = tuple(int(count) for count in arguments.rows.split(',')), 0
    for model in arguments.models.split(','):
        wrong += sweep(bench, model, rows, arguments.ways)
        if arguments.receipt:
            arguments.receipt.parent.mkdir(parents=True, exist_ok=True)
            arguments.receipt.write_text(json.dumps(bench.records, indent=1) + '\n')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
