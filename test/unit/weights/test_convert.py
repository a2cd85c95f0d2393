# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Quantising whole checkpoints: names, values, what stays, and what is refused."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import to_float
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.convert import QuantizationReport, quantize_checkpoint
from gemma_thor_ros.weights.modules import Form
from gemma_thor_ros.weights.quantization_config import ATTENTION, DEFAULT_IGNORE
from gemma_thor_ros.weights.quantize import Convention
from gemma_thor_ros.weights.synth import write_synthetic

from .reference_formats import CONFIG, decode, experts, linears, write_folder
from .test_checkpoint import PREFIX, bf16_tensors, packed_tensors, values

BOTH = pytest.mark.parametrize('convention', list(Convention))
NAMES = {Convention.COMPRESSED_TENSORS: ('weight_packed', 'weight_scale', 'weight_global_scale'),
         Convention.MODELOPT: ('weight', 'weight_scale', 'weight_scale_2')}


def source_folder(tmp_path: Path) -> tuple[Path, Any]:
    """A bf16 checkpoint with a vision tensor and the small files that real ones have."""
    tensors = bf16_tensors()
    tensors['model.vision_tower.std_bias'] = ('BF16', np.arange(7, dtype=np.uint16))
    folder = write_folder(tmp_path / 'source', CONFIG, tensors, num_shards=2)
    (folder / 'tokenizer.json').write_text('{"a": 1}')
    (folder / 'generation_config.json').write_text('{"eos_token_id": [1, 106, 50]}')
    (folder / 'pytorch_model.bin').write_bytes(b'weights in another format')
    return folder, tensors


def quantise(source: Path, target: Path, convention: Convention,
             ignore: Sequence[str] = DEFAULT_IGNORE, **options: Any) -> QuantizationReport:
    checkpoint = open_checkpoint(source)
    return quantize_checkpoint(checkpoint, target, convention, ignore=ignore, **options)


def read_by_library(folder: Path) -> dict[str, Any]:
    """All tensors of a folder through the safetensors library: name -> (dtype, array of bits)."""
    types = {'BF16': np.uint16, 'F32': np.float32, 'U8': np.uint8, 'F8_E4M3': np.uint8}
    content = {}
    for path in folder.glob('*.safetensors'):
        for name, entry in safetensors.deserialize(path.read_bytes()):
            array = np.frombuffer(bytes(entry['data']), types[entry['dtype']])
            content[name] = (entry['dtype'], array.reshape(entry['shape']))
    return content


@BOTH
def test_the_written_tensors_decode_to_the_source(tmp_path: Path, convention: Convention) -> None:
    source, tensors = source_folder(tmp_path)
    report = quantise(source, tmp_path / 'q', convention)
    written = read_by_library(tmp_path / 'q')
    modules = {**linears(), **experts()}
    for module, shape in modules.items():
        packed, scales, scale = (written.pop(f'{PREFIX}{module}.{suffix}')
                                 for suffix in NAMES[convention])
        assert (packed[0], scales[0], scale[0]) == ('U8', 'F8_E4M3', 'F32')
        assert scale[1].shape == ((1,) if convention is Convention.COMPRESSED_TENSORS else ())
        stored = float(scale[1].reshape(-1)[0])
        multiplier = 1 / stored if convention is Convention.COMPRESSED_TENSORS else stored
        decoded = decode(packed[1], scales[1], multiplier)
        original = original_values(tensors, module)
        assert decoded.shape == shape
        assert np.linalg.norm(decoded - original) < 0.13 * np.linalg.norm(original), module
    # Everything else is there byte for byte, nothing more.
    rest = {name: array for name, (_, array) in tensors.items()
            if name.removeprefix(PREFIX).removesuffix('.weight') not in modules
            and '.experts.' not in name}
    assert set(written) == set(rest) and report.num_kept == len(rest)
    for name, array in rest.items():
        assert written[name] == (tensors[name][0], written[name][1])
        assert np.array_equal(written[name][1], array)


def original_values(tensors: Any, module: str) -> Any:
    start, found, rest = module.partition('.experts.')
    if not found:
        return values(tensors, f'{PREFIX}{module}.weight')
    expert, projection = rest.split('.')
    if projection == 'down_proj':
        return values(tensors, f'{PREFIX}{start}.experts.down_proj')[int(expert)]
    both = values(tensors, f'{PREFIX}{start}.experts.gate_up_proj')[int(expert)]
    return both[:16] if projection == 'gate_proj' else both[16:]


