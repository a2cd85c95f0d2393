# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times a step's graph with other rings of the products of one row than their own.

    python bench/step_rings.py --preset 12b --format nvfp4 [--layers 12] [--receipt FILE.json]
        [--commit HASH]

Random weights of true shapes, one sequence at depth 256. What is best for a launch among its like
may leave no room for the next one, or have nothing under way while it waits for the one in front;
so each shape tries rings and resident blocks in the whole step, beside the best of the others.
Before and behind: what the step is shorter by without each kind of launch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gemma_thor_ros.cli.bench import uses_of
from gemma_thor_ros.cli.bench_model import random_model
from gemma_thor_ros.cli.bench_records import Records
from gemma_thor_ros.load_device import compile_ahead, compile_specs
from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.cuda_inputs import Key
from gemma_thor_ros.models.cuda_step import CudaGemma4
from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import device, gemm_affine, gemm_nvfp4, gemv
from gemma_thor_ros.ops.affine_specs import affine_specs
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings
from gemma_thor_ros.ops.step_times import times_us
from gemma_thor_ros.weights.mlx_modules import setting_of
from gemma_thor_ros.weights.presets import preset_config

PAGE_SIZE = 64
DEPTH = 256
REPLAYS = 25


def step(model: CudaGemma4, depth: int, rows: int) -> None:
    """Run one step of one sequence, so that the next launches have its inputs."""
    num_pages = -(-(depth + 16) // PAGE_SIZE)
    cache = model.new_kv_cache(num_pages, num_pages, PAGE_SIZE)
    pages = np.arange(num_pages, dtype=np.int32)
    ids = np.random.default_rng(rows).integers(model.vocab_size, size=rows).astype(np.int32)
    batch = Batch(ids, np.arange(depth, depth + rows, dtype=np.int32),
                  (Span(Role.DECODE, 0, rows, depth, pages, pages),),
                  np.arange(rows, dtype=np.int32))
    settings = SampleSettings(temperature=0.0)
    model.choose(batch, cache, [SampleRow(settings, depth + 1 + i) for i in range(rows)])


class Rings:
    """Other constants than the products' own, by columns and row tiles of the weight."""

    def __init__(self, affine: bool) -> None:
        self.module: Any = gemm_affine if affine else gemm_nvfp4
        self.chosen: dict[tuple[int, int], dict[str, int]] = {}
        self.tried: dict[tuple[int, int], list[dict[str, int]]] = {}     # the better ones
        self.asked: dict[tuple[int, int], Any] = {}  # arguments of single_spec
        self._original: Callable[..., Any] = self.module.single_spec
        self.module.single_spec = self._spec

    def key(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, int]:
        """Columns and row tiles."""
        return args[0], options['num_row_tiles'] if 'num_row_tiles' in options else args[3]

    def _spec(self, *args: Any, **options: Any) -> Any:
        key = self.key(args, options)
        self.asked[key] = args, options
        return self._original(*args, **options, **self.chosen.get(key, {}))

    def variants(self, key: tuple[int, int]) -> list[dict[str, int]]:
        """Rings that fit, with 24 to 190 KB under way; all are compiled together."""
        args, options = self.asked[key]
        spec = self._original(*args, **options) or self._original(
            *args, **options, STAGE_TILES=2, STAGES=2, MIN_BLOCKS=1)
        if spec is None:
            return []
        own, limit = dict(spec.defines), device.info().shared_bytes_per_block
        affine = self.module is gemm_affine
        tile_bytes, sums = (128 * args[1] + 64, 1) if affine else (gemm_nvfp4.TILE_BYTES, 0)
        found = []
        for resident in range(1, max(1, 32 // own['K_WARPS']) + 1):
            for tiles in (1, 2, 3, 4, 5, 6, 7):
                for stages in (2, 3, 4, 5, 6, 8):
                    variant = {'STAGE_TILES': tiles, 'STAGES': stages, 'MIN_BLOCKS': resident}
                    under_way = (stages - 1) * tiles * tile_bytes * own['K_WARPS'] * resident
                    if (own['WARP_TILES'] % tiles == 0 and 24000 <= under_way <= 190000
                            and resident >= own['MIN_BLOCKS'] - 2 and tiles > 1
                            and gemv.fits({**own, **variant}, tile_bytes, sums, limit)):
                        found.append(variant)
        specs = [self._original(*args, **options, **variant) for variant in found]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda one: compiler.cached_cubin(one, device.info().arch), specs))
        return found


class Sweep:
    """Times variants for one model; prints and keeps each."""

    def __init__(self, model: CudaGemma4, records: Records, context: dict[str, Any]) -> None:
        self.model, self.records, self.context = model, records, context
        step(model, DEPTH, 1)

    def us(self, **context: Any) -> float:
        """Microseconds of the graph, the median of some replays."""
        times = times_us(self.model.stream, self.model.launches(Key(1, 1, 1)), REPLAYS)
        self.records.add('graph_us', times, 'us', **self.context, rows=1, depth=DEPTH, **context)
        words = ' '.join(f'{name}={value}' for name, value in context.items())
        print(f'{statistics.median(times):9.2f} us {words}', flush=True)
        return statistics.median(times)

    def rings(self, rings: Rings) -> None:
        """Each shape's rings beside the best of the others; what gains 0.4 % stays."""
        self.us()
        for key in sorted(rings.asked):
            least = first = min(self.us(), self.us())
            print(f'-- {key[0]} columns, {key[1]} row tiles: {least:.2f} us', flush=True)
            best: dict[str, int] = rings.chosen.get(key, {})
            times = []
            for variant in rings.tried.get(key) or rings.variants(key):
                rings.chosen[key] = variant
                try:
                    time = self.us(key=list(key), **variant)
                except Exception as error:  # noqa: BLE001 - a variant that asks for too much
                    print(f'{variant}: {error}'[:200], flush=True)
                    continue
                times.append((time, variant))
                if time < min(least, 0.996 * first):
                    best, least = variant, time
            rings.chosen[key] = best
            rings.tried[key] = [variant for time, variant in times if time < 1.012 * least]
            print(f'-- {key[0]} columns, {key[1]} row tiles: {best or "own"}', flush=True)

    def without(self) -> None:
        """What the step is shorter by without each kind of launch: its share of the chain."""
        kinds: dict[Any, int] = {}
        original = device.launch

        def leaving_out(wanted: Any) -> Callable[..., None]:
            def launch(kernel: Any, *args: Any, **options: Any) -> None:
                if wanted is None:
                    kinds[kernel.spec] = kinds.get(kernel.spec, 0) + 1
                if kernel.spec != wanted:
                    original(kernel, *args, **options)
            return launch

        try:
            device.launch = leaving_out(None)
            self.model.launches(Key(1, 1, 1))()
            device.launch = original
            whole = self.us()
            for spec, count in list(kinds.items()):
                device.launch = leaving_out(spec)
                columns = dict(spec.defines).get('COLUMNS', '')
                each = (whole - self.us(without=spec.entry)) / count
                print(f'-- {spec.entry} {columns}: {each:.2f} us each, {count} times', flush=True)
                self.records.add('chain_us', [each], 'us', **self.context, rows=1, op=spec.entry,
                                 count=count, constants=dict(spec.defines))
        finally:
            device.launch = original


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--preset', default='12b')
    parser.add_argument('--format', default='nvfp4')
    parser.add_argument('--layers', type=int, default=12)
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    arguments = parser.parse_args()
    info = device.info()
    setting = setting_of(arguments.format)
    rings = Rings(setting is not None)
    records = Records(arguments.receipt, card=info.name, commit=arguments.commit,
                      command='python bench/step_rings.py ' + ' '.join(sys.argv[1:]))
    config = ModelConfig.from_dict(preset_config(arguments.preset))
    compile_ahead(config, PAGE_SIZE, 'fp8', 16, lambda share: None)
    if setting is not None:
        compile_specs(affine_specs(uses_of(config, setting), info.shared_bytes_per_block), 16,
                      lambda share: None)
    model = random_model(arguments.preset, 'fp8', DEPTH + 64, arguments.layers,
                         setting=setting)
    context: dict[str, Any] = {'model': f'{arguments.preset} of random weights',
                               'format': arguments.format, 'layers': arguments.layers,
                               'path': 'node'}
    sweep = Sweep(model, records, context)
    sweep.without()
    sweep.rings(rings)
    sweep.rings(rings)
    sweep.without()
    return 0


if __name__ == '__main__':
    sys.exit(main())
