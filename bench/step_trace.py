# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Traces the launches of a step of one row: where each waits, and for how long.

    python bench/step_trace.py --preset 12b [--format nvfp4] [--layers 12] [--depth 256]
        [--receipt FILE.json] [--commit HASH]

Random weights of true shapes. The kernels are compiled once more with another wait for the launch
in front: the first thread of each block writes the device's clock when it comes there and when
that ends. Nothing of what is served is changed, and a traced step takes some per cent longer. Of
each pair of neighbours: microseconds from the release of one launch to that of the next, and how
long before its own release the first, the median and the last block of it stood there (negative:
so late).
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gemma_thor_ros.cli.bench_records import Records
from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec

CONTEXT = 65536                          # the engine's own: as much room for partial results
MOST = 65536                             # records of a step
WORDS = 4                                # of a record: came, released (ns), launch and block, SM
RUNS = 7
WAIT = '    asm volatile("griddepcontrol.wait;" ::: "memory");'
TRACED = """    if (threadIdx.x == 0) {
        u64 came, released;
        u32 multiprocessor;
        const u32 at = atomicAdd((u32*)%(address)dull, 1u);
        asm volatile("mov.u32 %%0, %%smid;" : "=r"(multiprocessor));
        asm volatile("mov.u64 %%0, %%globaltimer;" : "=l"(came) :: "memory");
        asm volatile("griddepcontrol.wait;" ::: "memory");
        asm volatile("mov.u64 %%0, %%globaltimer;" : "=l"(released) :: "memory");
        if (at < %(most)du) {
            u64* to = (u64*)%(address)dull + (1 + (u64)at) * 4;
            to[0] = came, to[1] = released;
            to[2] = %(number)dull << 32 | blockIdx.x, to[3] = multiprocessor;
        }
    } else {
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }"""
Words = npt.NDArray[np.uint64]


class Link(NamedTuple):
    """A launch of a step and the one behind it: microseconds, and places in the list of specs."""

    number: int
    following: int
    blocks: int
    us: float                            # from release to release
    first: float                         # so long before the release a block stood there
    median: float
    last: float


def traced(text: str, number: int, address: int) -> str:
    """A kernel's source whose blocks write when they wait; number: of its spec."""
    assert text.count(WAIT) == 1, text.count(WAIT)
    return text.replace(WAIT, TRACED % {'address': address, 'most': MOST, 'number': number})


def launches_of(words: Words) -> list[Words]:
    """The records of a step (n, WORDS), cut into launches.

    A launch is released when the one before has ended, so also a block of that one that came late.
    Two neighbours are never of the same spec.
    """
    words = words[np.argsort(words[:, 1], kind='stable')]
    numbers = words[:, 2] >> np.uint64(32)
    return np.split(words, np.flatnonzero(numbers[1:] != numbers[:-1]) + 1)


def links_of(words: Words) -> list[Link]:
    """What there is to say of each launch but the last."""
    launches = launches_of(words)
    releases = [int(launch[:, 1].min()) for launch in launches]
    found = []
    for launch, release, after, behind in zip(launches, releases, releases[1:], launches[1:],
                                              strict=False):
        early = (release - launch[:, 0].astype(np.int64)) / 1e3
        found.append(Link(int(launch[0, 2]) >> 32, int(behind[0, 2]) >> 32, len(launch),
                          (after - release) / 1e3, float(early.max()), float(np.median(early)),
                          float(early.min())))
    return found


def by_kind(steps: Sequence[Sequence[Link]]) -> dict[tuple[int, int], list[Link]]:
    """Medians over the steps, launch by launch; all launches between two specs together."""
    lengths = [len(step) for step in steps]
    steps = [step for step in steps if len(step) == statistics.mode(lengths)]
    kinds: dict[tuple[int, int], list[Link]] = defaultdict(list)
    for same in zip(*steps, strict=True):
        median = [statistics.median(column) for column in zip(*same, strict=True)]
        kinds[same[0].number, same[0].following].append(Link(
            same[0].number, same[0].following, same[0].blocks, *median[3:]))
    return kinds


def specs_of(enqueue: Callable[[], None]) -> list[KernelSpec]:
    """What enqueue() launches."""
    own, found = device.compiled, []

    def noting(spec: KernelSpec) -> device.Kernel:
        found.append(spec)
        return own(spec)

    device.compiled = noting             # type: ignore[assignment]
    try:
        enqueue()
    finally:
        device.compiled = own
    return list(dict.fromkeys(found))


