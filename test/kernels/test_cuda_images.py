# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Prompts with images on the CUDA path: soft tokens, spans that see each other, cuts, prefixes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import engine_gates
import numpy as np
import pytest
from draft_rig import poisonable
from engine_gates import Job, chunk_gate, make_request
from host_device import HostStream, any_stream
from machine import normal, to_bf16
from prefix_gates import Visit, warm_gate
from test_cuda_model import DENSE, PAGE, batch, nvfp4
from test_cuda_vision import VISIONS, patches_of, vision_weights

from gemma_thor_ros import load_device
from gemma_thor_ros.engine import prefix_cache
from gemma_thor_ros.load_device import unfit
from gemma_thor_ros.load_vision import find_vision
from gemma_thor_ros.models import cuda_inputs, cuda_step
from gemma_thor_ros.models.batch import Batch, Role, SoftRows, Span
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.cuda_inputs import Key, cut_passes
from gemma_thor_ros.models.cuda_step import CudaGemma4
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.schema import ConfigError, PromptImage, Request
from gemma_thor_ros.weights import presets
from gemma_thor_ros.weights.canonical import DenseWeight, Weight
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.shapes import TextShapes
from gemma_thor_ros.weights.synth import write_synthetic

Array = np.ndarray
P, D = Role.PREFILL, Role.DECODE
WINDOW = 8
# In sliding layers rows of an image see its later rows; in both kinds all of it, window or not.
_SMALL = {key: value for key, value in DENSE.items() if not key.endswith('per_layer_input')}
MODELS: dict[str, dict[str, Any]] = {
    'tower': {'model_type': 'gemma4', 'text_config': {
        **DENSE, 'sliding_window': WINDOW, 'use_bidirectional_attention': 'vision'}},
    'embedder': {'model_type': 'gemma4_unified', 'text_config': {
        **_SMALL, 'model_type': 'gemma4_unified_text', 'sliding_window': WINDOW,
        'use_bidirectional_attention': 'vision'}}}
# (first position, soft tokens across, down): the second is longer than the window
IMAGES = ((3, 2, 2), (9, 3, 4))
LENGTH = 25
BLOCKS = tuple((start, start + across * down) for start, across, down in IMAGES)


def raw(name: str) -> dict[str, Any]:
    return {**MODELS[name], 'vision_config': VISIONS[name]}


@cache
def text_weights(name: str) -> dict[str, Weight]:
    found: dict[str, Weight] = {}
    for seed, (tensor, shape) in enumerate(TextShapes.from_config(raw(name)).all().items()):
        if tensor.endswith('_proj'):
            found[tensor] = nvfp4(seed, shape)
        elif len(shape) == 2:
            found[tensor] = DenseWeight(to_bf16(normal(seed, *shape) * shape[-1] ** -0.5), 'bf16')
        else:
            # rows look at many keys, so that one more or less matters
            size = 0.08 if tensor.endswith('q_norm') else 1.0
            found[tensor] = DenseWeight(to_bf16(size + 0.1 * size * normal(seed, *shape)), 'bf16')
    return found


def parts(name: str) -> tuple[ModelConfig, dict[str, Weight], tuple[VisionConfig, Any]]:
    vision = VisionConfig.from_dict(raw(name))
    assert vision is not None
    return ModelConfig.from_dict(raw(name)), text_weights(name), (vision, vision_weights(name))


def on_device(name: str, stream: Any, prompt_rows: int = 64) -> CudaGemma4:
    config, weights, vision = parts(name)
    return CudaGemma4(config, weights, DeviceLoader(stream), stream=stream, context_length=128,
                      kv_dtype='bf16', prompt_rows=prompt_rows, vision=vision)


def on_cpu(name: str, dtype: Any) -> Gemma4:
    config, weights, vision = parts(name)
    return Gemma4(config, weights, dtype, 'device', kv_dtype='bf16', vision=vision)


def with_images(plain: Batch, name: str, model: Any) -> Batch:
    """The batch with the images that lie in its one span."""
    span, = plain.spans
    end = span.start_position + span.num_rows
    inside = [(image, block) for image, block in zip(IMAGES, BLOCKS, strict=True)
              if span.start_position <= block[0] < end]
    soft = tuple(SoftRows(start - span.start_position, model.vision.encode(
        *patches_of(name, across, down, start))) for (start, across, down), _ in inside)
    blocks = tuple(block for _, block in inside)
    return dataclasses.replace(plain, soft_rows=soft, spans=(dataclasses.replace(
        span, blocks=blocks),))


