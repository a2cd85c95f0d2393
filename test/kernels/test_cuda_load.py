# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The way of weights to the device: buffers, forms, what is refused, and where a model runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulator import COMPILER, Emulator
from host_device import HostStream, host_device
from test_cuda_model import nvfp4

from gemma_thor_ros import load_device, load_drafter
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import DEMO_FOLDER, Runtime
from gemma_thor_ros.load_drafter import FoundDrafter, find_drafter
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.ops.fragment_order import fragment_order_ref
from gemma_thor_ros.ops.staging import NUM_SLOTS, StepBuffer, Upload
from gemma_thor_ros.schema import ConfigError, DeviceError
from gemma_thor_ros.weights.canonical import DenseWeight, Nvfp4Stack, dense_bf16
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.modules import Form
from gemma_thor_ros.weights.streaming import StreamedWeights, quantised_table
from gemma_thor_ros.weights.synth import write_synthetic


@pytest.fixture
def stream(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> HostStream:
    if COMPILER is None:
        pytest.skip('the emulator needs a C++ compiler')
    return host_device(emulator, monkeypatch)


@pytest.mark.parametrize('slot_bytes', [64, 1000, 1 << 20])
def test_an_upload_loses_no_byte(stream: HostStream, slot_bytes: int) -> None:
    rng = np.random.default_rng(1)
    pieces = [rng.integers(0, 256, size, np.uint8) for size in (1, 63, 64, 65, 1000, 2001, 7)]
    upload = Upload(stream, 2, slot_bytes)
    for _ in range(2):                   # the ring goes round more than once
        target = np.zeros(sum(piece.size for piece in pieces), np.uint8)
        upload.copy(target, iter(pieces))
        assert np.array_equal(target, np.concatenate(pieces))
    with pytest.raises(AssertionError):  # a piece that is missing shows
        upload.copy(np.zeros(target.size, np.uint8), pieces[1:])
    upload.close()
    assert upload.num_bytes == 2 * target.size


def test_a_buffer_is_filled_again_only_after_it_was_sent(stream: HostStream,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    class Event:
        def __init__(self) -> None:
            self.number = len(events)
            events.append(self)

        def record(self, on: HostStream) -> None:
            pass

        def synchronize(self) -> None:
            waited.append(self.number)

    events: list[Event] = []
    monkeypatch.setattr(device, 'new_event', Event)
    Upload(stream, 1, 64).copy(np.zeros(64 * (NUM_SLOTS + 2), np.uint8),
                               [np.zeros(64 * (NUM_SLOTS + 2), np.uint8)])
    assert waited == [0, 1]


def test_step_copies_are_of_the_moment(stream: HostStream) -> None:
    buffer = StepBuffer(stream, num_bytes=64, num_blocks=2)
    targets = [np.zeros(n, np.int32) for n in (3, 40, 5)]        # the second one is too long
    for step in range(5):
        values = [np.arange(target.size, dtype=np.int32) + step for target in targets]
        buffer.begin()
        for target, value in zip(targets, values, strict=True):
            buffer.send(target, value)
            value[:] = -1
        buffer.end()
        assert all(np.array_equal(target, np.arange(target.size) + step) for target in targets)


def test_experts_that_lie_apart_become_what_the_twin_says(stream: HostStream) -> None:
    gate, up, down = (nvfp4(seed, shape) for seed, shape in (
        (1, (3, 40, 64)), (2, (3, 40, 64)), (3, (3, 64, 48))))
    stacks = [Nvfp4Stack(tuple(part[e] for e in range(3))) for part in (gate, up, down)]
    loader = DeviceLoader(stream)
    apart = loader.experts(*stacks)
    together = loader.experts(gate, up, down)
    loader.finish()
    for a, b in (apart.gate_up, together.gate_up), (apart.down, together.down):
        assert np.array_equal(a.codes, b.codes) and np.array_equal(a.scales, b.scales)
        assert np.array_equal(a.row_scales, b.row_scales)
    codes, scales = fragment_order_ref(gate[2], up[2], False)
    assert np.array_equal(apart.gate_up.codes[2 * codes.size:], codes.ravel())
    assert np.array_equal(apart.gate_up.scales[2 * scales.size:], scales.ravel())
    factor = np.float32(2.0 ** 19)
    assert apart.gate_up.row_scales[-2:].tolist() == [gate.global_scale[2] * factor,
                                                      up.global_scale[2] * factor]


def test_what_is_refused(stream: HostStream) -> None:
    loader = DeviceLoader(stream)
    dense = dense_bf16(np.zeros((32, 64), np.uint16))
    with pytest.raises(ConfigError, match='stored alike; found NVFP4 and bf16'):
        loader.linear(nvfp4(1, (32, 64)), dense)
    with pytest.raises(ConfigError, match='experts in bf16'):
        loader.experts(dense[None], dense[None], dense[None])
    with pytest.raises(ConfigError, match='float32 values that bf16 does not hold'):
        loader.linear(DenseWeight(np.full((16, 64), 1 + 2.0 ** -12, np.float32), 'f32'))
    bad = nvfp4(1, (32, 64))
    bad.group_scales[3, 1] = 0x80        # negative
    loader.linear(bad)
    with pytest.raises(ConfigError, match='negative or not a number'):
        loader.finish()


def test_streamed_weights_are_the_checkpoints() -> None:
    checkpoint = open_checkpoint(DEMO_FOLDER)
    weights = checkpoint.text_weights()
    shares: list[float] = []
    streamed = StreamedWeights(checkpoint, weights, shares.append)
    for name in weights:
        ours, theirs = streamed[name], weights[name]
        if isinstance(ours, Nvfp4Stack):
            assert ours.shape == theirs.shape
            for expert in (0, len(ours.matrices) - 1):
                assert np.array_equal(ours[expert].packed, theirs[expert].packed)
                assert ours[expert].global_scale == theirs[expert].global_scale
        elif isinstance(ours, DenseWeight):
            assert np.array_equal(ours.data, theirs.data)
        else:
            assert np.array_equal(ours.packed, theirs.packed)
    streamed.close()                     # what was dropped is read anew above and here
    assert np.array_equal(streamed['norm'].data, weights['norm'].data)
    assert streamed.num_bytes == sum(weights[name].nbytes for name in weights)
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_a_table_is_quantised_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemma_thor_ros.weights import streaming
    from gemma_thor_ros.weights.quantize import Convention, quantize_matrix
    rng = np.random.default_rng(0)
    table = dense_bf16((rng.standard_normal((100, 64), np.float32).view(np.uint32)
                        >> 16).astype(np.uint16))
    monkeypatch.setattr(streaming, '_BLOCK_ROWS', 30)
    ours, whole = quantised_table(table, 2), quantize_matrix(table, Convention.MODELOPT).weight
    assert np.array_equal(ours.packed, whole.packed)
    assert np.array_equal(ours.group_scales, whole.group_scales)
    assert ours.global_scale == whole.global_scale


class TestChoice:
    """Where a model runs."""

    checkpoint = open_checkpoint(DEMO_FOLDER)
    weights = checkpoint.text_weights()
    config = ModelConfig.from_dict(checkpoint.config)

    def choose(self, asked: str, config: ModelConfig | None = None, page_size: int = 16) -> str:
        return load_device.choose_device(asked, config or self.config, self.weights, page_size)

    def test_without_a_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device, 'find', lambda: 'there is no CUDA device')
        assert self.choose('auto') == self.choose('cpu') == 'cpu'
        with pytest.raises(ConfigError, match=r'is cuda, but there is no CUDA device'):
            self.choose('cuda')
        small = dataclasses.replace(self.config, hidden_size_per_layer_input=256)
        with pytest.raises(ConfigError, match=r'is cuda, but models with .* \(E2B, E4B\) run on'):
            self.choose('cuda', small)
        assert self.choose('auto', small) == 'cpu'

    def test_with_a_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device, 'find', lambda: '')
        assert self.choose('auto') == self.choose('cuda') == 'cuda'
        assert self.choose('cpu') == 'cpu'

    @pytest.mark.parametrize(('change', 'words'), [
        ({'head_dim': 128}, 'head_dim 128'), ({'hidden_size': 200}, 'hidden_size is 200'),
        ({'layer_types': ('sliding_attention',) * 6}, 'no full_attention layers'),
        ({'num_experts': 12}, 'num_experts 12')])
    def test_what_the_kernels_cannot(self, change: dict[str, Any], words: str,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device, 'find', lambda: '')
        config = dataclasses.replace(self.config, **change)
        assert self.choose('auto', config) == 'cpu'
        with pytest.raises(ConfigError, match=words):
            self.choose('cuda', config)
        with pytest.raises(ConfigError, match=r'engine\.page_size is 8'):
            self.choose('cuda', page_size=8)

    def test_bf16_experts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device, 'find', lambda: '')
        monkeypatch.setattr(self.weights, 'form', lambda name: Form.FUSED)
        with pytest.raises(ConfigError, match='gate_proj is not quantised'):
            self.choose('cuda')


