# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Looks for the rings of one row's products that make a whole step shortest, all shapes together.

    python bench/step_rings.py --preset 12b --format nvfp4 --seconds 100 [--layers 12]
        [--receipt FILE.json] [--commit HASH]

Random weights of true shapes, one sequence at depth 256. What is best for a launch among its like
may leave no room for the next one, or have nothing under way while it waits for the one in front,
and what is best for one shape changes with the rings of the others. So a walk (ring_walk.py)
changes one or two shapes at a time: tiles of a stage, stages, resident blocks, held rows, where
the next launch is let in. A change is kept if the step is shorter, by replays of both graphs in
turn; at first also if it is a little longer. In the end what gains nothing goes back to what is
served, the logits of both are compared bit by bit, and the lines for ops/gemv.py are printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ring_walk import Choice, Shape, Variant, Walk

from gemma_thor_ros.cli.bench_model import random_model
from gemma_thor_ros.cli.bench_records import Records
from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.cuda_inputs import Key
from gemma_thor_ros.models.cuda_step import CudaGemma4
from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import device, gemm_nvfp4, gemv
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings
from gemma_thor_ros.weights.mlx_modules import setting_of

PAGE_SIZE = 64
DEPTH = 256
TURNS = 9                                # of each, in a last comparison
_NAMES = ('STAGE_TILES', 'STAGES', 'MIN_BLOCKS', 'HELD', 'NEXT')
_UNDER_WAY = 20000, 200000               # bytes of a multiprocessor
_WARPS = 44                              # resident on a multiprocessor, at most
_HELD_TILES = 6                          # of a warp, at most, whose row may be held


class Launch(NamedTuple):
    """One launch of a step."""

    shape: Shape | None                  # None: it has no choice
    spec: KernelSpec
    grid: tuple[int, ...]
    threads: int
    args: tuple[Any, ...]
    stream: Any
    shared_bytes: int = 0