@BOTH
def test_our_reader_and_the_report_agree(tmp_path: Path, convention: Convention) -> None:
    source, _ = source_folder(tmp_path)
    report = quantise(source, tmp_path / 'q', convention)
    before = open_checkpoint(source).text_weights()
    after = open_checkpoint(tmp_path / 'q').text_weights()
    assert set(before) == set(after)
    for kind, statistics in report.errors.items():
        lost = total = 0.0
        for name in before:
            if name.endswith(kind):
                old, new = (to_float(weights[name], np.float64) for weights in (before, after))
                lost += float(((old - new) ** 2).sum())
                total += float((old ** 2).sum())
        assert statistics.relative_rms == pytest.approx((lost / total) ** 0.5, rel=1e-3), kind
        assert 0.05 < statistics.relative_rms <= statistics.worst_relative_rms < 0.15
        assert statistics.worst_module.startswith(PREFIX)
    assert report.errors['experts.up_proj'].num_modules == 6
    assert report.written_bytes == sum(
        info.nbytes for info in open_checkpoint(tmp_path / 'q').tensors.values())


@BOTH
def test_projections_of_one_input_share_a_global_scale(tmp_path: Path,
                                                       convention: Convention) -> None:
    source, _ = source_folder(tmp_path)
    quantise(source, tmp_path / 'q', convention)
    weights: Any = open_checkpoint(tmp_path / 'q').text_weights()
    for names in (('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj'),
                  ('mlp.gate_proj', 'mlp.up_proj'), ('experts.gate_proj', 'experts.up_proj')):
        first, *others = (weights[f'layers.0.{name}'].global_scale for name in names)
        assert all(np.array_equal(first, other) for other in others)
    scales = weights['layers.0.experts.up_proj'].global_scale
    assert len(set(scales.tolist())) == 3        # experts keep their own


@BOTH
def test_config_and_small_files(tmp_path: Path, convention: Convention) -> None:
    source, _ = source_folder(tmp_path)
    report = quantise(source, tmp_path / 'q', convention)
    config = json.loads((tmp_path / 'q' / 'config.json').read_text())
    declared = config.pop('quantization_config')
    assert config == CONFIG
    assert report.files == ['generation_config.json', 'tokenizer.json']
    names = {path.name for path in (tmp_path / 'q').iterdir()}
    common = {'config.json', 'generation_config.json', 'tokenizer.json', 'model.safetensors'}
    group = declared['config_groups']['group_0']
    assert group['weights']['num_bits'] == 4 and group['weights']['group_size'] == 16
    assert not group.get('input_activations')            # weight-only: nothing is calibrated
    if convention is Convention.MODELOPT:
        assert names == common | {'hf_quant_config.json'}
        separate = json.loads((tmp_path / 'q' / 'hf_quant_config.json').read_text())
        assert declared['quant_method'] == 'modelopt'
        assert declared['quant_algo'] == separate['quantization']['quant_algo'] == 'W4A16_NVFP4'
        assert separate['quantization']['exclude_modules'] == list(DEFAULT_IGNORE)
    else:
        assert names == common
        assert declared['quant_method'] == 'compressed-tensors'
        assert declared['format'] == 'nvfp4-pack-quantized'
        assert declared['ignore'] == ['lm_head', 're:.*embed.*', 're:.*router.*',
                                      're:.*vision_tower.*']


@BOTH
def test_attention_may_stay_bf16(tmp_path: Path, convention: Convention) -> None:
    source, tensors = source_folder(tmp_path)
    quantise(source, tmp_path / 'q', convention, (*DEFAULT_IGNORE, ATTENTION))
    weights = open_checkpoint(tmp_path / 'q').text_weights()
    for name in weights:
        if '.self_attn.' in name:
            assert weights.form(name) is Form.DENSE
    assert np.array_equal(to_float(weights['layers.0.self_attn.q_proj']),
                          values(tensors, f'{PREFIX}layers.0.self_attn.q_proj.weight'))
    assert weights.form('layers.0.mlp.up_proj') is not Form.DENSE


def test_experts_may_stay_fused(tmp_path: Path) -> None:
    source, _ = source_folder(tmp_path)
    quantise(source, tmp_path / 'q', Convention.MODELOPT, (*DEFAULT_IGNORE, '*experts*'))
    assert open_checkpoint(tmp_path / 'q').text_weights().form(
        'layers.0.experts.up_proj') is Form.FUSED


@pytest.mark.parametrize(('pattern', 'message'), [
    ('*experts.1.*', r'some experts of .* but not all'),
    ('*.experts.*.gate_proj',
     r"one of 'layers.0.experts.gate_proj' and 'layers.0.experts.up_proj'"),
    ('*_proj', r'every linear layer is ignored'),
])
def test_ignore_lists_that_make_no_sound_checkpoint(tmp_path: Path, pattern: str,
                                                    message: str) -> None:
    source, _ = source_folder(tmp_path)
    with pytest.raises(ConfigError, match=message):
        quantise(source, tmp_path / 'q', Convention.MODELOPT, (*DEFAULT_IGNORE, pattern))
    assert not (tmp_path / 'q').exists()


def test_a_quantised_source_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / 'x', CONFIG, packed_tensors('modelopt'))
    with pytest.raises(ConfigError, match=r"q_proj' is already quantised, as nvfp4 \(modelopt\)"):
        quantise(tmp_path / 'x', tmp_path / 'q', Convention.MODELOPT)