class Tracer:
    """Gives out traced kernels while it is open; `words` are the records of the last step."""

    def __init__(self, specs: Sequence[KernelSpec]) -> None:
        self.specs = specs
        self._room = device.zeros((1 + MOST) * WORDS, np.uint64)
        self._own: Any = device.compiled
        with ThreadPoolExecutor(16) as pool:
            paths = list(pool.map(self._compile, range(len(specs))))
        self._kernels = {spec: device.Kernel(spec, device.cupy().RawModule(path=str(path)))
                         for spec, path in zip(specs, paths, strict=True)}
        for path in paths:
            path.unlink()

    def __enter__(self) -> Tracer:
        device.compiled = self._compiled  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        device.compiled = self._own

    def _compile(self, number: int) -> Path:
        spec = self.specs[number]
        text = traced(compiler.kernel_source(spec.file), number, self._room.data.ptr)
        code = compiler.nvrtc().compile(text, spec.file, compiler.options_for(
            device.info().arch, spec.defines))
        path = compiler.cache_folder() / f'traced-{os.getpid()}-{number}.cubin'
        path.write_bytes(code.cubin)
        return path

    def _compiled(self, spec: KernelSpec) -> device.Kernel:
        return self._kernels[spec]

    def clear(self) -> None:
        """Before a step."""
        self._room[:] = 0
        device.cupy().cuda.runtime.deviceSynchronize()

    def words(self) -> Words:
        """Behind a step: (n, WORDS)."""
        all_words: Words = device.cupy().asnumpy(self._room).reshape(-1, WORDS)
        count = int(all_words[0, 0]) & 0xFFFFFFFF
        assert count <= MOST, count
        return all_words[1:1 + count]


def name_of(spec: KernelSpec) -> str:
    """An entry, and the columns of a product."""
    columns = dict(spec.defines).get('COLUMNS')
    return f'{spec.entry} {columns}' if columns else spec.entry


def main() -> int:
    """Trace, print and keep."""
    from step_rings import run_step

    from gemma_thor_ros.cli.bench_model import random_model
    from gemma_thor_ros.models.cuda_inputs import Key
    from gemma_thor_ros.weights.mlx_modules import setting_of

    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--preset', default='12b')
    parser.add_argument('--format', default='nvfp4')
    parser.add_argument('--layers', type=int, default=12)
    parser.add_argument('--depth', type=int, default=256)
    parser.add_argument('--receipt', type=Path, help='write the records here as JSON')
    parser.add_argument('--commit', default='unknown')
    arguments = parser.parse_args()
    records = Records(arguments.receipt, card=device.info().name, commit=arguments.commit,
                      command='python bench/step_trace.py ' + ' '.join(sys.argv[1:]))
    model = random_model(arguments.preset, 'fp8', CONTEXT, arguments.layers,
                         setting=setting_of(arguments.format))
    run_step(model, arguments.depth)
    enqueue, steps = model.launches(Key(1, 1, 1)), []
    with Tracer(specs_of(enqueue)) as tracer:
        graph = device.capture(model.stream, enqueue)
        for run in range(RUNS + 2):
            tracer.clear()
            graph.launch(model.stream)
            model.stream.synchronize()
            if run >= 2:
                steps.append(links_of(tracer.words()))
    context: dict[str, Any] = {
        'model': f'{arguments.preset} of random weights', 'format': arguments.format,
        'layers': arguments.layers, 'path': 'node', 'rows': 1, 'depth': arguments.depth}
    for (number, following), links in by_kind(steps).items():
        names = [name_of(tracer.specs[place]) for place in (number, following)]
        first, median, last = (statistics.median(times) for times in list(zip(
            *links, strict=True))[4:])
        us = records.add('release_to_release_us', [link.us for link in links], 'us', **context,
                         op=names[0], followed_by=names[1], count=len(links),
                         blocks=links[0].blocks, early_us=[first, median, last])
        print(f'{us:7.2f} us x{len(links):3} {names[0]} > {names[1]}: {links[0].blocks} blocks, '
              f'there {first:.2f} {median:.2f} {last:.2f} us before', flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
