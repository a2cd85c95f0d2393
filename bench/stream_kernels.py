# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times products of 2 to 16 rows in NVFP4 as a stream, shared out in several ways.

    python bench/stream_kernels.py --models 26b,12b --rows 16,8 --receipt FILE.json
    python bench/stream_kernels.py --models 31b --heads          # the head, with other constants

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
            'o full': (2816, 8192)},
    '12b': {'qkv sliding': (8192, 3840), 'o sliding': (3840, 4096), 'o full': (3840, 8192),
            'gate-up': (15360, 3840), 'down': (3840, 15360)},
    '31b': {'qkv sliding': (16384, 5376), 'o sliding': (5376, 8192), 'o full': (5376, 16384),
            'gate-up': (21504, 5376), 'down': (5376, 21504)}}
HEADS = {'26b': 2816, '12b': 3840, '31b': 5376}          # columns
VOCABULARY = 262144
HEAD_VARIANTS: list[dict[str, int]] = [
    {}, {'ROW_TILES': 2, 'STAGE_TILES': 2, 'STAGES': 6},
    {'ROW_TILES': 2, 'STAGE_TILES': 2, 'STAGES': 6, 'WARPS': 12},
    {'ROW_TILES': 2, 'STAGE_TILES': 2, 'STAGES': 8, 'WARPS': 12},
    {'ROW_TILES': 2, 'STAGE_TILES': 4, 'STAGES': 4, 'WARPS': 12},
    {'ROW_TILES': 2, 'STAGE_TILES': 4, 'STAGES': 4, 'WARPS': 16},
    {'ROW_TILES': 2, 'STAGE_TILES': 4, 'STAGES': 6, 'WARPS': 8},
    {'ROW_TILES': 2, 'STAGE_TILES': 3, 'STAGES': 4, 'WARPS': 8},
    {'ROW_TILES': 2, 'STAGE_TILES': 3, 'STAGES': 4, 'WARPS': 12},
    {'ROW_TILES': 2, 'STAGE_TILES': 4, 'STAGES': 4, 'WARPS': 8},
    {'ROW_TILES': 2, 'STAGE_TILES': 2, 'STAGES': 4, 'WARPS': 8}, {'STAGES': 2}, {'STAGES': 4},
    {'WARPS': 12}, {'WARPS': 12, 'STAGES': 2}, {'WARPS': 8, 'STAGES': 4}]
NAMES = ('CLUSTER', 'TEAMS', 'ROW_TILES', 'STAGE_TILES', 'STAGES', 'HELD')


def ways(shape: tuple[int, int], rows: int, pair: bool, hardware: bool, limit: int,
         multiprocessors: int, most: int) -> list[dict[str, int]]:
    """Of each size of cluster those that are reckoned cheapest, with every size of a stage."""
    tiles = fragment_order.row_tiles(shape[0], pair)
    found: list[dict[str, int]] = []
    for held in (1, 0):                  # one block, few row tiles at once, rings of every depth
        for row_tiles, stage_tiles in ((1, 4), (2, 4), (2, 2), (4, 2)):
            for stages in (2, 3, 4, 6):
                way = dict(zip(NAMES, (1, 1, row_tiles, stage_tiles, stages, held), strict=True))
                if stream_nvfp4.spec(shape[1], rows, pair, hardware, tiles,
                                     gemm_nvfp4.cut(shape[1]), limit, multiprocessors, **way):
                    found.append(way)
    for cluster, held in ((1, 1), (1, 0), (2, 1), (2, 0), (4, 0), (8, 0)):
        of_cluster: dict[tuple[int, int], tuple[float, list[dict[str, int]]]] = {}
        for teams in (1, 2, 3, 4):
            for row_tiles in (1, 2, 3, 4):
                for stage_tiles in (4, 3, 2, 1):
                    spec = stream_nvfp4.spec(
                        shape[1], rows, pair, hardware, tiles, gemm_nvfp4.cut(shape[1]), limit,
                        multiprocessors, CLUSTER=cluster, TEAMS=teams, ROW_TILES=row_tiles,
                        STAGE_TILES=stage_tiles, HELD=held)
                    if spec is None:
                        continue
                    values = dict(spec.defines)
                    _, ways_so_far = of_cluster.setdefault((teams, row_tiles), (
                        stream_nvfp4.cost(values, tiles, multiprocessors), []))
                    ways_so_far.append({name: values[name] for name in NAMES})
        for _, some in sorted(of_cluster.values(), key=lambda one: one[0])[:most]:
            found += some
    return [way for index, way in enumerate(found) if way not in found[:index]]


@contextmanager
def shared_out(way: dict[str, int] | None) -> Any:
    """Launch in this way; None: without a stream. Never with rows in registers."""
    original: Any = gemm_nvfp4.stream_spec
    setattr(gemm_nvfp4, 'stream_spec',               # noqa: B010
            partial(original, **way) if way else lambda *_: None)
    try:
        with no_rows_in_registers():
            yield
    finally:
        gemm_nvfp4.stream_spec = original


