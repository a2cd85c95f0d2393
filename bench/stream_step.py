# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times a step of 2 to 16 rows with its NVFP4 products shared out in other ways.

    python bench/stream_step.py --preset 26b-a4b --rows 16 [--layers 12] [--receipt FILE.json]

The graph of a step of random weights, replayed: first without a stream and with the ways that are
served; then each product's ways, one after the other, with the best of those before.
"""
from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from stream_kernels import NAMES, ways

import kernels
from gemma_thor_ros.cli.bench_model import random_model
from gemma_thor_ros.cli.bench_records import Records
from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.cuda_inputs import Key
from gemma_thor_ros.models.cuda_step import CudaGemma4
from gemma_thor_ros.ops import device, gemm_nvfp4, stream_nvfp4
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings
from gemma_thor_ros.ops.step_times import times_us

PAGE_SIZE = 64
REPLAYS = 25
Product = tuple[int, int, bool]          # columns, row tiles, gate and up


def step(model: CudaGemma4, depth: int, rows: int) -> None:
    """Run one step of one sequence, so that the next launches have its inputs."""
    num_pages = -(-(depth + rows + 15) // PAGE_SIZE)
    cache = model.new_kv_cache(num_pages, num_pages, PAGE_SIZE)
    pages = np.arange(num_pages, dtype=np.int32)
    ids = np.random.default_rng(rows).integers(model.vocab_size, size=rows).astype(np.int32)
    batch = Batch(ids, np.arange(depth, depth + rows, dtype=np.int32),
                  (Span(Role.DECODE, 0, rows, depth, pages, pages),),
                  np.arange(rows, dtype=np.int32))
    settings = SampleSettings(temperature=0.0)
    model.choose(batch, cache, [SampleRow(settings, depth + 1 + i) for i in range(rows)])


class Ways:
    """Stands before the choice of a stream: keeps what is asked for, and answers for it."""

    def __init__(self) -> None:
        self.asked: dict[Product, tuple[Any, ...]] = {}
        self.chosen: dict[Product, dict[str, int] | None] = {}   # None: without a stream
        self._own: Any = gemm_nvfp4.stream_spec
        setattr(gemm_nvfp4, 'stream_spec', self._answer)         # noqa: B010
        self._rows: Any = gemm_nvfp4.rows_spec
        setattr(gemm_nvfp4, 'rows_spec', self._answer_rows)      # noqa: B010

    def _answer(self, *args: Any) -> KernelSpec | None:
        columns, rows, pair, hardware, tiles, limit, multiprocessors = args
        product, sizes = (columns, tiles, pair), (rows, hardware, limit, multiprocessors)
        self.asked[product] = sizes
        if product in self.chosen:
            way = self.chosen[product]
            return self.spec(product, **way) if way else None
        found: KernelSpec | None = self._own(*args)
        return found

    def _answer_rows(self, *args: Any, head: bool = False) -> KernelSpec | None:
        columns, rows, hardware, tiles, limit, multiprocessors = args
        product = columns, tiles, False
        if not head:
            self.asked[product] = rows, hardware, limit, multiprocessors
        if product in self.chosen:
            return None
        found: KernelSpec | None = self._rows(*args, head=head)
        return found

    def spec(self, product: Product, **way: int) -> KernelSpec | None:
        """What is compiled for a product in this way."""
        rows, hardware, limit, multiprocessors = self.asked[product]
        return stream_nvfp4.spec(
            product[0], rows, product[2], hardware, product[1], gemm_nvfp4.cut(product[0]), limit,
            multiprocessors, **way)

    def all_of(self, product: Product, most: int) -> list[dict[str, int]]:
        """The ways to try; compiled together."""
        rows, hardware, limit, multiprocessors = self.asked[product]
        outputs = product[1] * (8 if product[2] else 16)
        found = ways((outputs, product[0]), rows, product[2], hardware, limit, multiprocessors,
                     most)
        served = stream_nvfp4.served(product[0], rows, product[1], multiprocessors)
        if served and served not in found:
            found.insert(0, served)
        kernels.compile_together([spec for way in found if (spec := self.spec(product, **way))])
        return found


class Sweep:
    """Times ways for one model; prints and keeps each."""

    def __init__(self, model: CudaGemma4, rows: int, records: Records,
                 context: dict[str, Any]) -> None:
        self.model, self.rows, self.records, self.context = model, rows, records, context

    def us(self, words: str, **context: Any) -> float:
        """Microseconds of a step's graph, the median of some replays."""
        times = times_us(self.model.stream, self.model.launches(Key(self.rows, 1, self.rows)),
                         REPLAYS)
        self.records.add('graph_us', times, 'us', **self.context, way=words, **context)
        print(f'{statistics.median(times):9.2f} us {words}', flush=True)
        return statistics.median(times)

    def run(self, found: Ways, most: int) -> None:
        """All of it."""
        self.us('as served')
        products = sorted(found.asked)
        for _ in range(2):
            found.chosen = dict.fromkeys(products)
            self.us('without a stream')
            found.chosen = {}
            self.us('as served')
        found.chosen = dict.fromkeys(products)
        for product in products:
            best, least = None, self.us(f'{product} without a stream')
            for way in found.all_of(product, most):
                found.chosen[product] = way
                words = ' '.join(f'{name} {way[name]}' for name in NAMES)
                try:
                    time = self.us(f'{product} {words}', product=list(product), **way)
                except Exception as error:  # noqa: BLE001 - a way that asks for too much
                    print(f'{product} {words}: {error}'[:200], flush=True)
                    continue
                if time < least:
                    best, least = way, time
            found.chosen[product] = best
            print(f'-- {product}: {best}', flush=True)
        self.us('the best of each')
        found.chosen = {}
        self.us('as served')


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--preset', default='26b-a4b')
    parser.add_argument('--layers', type=int, default=12)
    parser.add_argument('--rows', type=int, default=16)
    parser.add_argument('--depth', type=int, default=1024)
    parser.add_argument('--ways', type=int, default=2, help='ways tried of each size of cluster')
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    arguments = parser.parse_args()
    records = Records(arguments.receipt, card=device.info().name, commit=arguments.commit,
                      command='python bench/stream_step.py ' + ' '.join(sys.argv[1:]))
    found = Ways()
    model = random_model(arguments.preset, 'fp8', arguments.depth + 64, arguments.layers)
    step(model, arguments.depth, arguments.rows)
    sweep = Sweep(model, arguments.rows, records, {
        'model': f'{arguments.preset} of random weights', 'format': 'nvfp4', 'path': 'node',
        'layers': arguments.layers, 'rows': arguments.rows, 'depth': arguments.depth})
    sweep.run(found, arguments.ways)
    return 0


if __name__ == '__main__':
    sys.exit(main())
