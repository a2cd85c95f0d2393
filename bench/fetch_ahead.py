# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times a step's graph with different amounts fetched ahead into the L2 cache.

    python bench/fetch_ahead.py --preset 12b --format nvfp4 [--layers 12] [--rows 1]
        [--receipt FILE.json] [--commit HASH]

Random weights of true shapes, one sequence at depth 256. Each place of a layer (qkv, o, gate_up,
down) tries some amounts, with the best of the others; then the best plan and none at more depths.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gemma_thor_ros.cli.bench_model import random_model
from gemma_thor_ros.cli.bench_records import Records
from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.cuda_inputs import Key
from gemma_thor_ros.models.cuda_step import CudaGemma4
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.fetch_plan import FetchPlan, nbytes
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings
from gemma_thor_ros.ops.step_times import times_us
from gemma_thor_ros.weights.mlx_modules import setting_of

PAGE_SIZE = 64
DEPTHS = (256, 1024, 4096, 16384)
AMOUNTS = {                              # megabytes
    'qkv': (0, 4, 8, 12, 16, 20, 24, 28, 32, 40), 'o': (0, 4, 8, 12, 16, 24),
    'gate_up': (0, 2, 4, 8, 12, 16, 20), 'down': (0, 4, 8, 12, 16, 20)}
REPLAYS = 25


def step(model: CudaGemma4, depth: int, rows: int) -> None:
    """Run one step of one sequence, so that the next launches have its inputs."""
    num_pages = -(-(depth + 16) // PAGE_SIZE)
    cache = model.new_kv_cache(num_pages, num_pages, PAGE_SIZE)
    pages = np.arange(num_pages, dtype=np.int32)
    ids = np.random.default_rng(rows).integers(512, model.vocab_size, rows).astype(np.int32)
    batch = Batch(ids, np.arange(depth, depth + rows, dtype=np.int32),
                  (Span(Role.DECODE, 0, rows, depth, pages, pages),),
                  np.arange(rows, dtype=np.int32))
    settings = SampleSettings(temperature=0.0)
    model.choose(batch, cache, [SampleRow(settings, depth + 1 + i) for i in range(rows)])


class Sweep:
    """Times plans for one model; prints and keeps each."""

    def __init__(self, model: CudaGemma4, rows: int, records: Records,
                 context: dict[str, object]) -> None:
        self.model, self.rows, self.records, self.context = model, rows, records, context
        self.depth = DEPTHS[0]
        step(model, self.depth, rows)

    def us(self, plan: FetchPlan) -> float:
        """Microseconds of a step's graph, the median of some replays."""
        self.model.ops.plan = plan
        times = times_us(self.model.stream, self.model.launches(Key(self.rows, 1, self.rows)),
                         REPLAYS)
        found = statistics.median(times)
        amounts = {place: round(getattr(plan, place) / 1e6, 2) for place in AMOUNTS}
        self.records.add('graph_us', times, 'us', **self.context, rows=self.rows,
                         depth=self.depth, **amounts, early=plan.early)
        words = ' '.join(f'{place} {amount:5.1f}' for place, amount in amounts.items())
        print(f'{words} early {plan.early} at {self.depth:6}: {found:9.2f} us', flush=True)
        return found

    def best(self, start: FetchPlan) -> FetchPlan:
        """Try each place's amounts beside the best of the others, then when to ask."""
        plan, least = start, self.us(start)
        for place, amounts in AMOUNTS.items():
            begin = plan
            for amount in amounts:
                tried = replace(begin, **{place: amount * 10**6})
                if (time := self.us(tried)) < least:
                    plan, least = tried, time
        for early in (1, 2, 9):
            tried = replace(plan, early=early)
            if (time := self.us(tried)) < least:
                plan, least = tried, time
        return plan


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--preset', default='12b')
    parser.add_argument('--format', default='nvfp4')
    parser.add_argument('--layers', type=int, default=12)
    parser.add_argument('--rows', type=int, default=1)
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    arguments = parser.parse_args()
    info = device.info()
    records = Records(arguments.receipt, card=info.name, commit=arguments.commit,
                      command='python bench/fetch_ahead.py ' + ' '.join(sys.argv[1:]))
    model = random_model(arguments.preset, 'fp8', DEPTHS[-1] + 64, arguments.layers,
                         setting=setting_of(arguments.format))
    layer = model._layers[0]
    for name in ('qkv_proj', 'o_proj', 'gate_up_proj', 'down_proj'):
        print(f'{name} {nbytes(getattr(layer, name)) / 1e6:.2f} MB')
    context: dict[str, object] = {'model': f'{arguments.preset} of random weights',
                                  'format': arguments.format, 'layers': arguments.layers,
                                  'path': 'node'}
    sweep = Sweep(model, arguments.rows, records, context)
    own, none = model.ops.plan, FetchPlan()
    for plan in (none, own, none, own):
        sweep.us(plan)
    best = sweep.best(none)
    best = sweep.best(best)
    for depth in DEPTHS:
        sweep.depth = depth
        step(model, depth, arguments.rows)
        for plan in (none, own, best, replace(best, o=0, gate_up=0, down=0)):
            sweep.us(plan)
    return 0


if __name__ == '__main__':
    sys.exit(main())