@contextmanager
def no_rows_in_registers() -> Any:
    """Let the other kernels serve what rows_nvfp4 does."""
    original: Any = gemm_nvfp4.rows_spec
    setattr(gemm_nvfp4, 'rows_spec', lambda *_, **__: None)      # noqa: B010
    try:
        yield
    finally:
        gemm_nvfp4.rows_spec = original


def heads(bench: kernels.Bench, model: str, rows: tuple[int, ...]) -> int:
    """The head with other constants; how many gave other bits than the first."""
    cp, stream, wrong, shape = bench.cp, bench.stream, 0, (VOCABULARY, HEADS[model])
    limit, hardware = device.info().shared_bytes_per_block, device.has_e2m1_conversion()
    kernels.compile_together([head_nvfp4.spec(shape[1], count, limit, hardware, **variant)
                              for count in rows for variant in HEAD_VARIANTS])
    made = fragment_order.to_fragments([cases.random_weight(cp, shape, 3, (0x28, 0x48), 0.02)],
                                       stream=stream)
    for count in rows:
        x, expected = cases.random_rows(cp, (count, shape[1]), 5), None
        for variant in HEAD_VARIANTS:
            logits = cases.poisoned(cp, (count, shape[0]), 'f32')
            cp.cuda.runtime.deviceSynchronize()
            with no_rows_in_registers(), kernels.constants(head_nvfp4, 'spec', **variant):
                run = partial(head_nvfp4.head_nvfp4, logits, x, made, cases.SOFTCAP, stream)
                run()
                stream.synchronize()
                expected = logits.copy() if expected is None else expected
                right = bool((logits == expected).all())
                wrong += not right
                times = bench.times_us(lambda _, run=run: run(), 8)
            _report(bench, head_nvfp4.bytes_moved(count, *shape), times, right, op='head_nvfp4',
                    layer=f'{model} head', rows=count, **variant)
    return wrong


def sweep(bench: kernels.Bench, model: str, rows: tuple[int, ...], most: int,
          layers: list[str]) -> int:
    """Products of a model, all where no layers are named; how many ways gave other bits."""
    cp, stream = bench.cp, bench.stream
    info, hardware = device.info(), device.has_e2m1_conversion()
    chosen = {(name, count): ways(shape, count, name == 'gate-up', hardware,
                                  info.shared_bytes_per_block, info.num_multiprocessors, most)
              for name, shape in SHAPES[model].items() for count in rows
              if not layers or name in layers}
    kernels.compile_together([spec for (name, count), found in chosen.items() for way in found
                              for spec in [_spec(SHAPES[model][name], count, name, way)] if spec])
    wrong = 0
    for name, shape in SHAPES[model].items():
        if layers and name not in layers:
            continue
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
                out = cases.poisoned(cp, (count, shape[0]), 'bf16')
                cp.cuda.runtime.deviceSynchronize()
                with shared_out(way):
                    gemm_nvfp4.gemm_nvfp4(out, x, made, stream)
                    stream.synchronize()
                    if expected is None:
                        expected = out.copy()
                    right = bool((out == expected).all())
                    wrong += not right
                    times = bench.times_us(
                        lambda i, out=out, x=x, weights=weights: gemm_nvfp4.gemm_nvfp4(
                            out, x, weights[i % len(weights)], stream), 96)
                _report(bench, gemm_nvfp4.bytes_moved(count, *shape, pair), times, right,
                        op='stream_nvfp4' if way else 'gemm_nvfp4', layer=f'{model} {name}',
                        rows=count, clusters=_clusters(shape, count, name, way) if way else 0,
                        **(way or {}))
        del parts, made, weights
        cp.get_default_memory_pool().free_all_blocks()
    return wrong


def _spec(shape: tuple[int, int], count: int, name: str, way: dict[str, int]) -> Any:
    info, pair = device.info(), name == 'gate-up'
    return stream_nvfp4.spec(
        shape[1], count, pair, device.has_e2m1_conversion(),
        fragment_order.row_tiles(shape[0], pair), gemm_nvfp4.cut(shape[1]),
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
                 rate / bench.read_gb_s, us=round(median, 3), **context)
    words = ' '.join(f'{key}={value}' for key, value in context.items())
    print(f'{words:88} {median:8.2f} us {rate / bench.read_gb_s:4.0%}'
          f'{"" if right else "  WRONG BITS"}', flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--models', default='26b,12b,31b')
    parser.add_argument('--rows', default='16,8')
    parser.add_argument('--layers', default='', help='names of SHAPES; all without')
    parser.add_argument('--heads', action='store_true', help='the heads alone')
    parser.add_argument('--ways', type=int, default=3, help='ways tried of each size of cluster')
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    arguments = parser.parse_args()
    bench = kernels.Bench('python bench/stream_kernels.py', arguments.commit)
    bench.bandwidth()
    rows, wrong = tuple(int(count) for count in arguments.rows.split(',')), 0
    for model in arguments.models.split(','):
        if arguments.heads:
            wrong += heads(bench, model, rows)
        else:
            wrong += sweep(bench, model, rows, arguments.ways,
                           [name for name in arguments.layers.split(',') if name])
        if arguments.receipt:
            arguments.receipt.parent.mkdir(parents=True, exist_ok=True)
            arguments.receipt.write_text(json.dumps(bench.records, indent=1) + '\n')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