def test_a_value_that_is_not_finite_is_named_and_leaves_no_files(tmp_path: Path) -> None:
    tensors = bf16_tensors()
    tensors[f'{PREFIX}layers.1.experts.down_proj'][1][2, 5, 3] = 0x7F80
    source = write_folder(tmp_path / 'x', CONFIG, tensors)
    with pytest.raises(ConfigError, match=r'layers.1.experts.2.down_proj.* NaN or infinite'):
        quantise(source, tmp_path / 'q', Convention.MODELOPT)
    assert not list((tmp_path / 'q').iterdir())


def test_destinations(tmp_path: Path) -> None:
    source, _ = source_folder(tmp_path)
    quantise(source, tmp_path / 'q', Convention.MODELOPT, max_shard_bytes=8_000)
    assert len(list((tmp_path / 'q').glob('*.safetensors'))) > 3
    with pytest.raises(ConfigError, match=r'is not empty; --force'):
        quantise(source, tmp_path / 'q', Convention.COMPRESSED_TENSORS)
    quantise(source, tmp_path / 'q', Convention.COMPRESSED_TENSORS, force=True)
    weights = open_checkpoint(tmp_path / 'q').text_weights()
    assert weights.form('layers.0.mlp.up_proj') is Form.COMPRESSED_TENSORS
    assert [path.name for path in (tmp_path / 'q').glob('*.safetensors*')] == ['model.safetensors']
    with pytest.raises(ConfigError, match=r'the same folder'):
        quantise(source, source, Convention.MODELOPT, force=True)
    (tmp_path / 'file').write_text('')
    with pytest.raises(ConfigError, match=r'is no folder'):
        quantise(source, tmp_path / 'file', Convention.MODELOPT, force=True)


def test_threads_and_progress_change_nothing(tmp_path: Path) -> None:
    source, _ = source_folder(tmp_path)
    seen: list[tuple[int, int]] = []
    for threads in (1, 3):
        quantise(source, tmp_path / f'{threads}', Convention.MODELOPT, num_threads=threads,
                 progress=lambda done, total: seen.append((done, total)))
    files = [(tmp_path / f'{threads}' / 'model.safetensors').read_bytes() for threads in (1, 3)]
    assert files[0] == files[1]
    done = [done for done, _ in seen[:len(seen) // 2]]
    assert done == sorted(done) and seen[-1][0] == seen[-1][1] == max(done)


def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    config['text_config'].update(hidden_size=256, moe_intermediate_size=128, num_experts=32)
    rng = np.random.default_rng(0)
    big = {}
    for name, (dtype, array) in bf16_tensors().items():
        shape = tuple({32: 256, 3: 32, 16: 128}.get(axis, axis) if '.experts.' in name else
                      {32: 256, 3: 32}.get(axis, axis) for axis in array.shape)
        if name.endswith(('q_norm.weight', 'k_norm.weight')):
            shape = array.shape
        if name.endswith(('k_proj.weight', 'v_proj.weight')):
            shape = (32, 256)
        big[name] = (dtype, rng.integers(0, 0x3F00, shape, np.uint16))
    source = write_folder(tmp_path / 'x', config, big)
    assert (source / 'model.safetensors').stat().st_size > 12_000_000
    checkpoint = open_checkpoint(source)
    tracemalloc.start()
    try:
        quantize_checkpoint(checkpoint, tmp_path / 'q', Convention.COMPRESSED_TENSORS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000, peak


@BOTH
def test_quantising_what_was_quantised_changes_no_code(tmp_path: Path,
                                                       convention: Convention) -> None:
    write_synthetic(tmp_path / 'a', 'tiny-moe', 'bf16', 3)
    quantise(tmp_path / 'a', tmp_path / 'q', convention)
    weights: Any = open_checkpoint(tmp_path / 'q').text_weights()
    tensors: dict[str, Any] = {}
    for name, (dtype, array) in read_by_library(tmp_path / 'a').items():
        tensors[name] = (dtype, array)
    # Decoded values in float32, unfused: the source of a second pass.
    for name in list(tensors):
        if '.experts.' in name:
            del tensors[name]
    for name in weights:
        if name.endswith('_proj') and 'experts' not in name:
            tensors[f'{PREFIX}{name}.weight'] = ('F32', to_float(weights[name]))
        elif '.experts.' in name:
            for expert in range(4):
                module = name.replace('experts.', f'experts.{expert}.')
                tensors[f'{PREFIX}{module}.weight'] = ('F32', weights[name][expert].dequantize())
    config = json.loads((tmp_path / 'a' / 'config.json').read_text())
    quantise(write_folder(tmp_path / 'b', config, tensors), tmp_path / 'r', convention)
    again: Any = open_checkpoint(tmp_path / 'r').text_weights()
    for name in weights:
        if weights.form(name) is not Form.DENSE:
            assert np.array_equal(weights[name].packed, again[name].packed), name
            assert np.array_equal(weights[name].group_scales, again[name].group_scales), name
