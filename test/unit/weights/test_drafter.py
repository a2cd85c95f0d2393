# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Drafters' checkpoints: names as published, refusals by name, synth, inspect, and loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.cli.main import main
from gemma_thor_ros.load_drafter import find_drafter
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.drafter import open_drafter
from gemma_thor_ros.weights.drafter_presets import DRAFTER_PRESETS
from gemma_thor_ros.weights.presets import preset_config
from gemma_thor_ros.weights.synth import make_plan, write_synthetic

from .test_missing_parts import without_tensor

DFLASH_LAYER = ('input_layernorm', 'mlp.down_proj', 'mlp.gate_proj', 'mlp.up_proj',
                'post_attention_layernorm', 'self_attn.k_norm', 'self_attn.k_proj',
                'self_attn.o_proj', 'self_attn.q_norm', 'self_attn.q_proj', 'self_attn.v_proj')
MTP_LAYER = ('input_layernorm', 'mlp.down_proj', 'mlp.gate_proj', 'mlp.up_proj',
             'post_attention_layernorm', 'post_feedforward_layernorm', 'pre_feedforward_layernorm',
             'self_attn.o_proj', 'self_attn.q_norm', 'self_attn.q_proj')


@pytest.fixture(scope='module')
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with both drafters inside."""
    folder = tmp_path_factory.mktemp('model')
    write_synthetic(folder, 'tiny-moe', 'bf16', 1)
    for kind in ('dflash', 'mtp'):
        write_synthetic(folder / kind, f'tiny-moe-{kind}', 'bf16', 1)
    return folder


def target() -> ModelConfig:
    return ModelConfig.from_dict(preset_config('tiny-moe'))


def copy_of(folder: Path, destination: Path, **change: Any) -> Path:
    destination.mkdir()
    for path in folder.iterdir():
        (destination / path.name).write_bytes(path.read_bytes())
    config = json.loads((destination / 'config.json').read_text())
    (destination / 'config.json').write_text(json.dumps({**config, **change}))
    return destination


def test_names_and_shapes_are_those_published() -> None:
    dflash = make_plan('26b-a4b-dflash', 'bf16').plain
    assert set(dflash) == {'fc.weight', 'hidden_norm.weight', 'norm.weight', *(
        f'layers.{layer}.{name}.weight' for layer in range(5) for name in DFLASH_LAYER)}
    assert dflash['fc.weight'] == (2816, 16896)
    assert make_plan('31b-dflash', 'bf16').plain['fc.weight'] == (5376, 32256)
    assert dflash['layers.4.self_attn.q_norm.weight'] == (128,)
    mtp = make_plan('26b-a4b-mtp', 'bf16').plain
    assert set(mtp) == {
        'model.embed_tokens.weight', 'model.norm.weight', 'pre_projection.weight',
        'post_projection.weight',
        *(f'model.layers.{layer}.{name}.weight' for layer in range(4) for name in MTP_LAYER),
        *(f'model.layers.{layer}.layer_scalar' for layer in range(4))}
    assert mtp['model.embed_tokens.weight'] == (262144, 1024)
    assert mtp['pre_projection.weight'] == (1024, 5632)
    assert mtp['post_projection.weight'] == (2816, 1024)
    assert mtp['model.layers.0.self_attn.q_proj.weight'] == (4096, 1024)
    assert mtp['model.layers.3.self_attn.q_proj.weight'] == (8192, 1024)


@pytest.mark.parametrize('preset', DRAFTER_PRESETS)
def test_presets_fit_their_models(preset: str, tmp_path: Path) -> None:
    size, _, kind = preset.rpartition('-')
    assert make_plan(preset, 'bf16').config['dtype'] == 'bfloat16'
    if size.startswith('tiny'):
        write_synthetic(tmp_path / kind, preset, 'bf16', 1)
        found = find_drafter('auto', '', tmp_path, ModelConfig.from_dict(preset_config(size)))
        assert found is not None and found.config.name == kind
    with pytest.raises(ConfigError, match='drafters are read in bf16'):
        make_plan(preset, 'modelopt')


def test_values_are_read_as_they_lie(model_folder: Path) -> None:
    weights = open_drafter(model_folder / 'mtp')
    assert weights.kind == 'mtp' and weights.num_bytes == sum(w.nbytes for w in weights.values())
    raw = open_checkpoint(model_folder / 'mtp')
    assert np.array_equal(weights['layers.1.mlp.up_proj'].data,
                          raw.view('model.layers.1.mlp.up_proj.weight'))
    assert weights['layers.0.layer_scalar'].shape == (1,)
    with pytest.raises(KeyError):
        weights['layers.0.self_attn.k_proj']


@pytest.mark.parametrize(('kind', 'name'), [
    ('dflash', 'fc.weight'), ('dflash', 'layers.1.self_attn.v_proj.weight'),
    ('mtp', 'post_projection.weight'), ('mtp', 'model.layers.1.layer_scalar')])
def test_missing_tensor_is_named(model_folder: Path, tmp_path: Path, kind: str, name: str) -> None:
    folder = copy_of(model_folder / kind, tmp_path / 'cut')
    assert len(open_drafter(folder)) > 20
    without_tensor(folder, name)
    with pytest.raises(ConfigError, match=f"tensor '{name}' is missing"):
        open_drafter(folder)


def test_wrong_sizes_and_surplus_tensors_are_named(model_folder: Path, tmp_path: Path) -> None:
    folder = copy_of(model_folder / 'dflash', tmp_path / 'a', intermediate_size=96)
    with pytest.raises(ConfigError, match=r"'layers.0.mlp.gate_proj.weight' has shape \[80, 64\], "
                                          r'expected \[96, 64\]'):
        open_drafter(folder)
    folder = copy_of(model_folder / 'dflash', tmp_path / 'b', num_hidden_layers=1)
    with pytest.raises(ConfigError, match=r'11 tensors that config\.json has no place for'):
        open_drafter(folder)
    with pytest.raises(ConfigError, match='is no drafter'):
        open_drafter(model_folder)


def test_find_drafter(model_folder: Path, tmp_path: Path) -> None:
    def kind(*args: Any) -> str | None:
        found = find_drafter(*args, target())
        return None if found is None else found.config.name

    assert kind('auto', '', model_folder) == 'dflash'
    assert kind('mtp', '', model_folder) == 'mtp'
    assert kind('none', str(model_folder / 'mtp'), model_folder) is None
    assert kind('auto', '', tmp_path) is None
    assert kind('auto', str(model_folder / 'mtp'), tmp_path) == 'mtp'
    for args, words in [
            (('dflash', '', tmp_path), 'no such folder; a dflash drafter is asked for'),
            (('auto', str(tmp_path / 'x'), tmp_path), 'no such folder'),
            (('dflash', str(model_folder / 'mtp'), tmp_path), 'holds a mtp drafter')]:
        with pytest.raises(ConfigError, match=words):
            find_drafter(*args, target())  # type: ignore[arg-type]
    other = copy_of(model_folder / 'dflash', tmp_path / 'other', num_target_layers=30)
    with pytest.raises(ConfigError, match=r'config.json: the drafter has num_target_layers 30'):
        find_drafter('auto', str(other), tmp_path, target())


@pytest.mark.parametrize('kind', ['dflash', 'mtp'])
def test_made_from_files(model_folder: Path, kind: Any) -> None:
    found = find_drafter(kind, '', model_folder, target())
    assert found is not None
    model = Gemma4(target(), open_checkpoint(model_folder).text_weights())
    drafter = found.make(model)
    assert drafter.config is found.config
    assert drafter.config.taps == ((1, 3, 5) if kind == 'dflash' else (5,))


def test_synth_and_inspect_verbs(model_folder: Path, tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / 'd')
    assert main(['synth', folder, '--preset', 'tiny-dense-dflash', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['format'] == 'bf16'
    assert main(['inspect', folder, '--json']) == 0
    report = json.loads(capsys.readouterr().out)
    assert report['drafter'] == 'dflash' and report['can_be_served'] is False
    assert main(['inspect', folder, '--json', '--model', str(model_folder)]) == 1
    assert 'hidden_size 80, the model 64' in json.loads(capsys.readouterr().out)['refused'][0]
    assert main(['inspect', str(model_folder / 'mtp'), '--model', str(model_folder)]) == 0
    out = ' '.join(capsys.readouterr().out.split())
    assert 'mtp drafter, 26 tensors' in out and 'up to 8 drafts a round, reads layers 5' in out
