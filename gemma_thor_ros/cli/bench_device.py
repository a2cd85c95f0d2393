# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The parts of `gemma-thor bench`: each measures one thing on a CUDA device and records it.

Speeds are from Engine.submit to the outbox, with sampler, stop check and paging; what runs below
the engine says path 'model'. Fractions are of the read bandwidth that the same run measured.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemma_thor_ros.cli.bench_clocks import ClockWatch
from gemma_thor_ros.cli.bench_model import confined_routes
from gemma_thor_ros.cli.bench_records import Records
from gemma_thor_ros.engine.engine import Engine
from gemma_thor_ros.engine.page_pool import plan_pages
from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.cuda_inputs import Key
from gemma_thor_ros.models.cuda_step import CudaGemma4, CudaKvDtype
from gemma_thor_ros.models.kv_cache import KVCache
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings
from gemma_thor_ros.ops.step_times import (
    GraphLog,
    GraphTimer,
    node_times,
    read_bandwidth,
    sustained_us,
    times_us,
)
from gemma_thor_ros.schema import Request, SamplingParams, TokenEvent

PAGE_SIZE = 64
CHUNK = 2048                             # rows of a prompt in one step
TIMEOUT_S = 300.0
FIRST_ID = 512                           # ordinary tokens from here on
_VERIFY_RUNS = 30
_PREFILL_RUNS = 5
_REFERENCE_PROMPT = 4096
_SUSTAINED_S = 2.0
_numbers = itertools.count()


@dataclass
class Bench:
    """What the parts share: the model, the receipt, and what the device reads in a second."""

    model: CudaGemma4
    records: Records
    context: dict[str, Any]
    say: Any                             # print
    read_gb_s: float = 0.0
    value_bytes: float = 9 / 16          # of a weight's number: NVFP4 with its scales

    def bandwidth(self) -> None:
        """Measure the ceiling."""
        self.read_gb_s = self.records.add('read_gb_s', read_bandwidth(self.model.stream), 'GB/s')
        self.say(f'read bandwidth {self.read_gb_s:.0f} GB/s')

    def share(self, gb_s: float) -> float | None:
        """Of the read bandwidth, where it was measured."""
        return gb_s / self.read_gb_s if self.read_gb_s else None

    @contextmanager
    def engine(self, num_sequences: int, length: int,
               kv_dtype: CudaKvDtype | None = None) -> Iterator[Engine]:
        """A running engine with room for sequences of this length."""
        if kv_dtype is not None:
            self.model.kv_dtype = kv_dtype
        sliding, full = plan_pages(length, num_sequences, page_size=PAGE_SIZE,
                                   window=self.model.config.sliding_window, prefill_chunk=CHUNK)
        engine = Engine(self.model, page_size=PAGE_SIZE, num_sliding_pages=sliding,
                        num_full_pages=full, max_sequences=num_sequences, max_waiting=64,
                        prefill_chunk=CHUNK, context_length=length, max_checkpoint_pages=0)
        engine.start()
        try:
            yield engine
        finally:
            engine.stop()


@dataclass(frozen=True)
class Answer:
    """When the tokens of one request came: seconds on the steady clock."""

    submitted: float
    times: tuple[float, ...]
    token_ids: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Tokens a second after the first one."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0])

    @property
    def digest(self) -> str:
        """Of the token ids."""
        return hashlib.sha256(np.array(self.token_ids, np.int32).tobytes()).hexdigest()[:16]


def ask(engine: Engine, model: CudaGemma4, prompt_tokens: int, max_tokens: int,
        count: int = 1) -> list[Answer]:
    """Submit requests of equal length at once, and read them to their ends."""
    ids = [(np.arange(prompt_tokens) * 7919 + 104729 * index) % (model.vocab_size - FIRST_ID)
           + FIRST_ID for index in range(count)]
    return ask_prompts(engine, [tuple(prompt.tolist()) for prompt in ids], max_tokens)