def steps(name: str, model: Any, *cuts: int) -> list[Batch]:
    """The prompt in chunks that end at the cuts, and a generated row."""
    ends = [*cuts, LENGTH]
    found = [with_images(batch((P, 0, start, end - start), wanted=[end - start - 1]), name, model)
             for start, end in zip([0, *cuts], ends, strict=True)]
    return [*found, batch((D, 0, LENGTH, 1))]


def logits(name: str, model: Any, *cuts: int) -> list[Array]:
    """Those of the prompt's last row and of the generated one."""
    pages = model.new_kv_cache(12, 12, PAGE)
    return [model.forward(step, pages) for step in steps(name, model, *cuts)][-2:]


def error(ours: list[Array], theirs: list[Array]) -> float:
    a, b = np.concatenate(ours), np.concatenate(theirs)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return any_stream(request, monkeypatch)


@cache
def references(name: str) -> tuple[list[Array], float]:
    """Logits in float64, and the error of the CPU in the device's rounding."""
    exact = logits(name, on_cpu(name, np.float64))
    return exact, error(logits(name, on_cpu(name, np.float32)), exact)


def limit(name: str) -> float:
    return max(0.02, 3 * references(name)[1])


@pytest.mark.parametrize('name', MODELS)
def test_the_device_computes_what_the_cpu_does(name: str, request: pytest.FixtureRequest,
                                               stream: Any) -> None:
    if name == 'embedder':
        request.getfixturevalue('full')
    assert error(logits(name, on_device(name, stream)), references(name)[0]) < limit(name)


