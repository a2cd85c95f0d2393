# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The part 'tower' of `gemma-thor bench`: an image from its pixels to the first token.

Random weights of the true shapes of a preset's vision part. Times one image by cuBLAS and by our
own products, tells its launches and products one by one, and sends a prompt with it through the
engine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.cli import bench_device
from gemma_thor_ros.cli.bench_device import Bench
from gemma_thor_ros.cli.bench_model import RandomWeights, Settled
from gemma_thor_ros.engine.engine import Engine
from gemma_thor_ros.engine.page_pool import plan_pages
from gemma_thor_ros.load_device import compile_specs, sight_specs
from gemma_thor_ros.models.vision import Vision
from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.ops import device, library_gemm, prefill_gemm, vision_attention
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.ops.step_times import node_times
from gemma_thor_ros.ops.vision_cuda import CudaVisionOps
from gemma_thor_ros.schema import (
    ConfigError,
    PromptImage,
    Request,
    SamplingParams,
    TokenEvent,
)
from gemma_thor_ros.weights.presets import preset_config
from gemma_thor_ros.weights.vision import vision_shapes

_GRID = (20, 14)                         # soft tokens of the image: the 280 of the checkpoints
_RUNS = 20
_ANSWER = 8                              # tokens
_PROMPT = 64                             # tokens beside the image


def measure(bench: Bench, preset: str, num_threads: int = 1) -> None:
    """All of it; raises ConfigError for a preset without sight, or of another hidden size."""
    raw = preset_config(preset)
    config = VisionConfig.from_dict(raw)
    model = bench.model
    if config is None or config.text_hidden_size != model.config.hidden_size:
        raise ConfigError(f'{preset} has no vision part for a model of hidden_size '
                          f'{model.config.hidden_size}')
    compile_specs(sight_specs(model.config, config, bench_device.PAGE_SIZE, model.kv_dtype),
                  num_threads, lambda share: None)
    patches, columns = picture(config, *_GRID)
    context = {**bench.context, 'path': 'vision', 'kind': config.kind,
               'patches': patches.shape[0], 'soft_tokens': _GRID[0] * _GRID[1]}
    ops = CudaVisionOps(model.stream)
    vision = _random_vision(config, raw, ops)
    has_library = ops.library
    if not has_library:
        bench.say(f'cuBLAS is not used: {library_gemm.missing()}')
    ways = ('cuBLAS', 'own') if has_library else ('own',)
    for way in ways:
        ops.library, found = way == 'cuBLAS', []
        for graphs in (False,) if ops.library else (True, False):
            ops.graphs = graphs
            found.append(_time(bench, vision, patches, columns, {**context, 'graphs': graphs},
                               way))
        if found[0] != found[-1]:
            bench.say('the graph gives other soft tokens than its launches one by one')
            bench.records.add('soft_tokens_equal', [0.0], '', **context, products=way)
    ops.library, ops.graphs = has_library, True
    _first_token(bench, vision, patches, columns, raw['image_token_id'], context)
    ops.graphs = False
    for way in ways:
        ops.library = way == 'cuBLAS'
        _nodes(bench, vision, patches, columns, context, way)
    if config.kind == 'tower':
        _attention(bench, config, patches.shape[0], context)


def picture(config: VisionConfig, across: int, down: int) -> tuple[npt.NDArray[np.uint8], int]:
    """Random patches of an image of so many soft tokens, and how many of them stand in a row."""
    size = config.pooling_kernel_size
    shape = across * down * size * size, 3 * config.patch_side ** 2
    return np.random.default_rng(1).integers(0, 256, shape, np.uint8), across * size


def _random_vision(config: VisionConfig, raw: dict[str, Any], ops: CudaVisionOps) -> Vision:
    loader = DeviceLoader(ops.stream)
    with device.errors():
        vision = Vision(config, Settled(RandomWeights(vision_shapes(raw))), loader, ops)
        loader.finish()
    return vision