def ask_prompts(engine: Engine, prompts: Sequence[tuple[int, ...]],
                max_tokens: int) -> list[Answer]:
    """Submit prompts at once, and read their greedy answers to the ends, stop ids or not."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    opened = []
    for prompt in prompts:
        started = time.perf_counter()
        opened.append((started, engine.submit(
            Request(f'bench-{next(_numbers)}', prompt, sampling))))
    answers = []
    found: list[list[tuple[float, int]]] = [[] for _ in opened]
    open_boxes = dict(enumerate(opened))
    while open_boxes:
        for index, (_, outbox) in list(open_boxes.items()):
            if not outbox.wait(TIMEOUT_S):
                raise TimeoutError(f'no token within {TIMEOUT_S:g} s')
            now = time.perf_counter()
            for event in outbox.poll():
                if isinstance(event, TokenEvent):
                    found[index] += [(now, token) for token in event.token_ids]
                else:
                    if len(found[index]) != max_tokens:
                        raise RuntimeError(f'{len(found[index])} tokens came: {event}')
                    del open_boxes[index]
    for (started, _), pairs in zip(opened, found, strict=True):
        answers.append(Answer(started, tuple(at for at, _ in pairs), tuple(t for _, t in pairs)))
    return answers


def decode(bench: Bench, depths: Sequence[int], num_tokens: int, kv_dtype: CudaKvDtype,
           check_graphs: bool = False) -> list[float]:
    """One sequence at some depths, with the device's clock beside each.

    check_graphs: at the first depth, each step's graph by itself too, and the same tokens without
    graphs. Gives the tokens a second at each depth.
    """
    rates = []
    for depth in depths:
        with bench.engine(1, depth + num_tokens + CHUNK, kv_dtype) as engine:
            ask(engine, bench.model, 16, 8)
            before = bench.model.num_ahead, bench.model.num_ahead_used
            with ClockWatch(device.pci_bus_id()) as clocks:
                answer, = ask(engine, bench.model, depth, num_tokens)
            ahead = bench.model.num_ahead - before[0], bench.model.num_ahead_used - before[1]
            context = {**bench.context, 'path': 'engine', 'sequences': 1, 'rows': 1,
                       'depth': depth, 'kv': kv_dtype, 'tokens': num_tokens,
                       'token_hash': answer.digest, 'run_ahead': list(ahead)}
            gaps = np.diff(np.array(answer.times))
            windows = [part.size / float(part.sum()) for part in np.array_split(gaps, 8)
                       if part.sum() > 0.0]
            num_bytes = step_bytes(bench.model, depth, value_bytes=bench.value_bytes)
            gb_s = num_bytes * answer.rate / 1e9
            rates.append(bench.records.add(
                'decode_tok_s', windows, 'tok/s', fraction=bench.share(gb_s), **context,
                gb_s=round(gb_s, 1), p99_ms=round(float(np.quantile(gaps, 0.99)) * 1e3, 3),
                clocks=clocks.found))
            ttft = (answer.times[0] - answer.submitted) * 1e3
            bench.records.add('ttft_ms', [ttft], 'ms', **context)
            bench.say(f'decode depth {depth:6} {kv_dtype:4} {answer.rate:8.1f} tok/s '
                      f'{gb_s:6.0f} GB/s {bench.share(gb_s) or 0.0:4.0%}  first token '
                      f'{ttft:.0f} ms run-ahead {ahead[1]}/{ahead[0]} clocks {clocks.found}')
            if check_graphs and depth == depths[0]:
                _graphs_of_decode(bench, engine, context)
        if check_graphs and depth == depths[0]:
            bench.model.graphs.enabled = False
            try:
                with bench.engine(1, depth + num_tokens + CHUNK, kv_dtype) as engine:
                    plain, = ask(engine, bench.model, depth, num_tokens)
            finally:
                bench.model.graphs.enabled = True
            same = plain.token_ids == answer.token_ids
            bench.records.add('tokens_equal', [float(same)], '1 = equal', **context,
                              compared_with='launches one by one')
            bench.say(f'without graphs {plain.rate:.1f} tok/s, tokens '
                      f'{"equal" if same else "DIFFER"}')
    return rates


def _graphs_of_decode(bench: Bench, engine: Engine, context: dict[str, Any]) -> None:
    """The same answer again with events around each step's graph: context is its record's."""
    with GraphLog(bench.model.graphs, bench.model.stream) as log, \
            ClockWatch(device.pci_bus_id()) as clocks:
        ask(engine, bench.model, context['depth'], context['tokens'])
    inside, between = log.times(context['tokens'] - 2)
    for metric, times in ('graph_us', inside), ('between_graphs_us', between):
        value = bench.records.add(metric, times, 'us', **context, way='in decode',
                                  clocks=clocks.found)
        bench.say(f'  {metric} in decode {value:.1f} ({min(times):.1f} to {max(times):.1f})')
    bench.say(f'  clocks {clocks.found}')


def kv_types(bench: Bench, depths: Sequence[int], num_tokens: int) -> None:
    """FP8 against bf16 pages at some depths, one after the other at each."""
    for depth in depths:
        fp8, = decode(bench, (depth,), num_tokens, 'fp8')
        bf16, = decode(bench, (depth,), num_tokens, 'bf16')
        ratio = bench.records.add('fp8_times_bf16', [fp8 / bf16], 'times', **bench.context,
                                  path='engine', sequences=1, depth=depth, tokens=num_tokens)
        bench.say(f'fp8 pages {ratio:.3f} times bf16 at {depth}')


def sequences(bench: Bench, counts: Sequence[int], depth: int, num_tokens: int,
              kv_dtype: CudaKvDtype) -> None:
    """Several sequences together: tokens a second of all, while all of them run."""
    with bench.engine(max(counts), depth + num_tokens + CHUNK, kv_dtype) as engine:
        for count in counts:
            answers = ask(engine, bench.model, depth, num_tokens, count)
            begin = max(answer.times[0] for answer in answers)
            end = min(answer.times[-1] for answer in answers)
            tokens = sum(begin < at <= end for answer in answers for at in answer.times)
            rate = tokens / (end - begin)
            bench.records.add('batched_tok_s', [rate], 'tok/s', **bench.context, path='engine',
                              sequences=count, depth=depth, kv=kv_dtype, tokens=num_tokens)
            bench.say(f'{count:2} sequences {rate:8.1f} tok/s in all')


def prefill(bench: Bench, lengths: Sequence[int], kv_dtype: CudaKvDtype) -> None:
    """Prompts of some lengths, to their first token: no prefix of one is kept for the next.

    What is lost a token is told of those longer than 4,096 tokens, by the rate of that length.
    """
    found: dict[int, float] = {}
    for length in lengths:
        with bench.engine(1, length + CHUNK, kv_dtype) as engine:
            ask(engine, bench.model, 32, 2)
            rates = []
            for _ in range(_PREFILL_RUNS):           # the first one makes the graph of a chunk
                answer, = ask(engine, bench.model, length, 2)
                rates.append(length / (answer.times[0] - answer.submitted))
            rate = bench.records.add('prefill_tok_s', rates, 'tok/s', **bench.context,
                                     path='engine', tokens=length, chunk=CHUNK, kv=kv_dtype)
            found[length] = rate
            bench.say(f'prefill {length:6} {rate:8.0f} tok/s ({min(rates):.0f} to '
                      f'{max(rates):.0f})')
            if length > _REFERENCE_PROMPT in found:
                share = bench.records.add('prefill_share', [rate / found[_REFERENCE_PROMPT]], '',
                                          **bench.context, path='engine', tokens=length,
                                          chunk=CHUNK, kv=kv_dtype, of_tokens=_REFERENCE_PROMPT)
                bench.say(f'  {share:.3f} of the rate of {_REFERENCE_PROMPT} tokens')
        if length % CHUNK == 0:          # of its last chunk
            _node_table(bench, Key(CHUNK, 1, CHUNK, True), step='prefill', depth=length)


def verify(bench: Bench, rows: Sequence[int], allowed: Sequence[int], depth: int,
           kv_dtype: CudaKvDtype) -> None:
    """Steps of several rows of one sequence; allowed: experts that the routers choose among."""
    model = bench.model
    model.kv_dtype = kv_dtype
    num_pages = -(-(depth + 16) // PAGE_SIZE)
    cache = model.new_kv_cache(num_pages, num_pages, PAGE_SIZE)
    limits = [0, *allowed]
    for limit in limits:
        with confined_routes(model, limit):
            for count in rows:
                distinct = _verify(bench, cache, count, depth, kv_dtype)
            if limit in (limits[0], limits[-1]):     # with the experts of the last step
                key = Key(rows[-1], 1, rows[-1])
                context: dict[str, Any] = {'step': 'verify', 'depth': depth,
                                           'distinct_experts': distinct}
                time_us = bench.records.add(
                    'graph_us', times_us(model.stream, model.launches(key)), 'us',
                    **bench.context, path='node', rows=rows[-1], **context)
                bench.say(f'  on the device {time_us / 1e3:.3f} ms')
                _node_table(bench, key, **context)


def _verify(bench: Bench, cache: Any, count: int, depth: int, kv_dtype: CudaKvDtype) -> float:
    """Steps of one number of rows, of random tokens; the distinct experts of a layer, a mean."""
    model = bench.model
    pages = np.arange(-(-(depth + 16) // PAGE_SIZE), dtype=np.int32)
    settings = SampleSettings(temperature=0.0)
    rng = np.random.default_rng(count)
    times, beside = [], []
    for run in range(_VERIFY_RUNS + 3):
        ids = rng.integers(FIRST_ID, model.vocab_size, count).astype(np.int32)
        step = Batch(ids, np.arange(depth, depth + count, dtype=np.int32),
                     (Span(Role.DECODE, 0, count, depth, pages, pages),),
                     np.arange(count, dtype=np.int32))
        choice = [SampleRow(settings, depth + 1 + i) for i in range(count)]
        with GraphTimer(model.graphs, model.stream) as timer:
            started = time.perf_counter()
            model.choose(step, cache, choice)
            ended = time.perf_counter()
        if run >= 3:
            times.append((ended - started) * 1e3)
            beside.append((ended - started) * 1e6 - timer.us())
    distinct = mean_distinct(model, step, cache)
    gb_s = step_bytes(model, depth, distinct, bench.value_bytes) / float(np.median(times)) / 1e6
    value = bench.records.add('verify_ms', times, 'ms', fraction=bench.share(gb_s),
                              **bench.context, path='model', rows=count, depth=depth,
                              kv=kv_dtype, distinct_experts=distinct)
    rest = bench.records.add('beside_graph_us', beside, 'us', **bench.context, path='model',
                             rows=count, depth=depth, kv=kv_dtype, distinct_experts=distinct)
    bench.say(f'verify {count:2} rows, {distinct:4.1f} experts {value:7.3f} ms '
              f'({min(times):.3f} to {max(times):.3f}), {bench.share(gb_s) or 0.0:.0%} of '
              f'the limit; {rest:.0f} us beside the graph, which chooses the tokens too')
    return distinct


# how the dense MLP runs beside the experts, how one row's K and V are written, and whether the
# experts are one launch: CudaOps' joined, branches, appended and chained
_WAYS = {'joined': (True, True, True, False), 'two streams': (False, True, True, False),
         'one by one': (False, False, True, False),
         'joined, kv_append apart': (True, True, False, False),
         'joined, experts in one launch': (True, True, True, True)}


def nodes(bench: Bench, keys: Sequence[Key]) -> None:
    """A table of where the time of a step goes; the inputs are those of the last step."""
    ops = bench.model.ops
    for key in keys:
        for way, chosen in _WAYS.items():
            kept = ops.joined, ops.branches, ops.appended, ops.chained
            ops.joined, ops.branches, ops.appended, ops.chained = chosen
            times = times_us(bench.model.stream, bench.model.launches(key))
            ops.joined, ops.branches, ops.appended, ops.chained = kept
            time = bench.records.add('graph_us', times, 'us', **bench.context, path='node',
                                     way=way, rows=key.num_rows)
            bench.say(f'{key}, {way}: {time / 1e3:.3f} ms')
        if key == keys[0]:
            _sustained(bench, key)
        _node_table(bench, key)


def _sustained(bench: Bench, key: Key) -> None:
    """The graph for as long as a decode takes, to see whether the clock holds."""
    with ClockWatch(device.pci_bus_id()) as clocks:
        times = sustained_us(bench.model.stream, bench.model.launches(key), _SUSTAINED_S)
    parts = [round(float(np.median(part)), 1) for part in np.array_split(np.array(times), 8)]
    time = bench.records.add('graph_us', times, 'us', **bench.context, path='node',
                             way='joined, sustained', rows=key.num_rows, eighths=parts,
                             clocks=clocks.found)
    bench.say(f'{key}, sustained: {time / 1e3:.3f} ms, by eighths {parts}, clocks '
              f'{clocks.found}')


def _node_table(bench: Bench, key: Key, **context: Any) -> None:
    table = node_times(bench.model.stream, bench.model.launches(key))
    total = sum(node.us * node.count for node in table)
    words = ' '.join(f'{name}={value}' for name, value in context.items())
    bench.say(f'{key} {words}: {total / 1e3:.3f} ms in {sum(node.count for node in table)} '
              'launches')
    for node in table:
        bench.records.add('node_us', [node.us], 'us', **bench.context, path='node',
                          op=node.entry, rows=key.num_rows, count=node.count,
                          constants=dict(node.constants), **context)
        bench.say(f'  {node.entry:26} {node.count:3} x {node.us:7.2f} us = '
                  f'{node.us * node.count:8.1f} us {node.us * node.count / total:4.0%}')


def mean_distinct(model: CudaGemma4, step: Batch, cache: KVCache) -> float:
    """Distinct experts that a layer's rows go to, the mean of all layers; 0 without experts."""
    if not model.routers():
        return 0.0
    layers = model.experts_by_layer(step, cache)
    return round(float(np.mean([np.unique(ids).size for ids in layers])), 1)


