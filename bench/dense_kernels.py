# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times the products of the dense models, 31B and 12B: MLX affine at 4 and 8 bits, and NVFP4.

    python bench/dense_kernels.py --receipt FILE.json --commit $(git rev-parse HEAD)
    python bench/dense_kernels.py --singles 31b-4,12b-nvfp4      # one row, with other constants

As bench/kernels.py does, whose figures these stand beside. Variants are other constants than the
op's own choice.
"""
from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import kernels

sys.path[:0] = [str(kernels.ROOT / 'test' / 'kernels')]

import affine_cases  # noqa: E402
import cases  # noqa: E402

from gemma_thor_ros.ops import (  # noqa: E402
    affine_order,
    device,
    fragment_order,
    gemm_affine,
    gemm_nvfp4,
    gemv,
    head_nvfp4,
    prefill_gemm,
)

# (N, M); gate-up: (I, M)
SHAPES: dict[str, dict[str, tuple[int, int]]] = {
    '31b': {'qkv sliding': (16384, 5376), 'o sliding': (5376, 8192), 'o full': (5376, 16384),
            'gate-up': (21504, 5376), 'down': (5376, 21504), 'head': (262144, 5376)},
    '12b': {'qkv sliding': (8192, 3840), 'o sliding': (3840, 4096), 'gate-up': (15360, 3840),
            'down': (3840, 15360)}}
SINGLES = {**SHAPES, '26b': {'qkv sliding': (8192, 2816), 'o sliding': (2816, 4096),
                             'o full': (2816, 8192), 'head': (262144, 2816)}}
VARIED = ('qkv sliding', 'gate-up', 'down', 'head')
LAUNCHES = 16
PROMPT = 512                             # rows


def variants(tiles: int, columns: int, rows: int, bits: int) -> list[dict[str, int]]:
    """The op's own constants, and others; tiles: row tiles of the matrix."""
    own = dict(gemm_affine.spec(columns, rows, bits, 64, num_row_tiles=tiles).defines)
    found: list[dict[str, int]] = [{}]
    if own['MIN_BLOCKS'] > 1:
        found.append({'MIN_BLOCKS': own['MIN_BLOCKS'] - 1})
    if rows > 1:
        found.append({'ROW_TILES': 3 - own['ROW_TILES'],
                      'STAGES': 3 if own['ROW_TILES'] == 1 else own['STAGES']})
    return found