def _time(bench: Bench, vision: Vision, patches: Any, columns: int, context: dict[str, Any],
          way: str) -> bytes:
    """From patches on the host to soft tokens, and the device's own time of it; their bits."""
    stream, events = bench.model.stream, device.cupy().cuda
    walls, inside = [], []
    for run in range(_RUNS + 3):
        start, end = events.Event(), events.Event()
        stream.synchronize()
        began = time.perf_counter()
        start.record(stream)
        soft = vision.encode(patches, columns)
        end.record(stream)
        end.synchronize()
        if run >= 3:
            walls.append((time.perf_counter() - began) * 1e3)
            inside.append(events.get_elapsed_time(start, end))
    assert bool((soft & np.uint16(0x7F80) != 0x7F80).all()), 'a soft token is not a number'
    value = bench.records.add('tower_ms', walls, 'ms', **context, products=way)
    bench.records.add('tower_device_ms', inside, 'ms', **context, products=way)
    how = 'as a graph' if context['graphs'] else 'launch by launch'
    bench.say(f'{vision.config.kind}, {patches.shape[0]} patches, products by {way}, {how}: '
              f'{value:.2f} ms ({min(walls):.2f} to {max(walls):.2f})')
    bits: bytes = device.cupy().asnumpy(soft).tobytes()
    return bits


def _nodes(bench: Bench, vision: Vision, patches: Any, columns: int, context: dict[str, Any],
           way: str) -> None:
    """Launches by kind, and the library's products by shape."""
    stream = bench.model.stream
    products: Counter[tuple[int, int, int]] = Counter()
    keep: dict[tuple[int, int, int], tuple[Any, Any, Any]] = {}
    right = library_gemm.library_gemm

    def note(out: Any, x: Any, weight: Any, stream: Any) -> None:
        shape = (*out.shape, x.shape[1])
        products[shape] += 1
        keep.setdefault(shape, (out, x, weight))
        right(out, x, weight, stream)

    def encode() -> None:
        vision.encode(patches, columns)

    library_gemm.library_gemm = note
    try:
        table = node_times(stream, encode)
    finally:
        library_gemm.library_gemm = right
    rows = [(node.entry, node.us, node.count, dict(node.constants)) for node in table]
    for shape, count in products.items():
        us = _us_of(stream, partial(right, *keep[shape], stream))
        rows.append((f'cuBLAS {shape}', us, count, {}))
    total = sum(us * count for _, us, count, _ in rows)
    bench.say(f'{vision.config.kind}, products by {way}: {total / 1e3:.2f} ms launch by launch')
    for entry, us, count, constants in sorted(rows, key=lambda row: -row[1] * row[2]):
        speed = _tflop_s(entry, us, vision.config, patches.shape[0])
        bench.records.add('node_us', [us], 'us', **context, products=way, op=entry, count=count,
                          constants=constants)
        bench.say(f'  {entry:34} {count:3} x {us:8.2f} us = {us * count / 1e3:7.3f} ms {speed}')


def _attention(bench: Bench, config: VisionConfig, num_patches: int,
               context: dict[str, Any]) -> None:
    """The attention of a layer in blocks of each shape."""
    cupy, stream = device.cupy(), bench.model.stream
    shape = (num_patches, 3, config.num_attention_heads, config.head_dim)
    numbers = cupy.random.RandomState(1).standard_normal(shape).astype(cupy.float32)
    qkv = (numbers.view(cupy.uint32) >> np.uint32(16)).astype(cupy.uint16)
    out = cupy.empty((num_patches, *shape[2:]), cupy.uint16)
    cupy.cuda.runtime.deviceSynchronize()
    for chosen in vision_attention.SHAPES:
        us = _us_of(stream, partial(vision_attention.vision_attention, out, qkv, stream, chosen))
        bench.records.add('op_us', [us], 'us', **context, op='vision_attention',
                          warps=chosen[0], parts=chosen[1])
        bench.say(f'vision_attention, warps and parts {chosen}: {us:.1f} us '
                  f'{_tflop_s("vision_attention", us, config, num_patches)}')