class Product:
    """What may be another for the launches of gemv_nvfp4 and gemv_affine of one shape."""

    def __init__(self, launch: Launch) -> None:
        self._spec, self.own = launch.spec, dict(launch.spec.defines)
        self._at = _shares_at(launch)
        self._tile_bytes, self._sums = gemm_nvfp4.TILE_BYTES, 0
        if launch.spec.file == 'gemv_affine':
            bits, group = self.own['BITS'], self.own['GROUP']
            self._tile_bytes, self._sums = 128 * bits + 4096 // group, 64 // group
        self._row_tiles = row_tiles(launch)
        self._limit = device.info().shared_bytes_per_block
        self.served: Variant = self._variant(self.own)

    def _variant(self, values: Mapping[str, int]) -> Variant:
        return tuple((name, values[name]) for name in _NAMES)

    def variants(self) -> list[Variant]:
        """Those that fit, with neither too little nor too much under way."""
        warps, tiles = self.own['K_WARPS'], self.own['WARP_TILES']
        found = []
        for resident in range(1, _WARPS // warps + 1):
            for stage_tiles in (1, 2, 3, 4, 5, 6, 7, 8):
                for stages in (2, 3, 4, 5, 6, 7, 8, 10):
                    values = {**self.own, 'MIN_BLOCKS': resident, 'STAGE_TILES': stage_tiles,
                              'STAGES': stages}
                    under_way = (stages - 1) * stage_tiles * self._tile_bytes * warps * resident
                    if (tiles % stage_tiles == 0
                            and _UNDER_WAY[0] <= under_way <= _UNDER_WAY[1]
                            and gemv.fits(values, self._tile_bytes, self._sums, self._limit)):
                        found += [self._variant({**values, 'HELD': held, 'NEXT': at})
                                  for held in range(1 + (tiles <= _HELD_TILES))
                                  for at in range(4)]
        return found

    def spec(self, variant: Variant) -> KernelSpec:
        """What is compiled."""
        return KernelSpec.of(self._spec.file, self._spec.entry, **{**self.own, **dict(variant)})

    def changed(self, launch: Launch, variant: Variant) -> Launch:
        """The launch with other constants."""
        spec = self.spec(variant)
        values = dict(spec.defines)
        share = gemv.share(self._row_tiles, device.info().num_multiprocessors,
                           values['MIN_BLOCKS'])
        num_bytes = gemv.launch_bytes(values, self._tile_bytes, self._sums, self._limit, share)
        args = (*launch.args[:self._at], share.each, share.more, *launch.args[self._at + 2:])
        return launch._replace(spec=spec, grid=(share.blocks,), args=args, shared_bytes=num_bytes)

    def line(self, variant: Variant) -> str:
        """For ops/gemv.py."""
        tiles, stages, blocks, held, at = dict(variant).values()
        return (f"({self.own['COLUMN_TILES']}, {self._row_tiles}): Ring({tiles}, {stages}, "
                f'{blocks}, held={held}, next={at}),')


def _shares_at(launch: Launch) -> int:
    """Where `each` and `more` are among a product's arguments."""
    return 4 if launch.spec.file == 'gemv_affine' else 5


def row_tiles(launch: Launch) -> int:
    """Of a product's weight."""
    at = _shares_at(launch)
    return int(launch.grid[0] * launch.args[at] + launch.args[at + 1])


class Step:
    """A step as a list of launches, which can be enqueued with other constants than its own."""

    def __init__(self, model: CudaGemma4, layers: int | None = None) -> None:
        """layers: the first ones alone; the last norm and the head stay."""
        self.stream, self.model = model.stream, model
        self._doings: list[Launch | Callable[[], None]] = []
        self._graphs: dict[tuple[Any, ...], Any] = {}
        self._loaded: dict[tuple[int, Variant], tuple[Any, Launch]] = {}
        ends = self._record()
        if layers is not None and layers < len(ends):
            self._doings = self._doings[:ends[layers - 1]] + self._doings[ends[-1]:]
        self.products: dict[Shape, Any] = {}
        for doing in self._doings:
            if isinstance(doing, Launch) and doing.shape and doing.shape not in self.products:
                self.products[doing.shape] = self.product(doing)

    def product(self, launch: Launch) -> Any:
        """What is known of the choices of a launch that has some."""
        return Product(launch)

    def shape(self, launch: Launch) -> Shape | None:
        """What a launch's choice is kept by; None where there is none."""
        if launch.spec.entry not in ('gemv_nvfp4', 'gemv_affine'):
            return None
        return launch.spec.entry, dict(launch.spec.defines)['COLUMN_TILES'], row_tiles(launch)

    def _record(self) -> list[int]:
        """Note all launches of a step; how many there are at the end of each layer."""
        ends: list[int] = []
        originals = device.launch, device.follow, self.model.run_layers

        def launch(kernel: Any, grid: Any, threads: int, args: Any, stream: Any,
                   shared_bytes: int = 0, **_: Any) -> None:
            one = Launch(None, kernel.spec, grid, threads, args, stream, shared_bytes)
            self._doings.append(one._replace(shape=self.shape(one)))

        def follow(stream: Any, other: Any) -> None:
            self._doings.append(partial(originals[1], stream, other))

        def run_layers(*args: Any) -> None:
            ops, act, rows, cache, _ = args
            originals[2](ops, act, rows, cache, lambda _: ends.append(len(self._doings)))

        device.launch, device.follow = launch, follow
        self.model.run_layers = cast(Any, run_layers)    # type: ignore[method-assign]
        try:
            self.model.launches(Key(1, 1, 1))()
        finally:
            device.launch, device.follow = originals[:2]
            self.model.run_layers = originals[2]         # type: ignore[method-assign]
        return ends

    def served(self) -> Choice:
        """What every shape has by itself."""
        return {shape: product.served for shape, product in self.products.items()}

    def _changed(self, index: int, choice: Choice) -> tuple[Any, Launch]:
        """A launch with the constants of a choice, and its kernel, loaded."""
        one = self._doings[index]
        assert isinstance(one, Launch)
        variant = choice.get(one.shape, ()) if one.shape else ()
        if (index, variant) not in self._loaded:
            if one.shape and variant:
                one = self.products[one.shape].changed(one, variant)
            kernel = device.compiled(one.spec)
            if kernel.local_bytes:
                raise ValueError(f'{one.spec} spills')
            kernel.allow_shared(one.shared_bytes)
            self._loaded[index, variant] = kernel, one
        return self._loaded[index, variant]

    def _enqueue(self, launches: Sequence[tuple[Any, Launch] | Callable[[], None]]) -> None:
        for doing in launches:
            if isinstance(doing, tuple):
                kernel, one = doing
                device.launch(kernel, one.grid, one.threads, one.args, one.stream,
                              one.shared_bytes)
            else:
                doing()

    def graph(self, choice: Choice) -> Any:
        """Of the step; the last few are kept."""
        key = tuple(sorted(choice.items()))
        if key not in self._graphs:
            while len(self._graphs) > 3:
                del self._graphs[next(iter(self._graphs))]
            # kernels are loaded outside of the capture
            launches = [self._changed(index, choice) if isinstance(doing, Launch) else doing
                        for index, doing in enumerate(self._doings)]
            graph = device.capture(self.stream, partial(self._enqueue, launches))
            graph.launch(self.stream)    # the first replay puts it on the device
            self._graphs[key] = graph
        self._graphs[key] = self._graphs.pop(key)        # the newest is last
        return self._graphs[key]

    def times(self, choices: Sequence[Choice], turns: int) -> list[list[float]]:
        """Microseconds of each choice's step, by turns, one replay behind the other."""
        graphs = [self.graph(choice) for choice in choices]
        events = [device.timed_event() for _ in range(turns * len(graphs) + 1)]
        graphs[-1].launch(self.stream)   # what follows is enqueued while this one runs
        events[0].record(self.stream)
        for index, event in enumerate(events[1:]):
            graphs[index % len(graphs)].launch(self.stream)
            event.record(self.stream)
        self.stream.synchronize()
        found = [device.elapsed_us(*pair) for pair in zip(events, events[1:], strict=False)]
        return [found[index::len(graphs)] for index in range(len(graphs))]

    def logits(self, choice: Choice) -> Any:
        """(V,) f32 on the host."""
        self.graph(choice).launch(self.stream)
        self.stream.synchronize()
        return self.model._logits[0].get()

    def without(self) -> list[tuple[str, int, float]]:
        """What the step is shorter by without each kind of launch: its share of the chain."""
        whole = statistics.median(self.times([{}], TURNS)[0])
        found, doings = [], self._doings
        kinds = dict.fromkeys(one.spec for one in doings if isinstance(one, Launch))
        for spec in kinds:
            self._graphs, self._loaded = {}, {}
            self._doings = [one for one in doings
                            if not isinstance(one, Launch) or one.spec != spec]
            us = whole - statistics.median(self.times([{}], TURNS)[0])
            columns = dict(spec.defines).get('COLUMNS', '')
            found.append((f'{spec.entry} {columns}', len(doings) - len(self._doings), us))
        self._doings, self._graphs, self._loaded = doings, {}, {}
        return found


class Compiling:
    """Compiles what is asked for beside the walk."""

    def __init__(self, threads: int) -> None:
        self._pool, self._threads = ThreadPoolExecutor(threads), threads
        self._asked: dict[KernelSpec, Future[Path]] = {}
        self._under_way: set[Future[Path]] = set()

    def ready(self, spec: KernelSpec) -> bool:
        """Whether it is there; it will be, if not too many others were asked for."""
        future = self._asked.get(spec)
        if future is None:
            self._under_way = {one for one in self._under_way if not one.done()}
            if len(self._under_way) < 2 * self._threads:
                future = self._asked[spec] = self._pool.submit(
                    compiler.cached_cubin, spec, device.info().arch)
                self._under_way.add(future)
            return False
        return future.done()

    def end(self) -> None:
        """Compile no more."""
        self._pool.shutdown(cancel_futures=True)


def run_step(model: CudaGemma4, depth: int) -> None:
    """Run one step of one row, so that the next launches have its inputs."""
    num_pages = -(-(depth + 16) // PAGE_SIZE)
    cache = model.new_kv_cache(num_pages, num_pages, PAGE_SIZE)
    pages = np.arange(num_pages, dtype=np.int32)
    batch = Batch(np.ones(1, np.int32), np.array([depth], np.int32),
                  (Span(Role.DECODE, 0, 1, depth, pages, pages),), np.arange(1, dtype=np.int32))
    model.choose(batch, cache, [SampleRow(SampleSettings(temperature=0.0), depth + 1)])


def main(step_of: Callable[..., Any] = Step) -> int:
    """Walk and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--preset', default='12b')
    parser.add_argument('--format', default='nvfp4')
    parser.add_argument('--layers', type=int, default=12, help='that the walk replays')
    parser.add_argument('--seconds', type=float, default=100, help='of the walk')
    parser.add_argument('--threads', type=int, default=14, help='that compile')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--without', action='store_true', help='tell what each launch costs')
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    arguments = parser.parse_args()
    setting = setting_of(arguments.format)
    records = Records(arguments.receipt, card=device.info().name, commit=arguments.commit,
                      command='python bench/step_rings.py ' + ' '.join(sys.argv[1:]))
    began = time.monotonic()
    model = random_model(arguments.preset, 'fp8', DEPTH + 64, setting=setting)
    print(f'{time.monotonic() - began:.1f} s until the model was there', flush=True)
    run_step(model, DEPTH)
    step, whole = step_of(model, arguments.layers), step_of(model)
    if arguments.without:
        for entry, count, us in step.without():
            print(f'{us / count:9.2f} us each, {count} times: {entry}', flush=True)
    walk = walked(step, arguments.seconds, arguments.threads, arguments.seed)
    context = {'model': f'{arguments.preset} of random weights', 'format': arguments.format,
               'rows': 1, 'depth': DEPTH, 'path': 'node'}
    for one, layers in (step, arguments.layers), (whole, model.config.num_hidden_layers):
        both = one.times([walk.served, walk.best], TURNS)
        for name, times in zip(('served', 'found'), both, strict=True):
            records.add('graph_us', times, 'us', **context, layers=layers, rings=name)
            print(f'{name}, {layers} layers: {statistics.median(times):9.2f} us '
                  f'({min(times):.2f} to {max(times):.2f})', flush=True)
    same = np.array_equal(*(whole.logits(choice).view(np.uint32)
                            for choice in (walk.served, walk.best)))
    print('the same logits' if same else 'OTHER LOGITS', flush=True)
    tell(step, walk)
    return 0 if same else 1


def tell(step: Any, walk: Walk) -> None:
    """Print the best so far, as lines for ops/gemv.py."""
    for shape, product in step.products.items():
        line, served = (product.line(one[shape]) for one in (walk.best, walk.served))
        print(f'  {line}' + ('' if line == served else f'    # served {served}'), flush=True)


def walked(step: Any, seconds: float, threads: int, seed: int) -> Walk:
    """The walk, done."""
    compiling = Compiling(threads)
    variants = {shape: product.variants() for shape, product in step.products.items()}
    print(f'{sum(map(len, variants.values()))} variants of {len(variants)} shapes', flush=True)
    walk = Walk(variants, step.served(), step.times, lambda shape, variant: compiling.ready(
        step.products[shape].spec(variant)), seed)
    walk.run(seconds, tell=partial(tell, step, walk))
    compiling.end()
    print(f'{walk.num_trials} trials', flush=True)
    walk.prune()
    return walk


if __name__ == '__main__':
    sys.exit(main())
