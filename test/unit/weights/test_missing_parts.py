# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Each tensor of a quantised module is named when it alone is missing, whichever it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.safetensors_file import open_tensors
from gemma_thor_ros.weights.synth import write_synthetic

DENSE = 'layers.0.mlp.up_proj'
EXPERT = 'layers.1.experts.2.down_proj'
SUFFIXES = {'compressed-tensors': ('weight_packed', 'weight_scale', 'weight_global_scale'),
            'modelopt': ('weight', 'weight_scale', 'weight_scale_2')}


@pytest.mark.parametrize('module', [DENSE, EXPERT])
@pytest.mark.parametrize(('checkpoint_format', 'suffix'), [
    (name, suffix) for name, suffixes in SUFFIXES.items() for suffix in suffixes])
def test_missing_part_is_named(tmp_path: Path, checkpoint_format: str, suffix: str,
                               module: str) -> None:
    write_synthetic(tmp_path / 'whole', 'tiny-moe', checkpoint_format, 1)
    name = next(name for name in open_tensors(tmp_path / 'whole')
                if name.endswith(f'{module}.{suffix}'))
    without_tensor(tmp_path / 'whole', name)
    with pytest.raises(ConfigError) as error:
        open_checkpoint(tmp_path / 'whole').text_weights()
    assert name in str(error.value)
    assert 'missing' in str(error.value)


def without_tensor(folder: Path, name: str) -> None:
    """Rewrite the file that holds a tensor without it, byte for byte otherwise."""
    path, = folder.glob('*.safetensors')
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], 'little')
    header = json.loads(raw[8:8 + size])
    begin, end = header.pop(name)['data_offsets']
    data = raw[8 + size:]
    for entry in header.values():
        if 'data_offsets' in entry and entry['data_offsets'][0] >= end:
            entry['data_offsets'] = [offset - (end - begin) for offset in entry['data_offsets']]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, 'little') + text + data[:begin] + data[end:])