def step_bytes(model: CudaGemma4, depth: int, distinct: float | None = None,
               value_bytes: float = 9 / 16) -> int:
    """Bytes that a step of one sequence has to read: the weights it uses, and its keys.

    distinct: experts of a layer that its rows use; None: those of one row. value_bytes: of each
    number of a weight.
    """
    config = model.config
    experts = config.top_k_experts if distinct is None else distinct
    weights: float = config.vocab_size * config.hidden_size
    for layer in range(config.num_hidden_layers):
        shape = config.geometry(layer)
        weights += config.hidden_size * (shape.qkv_rows + shape.num_q_heads * shape.head_dim)
        weights += 3 * config.hidden_size * config.intermediate_size
        weights += 3 * experts * config.hidden_size * config.moe_intermediate_size
    size = 1 if model.kv_dtype == 'fp8' else 2
    keys = 0
    for layer in range(config.num_hidden_layers):
        shape = config.geometry(layer)
        seen = depth if shape.window is None else min(depth, shape.window)
        keys += 2 * seen * shape.num_kv_heads * shape.head_dim * size
    return int(weights * value_bytes) + keys


def context_of(model: CudaGemma4, name: str, head: str,
               weights: str = 'nvfp4') -> dict[str, Any]:
    """What every record says of the model."""
    return {'model': name, 'format': weights, 'head': head,
            'layers': model.config.num_hidden_layers}