def test_affine_scales_that_bf16_does_not_hold(tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """By their type, before anything is read: auto takes the CPU, cuda says which."""
    monkeypatch.setattr(device, 'find', lambda: '')
    write_synthetic(tmp_path, 'tiny-dense', 'mlx-4bit-g64', 1)
    right = open_checkpoint(tmp_path).text_weights()
    config = dataclasses.replace(       # this preset's own width is not for the kernels
        ModelConfig.from_dict(open_checkpoint(tmp_path).config), hidden_size=96)
    assert load_device.choose_device('cuda', config, right, 16) == 'cuda'
    path = tmp_path / 'model.safetensors'
    content, name = path.read_bytes(), b'layers.3.self_attn.o_proj.biases":{"dtype":"'
    at = content.index(name) + len(name)
    path.write_bytes(content[:at] + b'F16" ' + content[at + 5:])     # as many bytes as BF16
    weights = open_checkpoint(tmp_path).text_weights()
    assert load_device.choose_device('auto', config, weights, 16) == 'cpu'
    with pytest.raises(ConfigError, match=r'layers\.3\.self_attn\.o_proj\.biases is float16'):
        load_device.choose_device('cuda', config, weights, 16)


class TestDrafters:
    """Which drafters of the demo model run on the device, and what they keep there."""

    config = ModelConfig.from_dict(open_checkpoint(DEMO_FOLDER).config)

    def find(self, choice: Any, **options: Any) -> FoundDrafter | None:
        return find_drafter(choice, '', DEMO_FOLDER, self.config, device='cuda', **options)

    def test_both_fit(self) -> None:
        # two layers of either kind, K and V, two heads; one key of two layers
        for kind, pages in ('dflash', (2 * 2 * 2 * 2 * 128 * 16,) * 2), ('mtp', (2 * 256 * 16, 0)):
            found = self.find(kind)
            assert found is not None and found.config.name == kind
            assert found.bytes_per_page(16, 'cuda') == pages
        assert self.find('auto') is not None

    @pytest.mark.parametrize(('kind', 'change', 'words'), [
        ('dflash', {'head_dim': 192}, 'head_dim 192'),
        ('dflash', {'num_attention_heads': 18}, '9 query heads'),
        ('dflash', {'intermediate_size': 132}, 'multiples of 8'),
        ('mtp', {'hidden_size': 100}, 'multiples of 8')])
    def test_what_the_kernels_cannot_run(self, kind: str, change: dict[str, int], words: str,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.find(kind)
        assert found is not None
        other: Any = dataclasses.replace(found.config, **change)
        monkeypatch.setattr(load_drafter.DFlashConfig, 'from_dict', lambda *_: other)
        monkeypatch.setattr(load_drafter.MtpConfig, 'from_dict', lambda *_: other)
        with pytest.raises(ConfigError, match=f'does not run on CUDA.*{words}'):
            self.find(kind)
        assert self.find('auto') is None


@pytest.mark.skipif(not device.find(), reason='there is a CUDA device here')
def test_a_runtime_tells_why_there_is_no_device() -> None:
    runtime = Runtime(EngineConfig.from_mapping({'engine.device': 'cuda'}))
    with pytest.raises(ConfigError, match=r'engine\.device is cuda, but'):
        runtime.start()


@pytest.mark.skipif(bool(device.find()), reason='no CUDA device')
def test_the_demo_model_answers_on_the_device(tmp_path: Path) -> None:
    runtime = Runtime(EngineConfig.from_mapping({'engine.device': 'cuda'}))
    runtime.start()
    assert runtime.wait_ready(300.0), runtime.error
    assert runtime.chat is not None and runtime.engine is not None
    runtime.stop()


@pytest.mark.parametrize(('status', 'kind'), [(700, DeviceError), (719, DeviceError),
                                              (2, RuntimeError), (701, RuntimeError)])
def test_errors_that_stay(status: int, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    class CudaError(RuntimeError):
        def __init__(self) -> None:
            self.status = status

    runtime = SimpleNamespace(CUDARuntimeError=CudaError)
    monkeypatch.setattr(device, 'cupy', lambda: SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime)))
    with pytest.raises(kind, match=str(status)), device.errors():
        raise CudaError
