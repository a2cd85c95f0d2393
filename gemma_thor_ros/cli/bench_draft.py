# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The draft part of `gemma-thor bench`: draft passes, and whole rounds of draft and verify.

Drafters of random weights in the published shapes beside a random target. draft_ms is a whole
call, with what the host sends and waits for; path 'graph' is the device alone. A round starts its
next drafts behind the verify step, as the engine's do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gemma_thor_ros.cli import bench_device
from gemma_thor_ros.cli.bench_device import Bench
from gemma_thor_ros.cli.bench_model import RandomWeights, Settled, confined_routes
from gemma_thor_ros.load_device import compile_specs, drafter_specs
from gemma_thor_ros.load_drafter import device_drafter
from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.cuda_draft import CudaDrafter
from gemma_thor_ros.models.cuda_inputs import Key
from gemma_thor_ros.models.cuda_step import CudaKvDtype
from gemma_thor_ros.models.draft_config import DFlashConfig, MtpConfig
from gemma_thor_ros.models.drafter import DraftSpan
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings
from gemma_thor_ros.ops.step_times import node_times, times_us
from gemma_thor_ros.weights.drafter_shapes import drafter_shapes

Kind = Literal['dflash', 'mtp']
NUM_DRAFTS: dict[Kind, int] = {'dflash': 15, 'mtp': 3}
_RUNS, _WARM = 30, 3
_GREEDY = SampleSettings(temperature=0.0)


def measure(bench: Bench, raw: Mapping[Kind, Mapping[str, Any]], rows: Sequence[int],
            allowed: Sequence[int], depth: int, kv_dtype: CudaKvDtype) -> None:
    """Both kinds at a depth; raw: config.json of the drafters, rows: of verify steps.

    allowed: experts that the routers choose among.
    """
    drafters = {kind: _Drafting(bench, kind, config, depth, kv_dtype)
                for kind, config in raw.items()}
    for one in drafters.values():
        one.passes()
    for limit in [0, *allowed]:
        with confined_routes(bench.model, limit):
            for kind, one in drafters.items():
                for count in [rows_ for rows_ in rows if rows_ <= NUM_DRAFTS[kind] + 1]:
                    one.rounds(count)
    bench.model.attach(None)