def no_spans(model: CudaGemma4, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an image look back only."""
    monkeypatch.setattr(cuda_inputs.StepInputs, 'blocks', lambda self, key: None)


def spans_one_short(model: CudaGemma4, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cuda_inputs.StepInputs._send_blocks

    def send(self: Any, piece: Any) -> None:
        blocks = tuple((start, stop - 1) for start, stop in piece.span.blocks)
        right(self, dataclasses.replace(piece, span=dataclasses.replace(
            piece.span, blocks=blocks)))

    monkeypatch.setattr(cuda_inputs.StepInputs, '_send_blocks', send)


def one_row_late(model: CudaGemma4, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cuda_step._soft_rows
    monkeypatch.setattr(cuda_step, '_soft_rows', lambda step, batch: tuple(
        (slice(rows.start + 1, rows.stop + 1), values) for rows, values in right(step, batch)))


def not_placed(model: CudaGemma4, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_step, '_soft_rows', lambda step, batch: ())


@pytest.mark.parametrize('plant', [no_spans, spans_one_short, one_row_late, not_placed])
def test_a_planted_error_shows(plant: Callable[..., None], full: None, stream: Any,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MODELS:
        model = on_device(name, stream)
        plant(model, monkeypatch)
        assert error(logits(name, model), references(name)[0]) > limit(name), name


@pytest.mark.parametrize('name', MODELS)
def test_prompts_have_the_same_bits_however_they_are_cut(name: str, full: None,
                                                         stream: Any) -> None:
    whole = logits(name, on_device(name, stream))
    for cuts in (3,), (7, 9), (9, 21), (21, 24):
        assert all(map(np.array_equal, logits(name, on_device(name, stream), *cuts), whole)), cuts
    # pieces of at most 16 rows: 0 to 8, 9 to 24
    assert all(map(np.array_equal, logits(name, on_device(name, stream, 16)), whole))


def test_passes_cut_no_image() -> None:
    plain = batch((P, 0, 0, LENGTH), wanted=[LENGTH - 1])
    span, = plain.spans
    sighted = dataclasses.replace(plain, spans=(dataclasses.replace(span, blocks=BLOCKS),))
    passes = cut_passes(sighted, 16)
    assert [step.num_rows for step in passes] == [9, 16]
    assert [step.key for step in passes] == [Key(9, 1, 9, True, True), Key(16, 1, 16, True, True)]
    assert [step.pieces[0].blocks for step in passes] == [BLOCKS[:1], BLOCKS[1:]]
    assert [step.num_rows for step in cut_passes(sighted, 12)] == [9, 12, 4]
    with pytest.raises(AssertionError, match='an image has 12 rows, a piece at most 11'):
        cut_passes(sighted, 11)


OPTIONS: dict[str, Any] = {'page_size': PAGE, 'max_image_tokens': 16, 'stop_ids': (),
                           'num_sliding_pages': 12, 'num_full_pages': 12}


def request(name: str, key: str, layout: list[int | str], max_tokens: int = 3) -> Request:
    """A prompt of so many random tokens, then an image of 12 soft tokens by its letter, ..."""
    base = make_request(key, 60, vocab_size=90, max_tokens=max_tokens)
    ids, placed = [], []
    for part in layout:
        if isinstance(part, int):
            ids += base.prompt_ids[len(ids):len(ids) + part]
            continue
        patches, across = patches_of(name, 3, 4, ord(part))
        placed.append(PromptImage(len(ids), 12, part.encode(), patches, across))
        ids += [95] * 12
    return dataclasses.replace(base, prompt_ids=tuple(ids), images=tuple(placed))


@pytest.fixture
def served(stream: Any, monkeypatch: pytest.MonkeyPatch) -> CudaGemma4:
    monkeypatch.setattr(engine_gates, 'WAIT', 120.0)     # what is emulated makes answers late
    model = on_device('tower', stream)
    poisonable(model)
    return model


def test_chunked_equals_whole(full: None, served: CudaGemma4) -> None:
    jobs = [Job(request('tower', 'one', [6, 'a', 9])), Job(request('tower', 'two', [3, 'b']), 1)]
    assert chunk_gate(served, jobs, chunks=(5, 16), **OPTIONS) == []


def visits() -> list[Visit]:
    """A prompt whose image lies in two pages, again, and the same with another image."""
    first = request('tower', 'base', [10, 'a', 30])
    other = request('tower', 'base', [10, 'b', 30])
    return [Visit(first, 0), Visit(dataclasses.replace(first, request_id='again'), 48),
            Visit(dataclasses.replace(other, request_id='other'), 0)]


def test_warm_equals_cold(full: None, served: CudaGemma4) -> None:
    assert warm_gate(served, visits(), checkpoint_interval=1, **OPTIONS) == []


def test_a_wrong_hash_is_caught(full: None, served: CudaGemma4,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache.Trail, 'key', lambda self, page: self._ids[
        page * PAGE:(page + 1) * PAGE].tobytes())
    assert warm_gate(served, visits(), checkpoint_interval=1, audit=False, **OPTIONS)


def test_a_checkpoint_is_loaded_with_its_sight(full: None, stream: Any, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """From files through the loader: logits as the CPU's of the same files, memory in the plan."""
    for table, change in ((presets._SIZES, {'tiny-vision': {
            **presets._SIZES['tiny-dense'], 'hidden_size': 64, 'num_hidden_layers': 2,
            'head_dim': 256, 'global_head_dim': 512, 'vocab_size': 4096}}),
            (presets._FULL_EVERY, {'tiny-vision': 2}), (presets._TINY_TOWER, {'head_dim': 24})):
        for key, value in change.items():
            monkeypatch.setitem(table, key, value)       # type: ignore[arg-type]
    write_synthetic(tmp_path / 'it', 'tiny-vision', 'compressed-tensors', 3)
    checkpoint = open_checkpoint(tmp_path / 'it')
    config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    weights = checkpoint.text_weights()
    assert unfit(config, weights, PAGE) == ''
    sight = find_vision(checkpoint, config, 'cuda', 'auto')
    assert sight.part is not None, sight.info.reason
    if isinstance(stream, HostStream):
        monkeypatch.setattr(load_device, 'compile_specs', lambda *_: 0)
        monkeypatch.setattr(load_device, '_try_kernels', lambda stream: 'bit tricks')
        monkeypatch.setattr(device, 'memory', lambda: (1 << 40, 1 << 40))

    def load(kv_bytes: int) -> CudaGemma4:
        return load_device.load_cuda(
            config, checkpoint, weights, context_length=256, page_size=PAGE, kv_dtype='bf16',
            kv_bytes=kv_bytes, nvfp4_head=False, graphs=True, num_threads=2, prompt_rows=16,
            report=lambda share, stage: None, facts={}, vision=sight)

    model = load(0)
    assert model.prompt_rows >= 70       # of one image
    ids = (np.arange(40) * 37 % 4000 + 20).astype(np.int32)
    patches, across = patches_of('tower', 4, 3)
    pages = np.arange(8, dtype=np.int32)
    found = {}
    for name, sees in (('cuda', model), ('cpu', Gemma4(
            config, weights, np.float64, 'device', kv_dtype='bf16', vision=sight.part))):
        cache = sees.new_kv_cache(8, 8, PAGE)
        for image in (True, False):
            soft = (SoftRows(9, sees.vision.encode(patches, across)),) if image else ()
            span = Span(P, 0, 40, 0, pages, pages, ((9, 21),) if image else ())
            found[name, image] = sees.forward(Batch(
                ids, np.arange(40, dtype=np.int32), (span,), np.array([39], np.int32), soft),
                cache)
    assert error([found['cuda', True]], [found['cpu', True]]) < 0.05
    assert error([found['cuda', False]], [found['cpu', True]]) > 0.1     # planted: no image
    with pytest.raises(ConfigError, match=r'GiB, 0\.\d\d GiB for images and KV pages of'):
        load(1 << 41)