def _tflop_s(entry: str, us: float, config: VisionConfig, num_patches: int) -> str:
    if entry == 'vision_attention':
        flops = vision_attention.flops(num_patches, config.num_attention_heads, config.head_dim)
    elif entry.startswith('cuBLAS'):
        rows, outputs, columns = (int(word) for word in entry[8:-1].split(','))
        flops = prefill_gemm.flops(rows, outputs, columns)
    else:
        return ''
    return f'{flops / us / 1e6:6.0f} TFLOP/s'


def _us_of(stream: Any, enqueue: Callable[[], None], count: int = 20) -> float:
    """Of one launch among many in a row; not less than what the host needs for one."""
    events = device.cupy().cuda
    enqueue()
    start, end = events.Event(), events.Event()
    start.record(stream)
    for _ in range(count):
        enqueue()
    end.record(stream)
    end.synchronize()
    return float(events.get_elapsed_time(start, end)) * 1e3 / count


def _first_token(bench: Bench, vision: Vision, patches: Any, columns: int, image_id: int,
                 context: dict[str, Any]) -> None:
    """A prompt with the image through the engine: new, then with its soft tokens kept."""
    model = bench.model
    count = context['soft_tokens']
    length = _PROMPT + count + _ANSWER
    sliding, full = plan_pages(length, 1, page_size=bench_device.PAGE_SIZE,
                               window=model.config.sliding_window,
                               prefill_chunk=bench_device.CHUNK)
    model.vision = vision
    try:
        engine = Engine(model, page_size=bench_device.PAGE_SIZE, num_sliding_pages=sliding,
                        num_full_pages=full, max_sequences=1, max_waiting=8,
                        prefill_chunk=bench_device.CHUNK, context_length=length,
                        max_checkpoint_pages=0, max_image_tokens=count)
        engine.start()
        try:
            ids = [bench_device.FIRST_ID + index for index in range(_PROMPT)]
            at = _PROMPT // 2
            ids[at:at] = [image_id] * count
            found = {}
            for name, pixels in (('warm-up', patches[::-1]), ('new', patches), ('kept', patches)):
                image = PromptImage(at, count, str(pixels[0, :8]).encode(),
                                    np.ascontiguousarray(pixels), columns)
                request = Request(f'tower-{name}', tuple(ids), SamplingParams(
                    temperature=0.0, max_tokens=_ANSWER, ignore_eos=True), images=(image,))
                found[name] = _ask(engine, request)
        finally:
            engine.stop()
    finally:
        model.vision = None
    if found['new'][1] != found['kept'][1]:
        raise RuntimeError('the same image gave other tokens')
    for name in ('new', 'kept'):
        ms = found[name][0]
        bench.records.add('ttft_ms', [ms], 'ms', **{**context, 'path': 'engine'}, image=name,
                          tokens=len(ids))
        bench.say(f'first token of {len(ids)} tokens, {count} of them an image ({name}): '
                  f'{ms:.1f} ms')


def _ask(engine: Engine, request: Request) -> tuple[float, list[int]]:
    """Milliseconds to the first token, and all tokens."""
    began, first = time.perf_counter(), 0.0
    outbox = engine.submit(request)
    token_ids: list[int] = []
    while True:
        if not outbox.wait(bench_device.TIMEOUT_S):
            raise TimeoutError(f'no token within {bench_device.TIMEOUT_S:g} s')
        for event in outbox.poll():
            if not isinstance(event, TokenEvent):
                if len(token_ids) != request.sampling.max_tokens:
                    raise RuntimeError(f'{len(token_ids)} tokens came: {event}')
                return first, token_ids
            first = first or (time.perf_counter() - began) * 1e3
            token_ids += event.token_ids