class _Drafting:
    """One drafter beside the model, with pages for one sequence."""

    def __init__(self, bench: Bench, kind: Kind, raw: Mapping[str, Any], depth: int,
                 kv_dtype: CudaKvDtype) -> None:
        self.bench, self.kind, self.depth = bench, kind, depth
        self.model = model = bench.model
        model.kv_dtype = kv_dtype
        self.config: DFlashConfig | MtpConfig = (
            DFlashConfig.from_dict(raw, model.config) if kind == 'dflash'
            else MtpConfig.from_dict(raw, model.config))
        compile_specs(drafter_specs(self.config, model.config, bench_device.PAGE_SIZE, kv_dtype),
                      8, lambda share: None)
        weights = RandomWeights(drafter_shapes(raw))
        self.drafter: CudaDrafter = device_drafter(
            self.config, Settled(weights), model, context_length=depth + 64,
            quantize_head=lambda table: weights.packed(table.shape))
        self.num_pages = -(-(depth + 64) // bench_device.PAGE_SIZE)
        self.pages = np.arange(self.num_pages, dtype=np.int32)
        self.context = {**bench.context, 'drafter': kind, 'depth': depth, 'kv': kv_dtype}
        self.bytes = _draft_bytes(self.config, model.config.vocab_size, drafter_shapes(raw), depth,
                                  bench.value_bytes)
        self.cache: Any = None

    def begin(self) -> None:
        """Take the model over: its graphs are with this drafter from now on."""
        self.model.attach(self.drafter)
        sizes = self.num_pages, self.num_pages, bench_device.PAGE_SIZE
        self.cache = self.model.new_kv_cache(*sizes)
        self.drafter.new_cache(*sizes)

    def span(self, token: int, position: int, num_drafts: int) -> DraftSpan:
        """What the engine would ask for."""
        return DraftSpan(token, position, num_drafts, self.pages, self.pages, None,
                         SampleRow(_GREEDY, position + 1))

    def passes(self) -> None:
        """Draft passes alone, and where their time goes."""
        self.begin()
        bench, count = self.bench, NUM_DRAFTS[self.kind]
        span = self.span(bench_device.FIRST_ID, self.depth, count)
        times = []
        for run in range(_RUNS + _WARM):
            started = time.perf_counter()
            self.drafter.draft([span], None, self.cache)
            if run >= _WARM:
                times.append((time.perf_counter() - started) * 1e3)
        work = self.drafter.launches(count, self.cache)
        alone = [us / 1e3 for us in times_us(self.model.stream, work)]
        found = {}
        for path, values in ('call', times), ('graph', alone):
            value = float(np.median(values))
            found[path] = bench.records.add(
                'draft_ms', values, 'ms', fraction=bench.share(self.bytes / value / 1e6),
                **self.context, path=path, drafts=count)
        share = bench.share(self.bytes / found['graph'] / 1e6) or 0.0
        bench.say(f'{self.kind} draft of {count}: {found["call"]:.3f} ms, on the device '
                  f'{found["graph"]:.3f} ms, {self.bytes / 1e6:.0f} MB, {share:.0%} of the limit')
        for name, enqueue in (('draft', work), ('verify', self.model.launches(Key(16, 1, 16)))):
            for node in node_times(self.model.stream, enqueue):
                if name == 'verify' and not node.entry.startswith(('draft', 'gemm_bf16')):
                    continue             # what a step has without a drafter too
                bench.records.add('node_us', [node.us], 'us', **self.context, path='node',
                                  step=name, op=node.entry, count=node.count,
                                  constants=dict(node.constants))
                bench.say(f'  {name:6} {node.entry:26} {node.count:3} x {node.us:7.2f} us = '
                          f'{node.us * node.count:8.1f} us')

    def rounds(self, num_rows: int) -> None:
        """Verify steps of some rows, and the drafts behind each; all at one depth."""
        self.begin()
        model, bench, depth = self.model, self.bench, self.depth
        num_drafts = num_rows - 1
        rng = np.random.default_rng(num_rows)
        drafts = rng.integers(bench_device.FIRST_ID, model.vocab_size, num_drafts)
        token = bench_device.FIRST_ID
        verify_ms, round_ms, used = [], [], self.drafter.num_ahead_used
        choice = [SampleRow(_GREEDY, depth + 1 + i) for i in range(num_rows)]
        for run in range(_RUNS + _WARM):
            step = Batch(np.array([token, *drafts], np.int32),
                         np.arange(depth, depth + num_rows, dtype=np.int32),
                         (Span(Role.DECODE, 0, num_rows, depth, self.pages, self.pages),),
                         np.arange(num_rows, dtype=np.int32))
            started = time.perf_counter()
            tokens = model.choose(step, self.cache, choice, draft_ahead=True).tokens
            verified = time.perf_counter()
            kept = 0
            while kept < num_drafts and tokens[kept] == step.token_ids[kept + 1]:
                kept += 1
            token = int(tokens[kept])
            span = self.span(token, depth + kept + 1, num_drafts)
            self.drafter.draft([span], None, self.cache)
            if run >= _WARM:
                verify_ms.append((verified - started) * 1e3)
                round_ms.append((time.perf_counter() - started) * 1e3)
            # of the same kind each time: a random drafter repeats itself, and so do the experts
            drafts = rng.integers(bench_device.FIRST_ID, model.vocab_size, num_drafts)
        used = self.drafter.num_ahead_used - used
        distinct = bench_device.mean_distinct(model, step, self.cache)
        context = {**self.context, 'path': 'model', 'rows': num_rows,
                   'distinct_experts': distinct}
        step_bytes = bench_device.step_bytes(model, depth, distinct, bench.value_bytes)
        values = []
        for metric, times, num_bytes in (('drafted_verify_ms', verify_ms, step_bytes),
                                         ('round_ms', round_ms, step_bytes + self.bytes)):
            share = bench.share(num_bytes / float(np.median(times)) / 1e6)
            value = bench.records.add(metric, times, 'ms', fraction=share, **context,
                                      ahead_used=f'{used} of {_RUNS + _WARM}')
            values.append(f'{value:.3f} ms ({share or 0.0:.0%})')
        bench.say(f'{self.kind} {num_rows:2} rows, {distinct:4.1f} experts: verify {values[0]}, '
                  f'with the drafts behind it {values[1]}, ahead {used} of {_RUNS + _WARM}')


def _draft_bytes(config: DFlashConfig | MtpConfig, vocab_size: int,
                 shapes: Mapping[str, tuple[int, ...]], depth: int, head_bytes: float) -> int:
    """Bytes that the drafts of one pass have to read: weights, the head, the context.

    head_bytes: of a number of the target's head; an assistant's own is in NVFP4.
    """
    matrices = sum(2 * int(np.prod(shape)) for name, shape in shapes.items()
                   if len(shape) == 2 and name not in ('fc', 'embed_tokens'))
    if isinstance(config, DFlashConfig):
        keys = sum(min(depth, config.sliding_window) if kind.startswith('sliding') else depth
                   for kind in config.layer_types)
        row = 2 * config.num_key_value_heads * config.head_dim * 2
        return matrices + int(vocab_size * config.hidden_size * head_bytes) + keys * row
    return NUM_DRAFTS['mtp'] * (matrices + vocab_size * config.hidden_size * 9 // 16)