def affine(bench: kernels.Bench, model: str, bits: int) -> None:
    """One model's products in affine codes of one width, groups of 64."""
    cp, stream = bench.cp, bench.stream
    for name, shape in SHAPES[model].items():
        pair = name == 'gate-up'
        parts = [affine_cases.random_affine(cp, seed, shape, bits, 64)
                 for seed in range(1 + pair)]
        cp.cuda.runtime.deviceSynchronize()
        made = affine_order.to_affine(parts, interleaved=pair, stream=stream)
        stream.synchronize()
        weights = [made] * max(1, -(-kernels.ROTATE_BYTES // made.nbytes))
        weights[1:] = [affine_order.AffineFragments(
            made.words.copy(), made.scales.copy(), made.num_outputs, made.columns, bits, 64,
            pair) for _ in weights[1:]]
        for rows in (1, 16):
            x = cases.random_rows(cp, (rows, shape[1]), 2)
            out = cases.poisoned(cp, (rows, shape[0]), 'f32' if name == 'head' else 'bf16')
            run: Callable[[int], None] = partial(_run_affine, out, x, weights, stream)
            chosen = (variants(made.num_row_tiles, shape[1], rows, bits) if name in VARIED
                      else [{}])
            for variant in chosen:
                context = {'layer': f'{model} {name}', 'rows': rows, 'bits': bits}
                try:
                    with kernels.constants(gemm_affine, 'spec', **variant):
                        _measure(bench, 'gemm_affine', gemm_affine.bytes_moved(
                            rows, *shape, bits, 64, pair), run, **context, **variant)
                except Exception as error:  # noqa: BLE001 - a variant that asks for too much
                    print(f'gemm_affine {context} {variant}: {error}'[:300], flush=True)
        if not pair:
            _error(bench, parts[0], made, f'{model} {name}')
        if bits == 4 and name in ('gate-up', 'down'):
            x = cases.random_rows(cp, (PROMPT, shape[1]), 3)
            out = cases.poisoned(cp, (PROMPT, shape[0]), 'bf16')
            bench.measure_rate(
                'gemm_affine prompt', prefill_gemm.flops(PROMPT, *shape, pair),
                lambda _, x=x, out=out, made=made: gemm_affine.gemm_affine(
                    out, x, made, stream, prompt=True), 4, layer=f'{model} {name}', rows=PROMPT)
        del parts, made, weights
        cp.get_default_memory_pool().free_all_blocks()


def _error(bench: kernels.Bench, weight: affine_cases.Affine, made: Any, layer: str) -> None:
    """Sums before their rounding against float64: the most of |error| over the sum of |terms|.

    The head's form gives them, with a cap that changes nothing; rows of one sign as well.
    """
    cp, stream, num_rows = bench.cp, bench.stream, 9
    x = cases.random_rows(cp, (num_rows, made.columns), 4)
    x[1] &= 0x7FFF
    sums = cases.poisoned(cp, (num_rows, made.num_outputs), 'f32')
    cp.cuda.runtime.deviceSynchronize()
    gemm_affine.head_affine(sums, x, made, 1e6, stream)
    stream.synchronize()
    rows, most = cases.from_bf16(cp, x), 0.0
    for start in range(0, min(made.num_outputs, 32768), 8192):
        part = slice(start, min(start + 8192, made.num_outputs))
        values = weight.values(cp, part)
        exact, terms = rows @ values.T, cp.abs(rows) @ cp.abs(values).T
        # tanhf and two roundings stand behind the sums
        off = cp.abs(sums[:, part] - exact) / (terms + 0.1 * cp.abs(exact))
        most = max(most, float(off.max()))
    bench.record('op_error', most, '|error| / sum |terms|', op='gemm_affine', layer=layer,
                 rows=num_rows, bits=made.bits)
    print(f'gemm_affine {layer} {made.bits} bits: error {most:.1e} of the sum of |terms|',
          flush=True)


def _run_affine(out: Any, x: Any, weights: list[Any], stream: Any, index: int) -> None:
    weight = weights[index % len(weights)]
    if out.dtype == 'float32':
        gemm_affine.head_affine(out, x, weight, cases.SOFTCAP, stream)
    else:
        gemm_affine.gemm_affine(out, x, weight, stream)


def nvfp4(bench: kernels.Bench, model: str) -> None:
    """The same in NVFP4, but for the head, which bench/kernels.py has."""
    cp, stream = bench.cp, bench.stream
    for name, shape in SHAPES[model].items():
        if name == 'head':
            continue
        pair = name == 'gate-up'
        parts = [cases.random_weight(cp, shape, seed, (0x28, 0x48), 0.01)
                 for seed in range(1 + pair)]
        made = fragment_order.to_fragments(parts, interleaved=pair, stream=stream)
        weights = kernels.copies_of(bench, made)
        for rows in (1, 16):
            x = cases.random_rows(cp, (rows, shape[1]), 2)
            out = cases.poisoned(cp, (rows, shape[0]), 'bf16')
            others = ([{'MIN_BLOCKS': 1}, {'MIN_BLOCKS': 2}, {'MIN_BLOCKS': 3, 'PREFETCH': 2,
                                                             'ACTIVATIONS': 1}]
                      if rows == 1 else [{'ROW_TILES': 1, 'MIN_BLOCKS': 2}])
            for variant in [{}, *others] if name in VARIED else [{}]:
                with kernels.constants(gemm_nvfp4, 'spec', **variant):
                    _measure(bench, 'gemm_nvfp4', gemm_nvfp4.bytes_moved(rows, *shape, pair),
                             lambda i, x=x, out=out, weights=weights: gemm_nvfp4.gemm_nvfp4(
                                 out, x, weights[i % len(weights)], stream),
                             layer=f'{model} {name}', rows=rows, **variant)


def singles(bench: kernels.Bench, model: str, kind: str) -> None:
    """One row with every ring and number of resident blocks that has room; kind: bits or nvfp4."""
    cp, stream = bench.cp, bench.stream
    limit, hardware = device.info().shared_bytes_per_block, device.has_e2m1_conversion()
    module: Any = gemm_nvfp4 if kind == 'nvfp4' else gemm_affine
    for name, shape in SINGLES[model].items():
        pair = name == 'gate-up'
        weights: list[Any]
        if kind == 'nvfp4' and name == 'head':
            heads(bench, model, shape)
            continue
        if kind == 'nvfp4':
            packed = [cases.random_weight(cp, shape, seed, (0x28, 0x48), 0.01)
                      for seed in range(1 + pair)]
            weights = kernels.copies_of(bench, fragment_order.to_fragments(
                packed, interleaved=pair, stream=stream))
            own = gemm_nvfp4.single_spec(shape[1], pair, hardware,
                                         fragment_order.row_tiles(shape[0], pair), limit)
            num_bytes = gemm_nvfp4.bytes_moved(1, *shape, pair)
            tile_bytes, sums = gemm_nvfp4.TILE_BYTES, 0
        else:
            bits = int(kind)
            parts = [affine_cases.random_affine(cp, seed, shape, bits, 64)
                     for seed in range(1 + pair)]
            cp.cuda.runtime.deviceSynchronize()
            made = affine_order.to_affine(parts, interleaved=pair, stream=stream)
            stream.synchronize()
            weights = [made] + [affine_order.AffineFragments(
                made.words.copy(), made.scales.copy(), made.num_outputs, made.columns, bits, 64,
                pair) for _ in range(kernels.ROTATE_BYTES // made.nbytes)]
            form: gemm_affine.Form = 'geglu' if pair else 'head' if name == 'head' else 'plain'
            own = gemm_affine.single_spec(shape[1], bits, 64, form, limit,
                                          num_row_tiles=made.num_row_tiles)
            num_bytes = gemm_affine.bytes_moved(1, *shape, bits, 64, pair)
            tile_bytes, sums = 128 * bits + 64, 1
            del parts
        if own is None:
            continue
        x = cases.random_rows(cp, (1, shape[1]), 2)
        out = cases.poisoned(cp, (1, shape[0]), 'f32' if name == 'head' else 'bf16')

        def run(index: int, weights: list[Any] = weights, x: Any = x, out: Any = out) -> None:
            if kind == 'nvfp4':
                gemm_nvfp4.gemm_nvfp4(out, x, weights[index % len(weights)], stream)
            else:
                _run_affine(out, x, weights, stream, index)

        found = [{}, *single_variants(dict(own.defines), tile_bytes, sums, limit)]
        kernels.compile_together([type(own).of(own.file, **{**dict(own.defines), **variant})
                                  for variant in found])
        context = {'layer': f'{model} {name}', 'rows': 1, 'kind': kind}
        for variant in found:
            try:
                with kernels.constants(module, 'single_spec', **variant):
                    _measure(bench, own.entry, num_bytes, run, **context, **variant)
            except Exception as error:  # noqa: BLE001 - a variant that asks for too much
                print(f'{own.entry} {context} {variant}: {error}'[:300], flush=True)
        original = module.single_spec
        module.single_spec = lambda *_, **__: None
        try:
            _measure(bench, f'gemm_{own.entry[5:]}', num_bytes, run, **context)
        finally:
            module.single_spec = original
        del weights, run
        cp.get_default_memory_pool().free_all_blocks()


def heads(bench: kernels.Bench, model: str, shape: tuple[int, int]) -> None:
    """The head in NVFP4: one row alone, by the kernel for up to 16 rows too, and 16 rows."""
    cp, stream = bench.cp, bench.stream
    made = fragment_order.to_fragments([cases.random_weight(cp, shape, 3, (0x28, 0x48), 0.02)],
                                       stream=stream)
    original = head_nvfp4.served_spec
    for rows, alone in ((1, True), (1, False), (16, False)):
        x = cases.random_rows(cp, (rows, shape[1]), 2)
        logits = cases.poisoned(cp, (rows, shape[0]), 'f32')
        if not alone:
            head_nvfp4.served_spec = lambda *sizes: head_nvfp4.spec(*sizes[:4])
        try:
            _measure(bench, 'gemv_nvfp4' if alone else 'head_nvfp4',
                     head_nvfp4.bytes_moved(rows, *shape),
                     lambda i, x=x, logits=logits: head_nvfp4.head_nvfp4(
                         logits, x, made, cases.SOFTCAP, stream),
                     layer=f'{model} head', rows=rows, kind='nvfp4')
        finally:
            head_nvfp4.served_spec = original


def single_variants(own: dict[str, int], tile_bytes: int, sums: int,
                    limit: int) -> list[dict[str, int]]:
    """Other constants than an op's own: rings of 3 to 14 KB a warp, and blocks resident."""
    found = []
    most = max(1, 32 // own['K_WARPS'])
    for resident in range(most, max(0, most - 2), -1):
        for stage_tiles, stages in ((2, 2), (2, 3), (2, 4), (2, 6), (2, 8), (3, 2), (3, 3),
                                    (3, 4), (3, 6), (4, 2), (4, 3), (4, 4), (4, 6), (6, 2), (7, 2),
                                    (8, 2)):
            variant = {'STAGE_TILES': stage_tiles, 'STAGES': stages, 'MIN_BLOCKS': resident}
            if (own['WARP_TILES'] % stage_tiles == 0
                    and 3400 <= stages * stage_tiles * tile_bytes <= 14400
                    and gemv.fits({**own, **variant}, tile_bytes, sums, limit)):
                found.append(variant)
    if own.get('RAW'):
        found.append({'RAW': 0, **{name: own[name] for name in (
            'STAGE_TILES', 'STAGES', 'MIN_BLOCKS')}})
    return found


def _measure(bench: kernels.Bench, op: str, num_bytes: int, enqueue: Callable[[int], None],
             **context: Any) -> None:
    """Time launches that overlap; print and record."""
    times = sorted(bench.times_us(enqueue, LAUNCHES))
    median = times[len(times) // 2]
    rate = num_bytes / median / 1e3
    bench.record('op_gb_s', rate, 'GB/s', [num_bytes / t / 1e3 for t in (times[-1], times[0])],
                 rate / bench.read_gb_s, op=op, us=round(median, 3), overlap=True, **context)
    words = ' '.join(f'{key}={value}' for key, value in context.items())
    print(f'{op:12} {words:90} {median:8.2f} us {rate:6.0f} GB/s {rate / bench.read_gb_s:4.0%}',
          flush=True)


def compile_all() -> None:
    """Fill the cache with what this run needs, in parallel."""
    specs = []
    for shapes in SHAPES.values():
        for name, (outputs, columns) in shapes.items():
            form: gemm_affine.Form = ('geglu' if name == 'gate-up' else 'head' if name == 'head'
                                      else 'plain')
            tiles = fragment_order.row_tiles(outputs, name == 'gate-up')
            limit = device.info().shared_bytes_per_block
            specs += [spec for bits in (4, 8) if (spec := gemm_affine.single_spec(
                columns, bits, 64, form, limit, num_row_tiles=tiles))]
            specs += [gemm_affine.spec(columns, rows, bits, 64, form, num_row_tiles=tiles,
                                       **variant)
                      for bits in (4, 8) for rows in (16,)
                      for variant in (variants(tiles, columns, rows, bits) if name in VARIED
                                      else [{}])]
    kernels.compile_together(list(dict.fromkeys(specs)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--singles', default='', help='models and formats, as 31b-4,31b-nvfp4: '
                        'one row alone, with other constants')
    arguments = parser.parse_args()
    assert device.info().name
    bench = kernels.Bench('python bench/dense_kernels.py', arguments.commit)
    parts: list[Callable[[], None]] = [bench.bandwidth]
    if arguments.singles:
        parts += [partial(singles, bench, *name.split('-')) for name in
                  arguments.singles.split(',')]
    else:
        compile_all()
    for model in [] if arguments.singles else list(SHAPES):
        parts += [partial(affine, bench, model, 4), partial(affine, bench, model, 8),
                  partial(nvfp4, bench, model)]
    failures = 0
    for part in parts:
        try:
            part()
        except Exception:  # noqa: BLE001 - the other parts' figures are worth having
            failures += 1
            traceback.print_exc()
        if arguments.receipt:
            arguments.receipt.write_text(json.dumps(bench.records, indent=1), encoding='utf-8')
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
