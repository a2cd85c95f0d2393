# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Files of our writer, read by the safetensors library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from gemma_thor_ros.weights.safetensors_file import open_tensors
from gemma_thor_ros.weights.writer import CheckpointWriter, TensorSpec, plan_shards

ARRAYS: dict[str, tuple[str, Any]] = {
    'odd': ('U8', np.arange(5, dtype=np.uint8)),
    'wide': ('F32', np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)),
    'bits': ('BF16', np.arange(8, dtype=np.uint16).reshape(2, 4)),
    'scales': ('F8_E4M3', np.arange(3, dtype=np.uint8)),
    'scalar': ('F32', np.asarray(2.5, np.float32)),
}
SPECS = [TensorSpec(name, dtype, array.shape) for name, (dtype, array) in ARRAYS.items()]


def write(folder: Path, limit: int = 10 ** 9, order: int = 1) -> None:
    with CheckpointWriter(folder, SPECS, limit) as writer:
        for name in list(ARRAYS)[::order]:
            writer.write(name, ARRAYS[name][1])


def test_the_library_reads_it(tmp_path: Path) -> None:
    write(tmp_path)
    content = dict(safetensors.deserialize((tmp_path / 'model.safetensors').read_bytes()))
    assert set(content) == set(ARRAYS)
    for name, (dtype, array) in ARRAYS.items():
        assert content[name]['dtype'] == dtype
        assert content[name]['shape'] == list(array.shape)
        assert bytes(content[name]['data']) == array.tobytes()


def test_every_tensor_is_aligned_and_any_order_of_writing_gives_the_same(tmp_path: Path) -> None:
    for name, order in (('a', 1), ('b', -1)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, order=order)
    file = 'model.safetensors'
    assert (tmp_path / 'a' / file).read_bytes() == (tmp_path / 'b' / file).read_bytes()
    tensors = open_tensors(tmp_path / 'a')
    for name, (_, array) in ARRAYS.items():
        assert tensors[name].start % array.dtype.itemsize == 0
        assert np.array_equal(tensors.view(name), array)


def test_shards_and_their_index(tmp_path: Path) -> None:
    write(tmp_path, limit=24)
    index = json.loads((tmp_path / 'model.safetensors.index.json').read_text())
    assert index['metadata']['total_size'] == sum(array.nbytes for _, array in ARRAYS.values())
    assert set(index['weight_map']) == set(ARRAYS)
    files = sorted(path.name for path in tmp_path.glob('*.safetensors'))
    assert files[0] == f'model-00001-of-{len(files):05d}.safetensors' and len(files) == 3
    assert set(index['weight_map'].values()) == set(files)
    tensors = open_tensors(tmp_path)
    for name, (_, array) in ARRAYS.items():
        assert np.array_equal(tensors.view(name), array)


def test_shards_are_filled_in_order_and_large_tensors_stand_alone() -> None:
    specs = [TensorSpec(str(size), 'U8', (size,)) for size in (4, 5, 30, 1, 9, 2)]
    planned = [[spec.name for spec in shard] for shard in plan_shards(specs, 10)]
    assert planned == [['4', '5'], ['30'], ['1', '9'], ['2']]


def test_chunks_make_the_same_file(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, [TensorSpec('x', 'F32', (4, 3))]) as writer:
        values = np.arange(12, dtype=np.float32)
        writer.write_chunks('x', [values[:5], values[5:6], values[6:]])
    assert np.array_equal(open_tensors(tmp_path).view('x'), values.reshape(4, 3))


def test_an_exception_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / 'model.safetensors').write_bytes(b'old')
    with pytest.raises(KeyboardInterrupt), CheckpointWriter(tmp_path, SPECS) as writer:
        writer.write('odd', ARRAYS['odd'][1])
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ['model.safetensors']
    assert (tmp_path / 'model.safetensors').read_bytes() == b'old'


def test_a_new_checkpoint_replaces_the_files_of_an_old_one(tmp_path: Path) -> None:
    write(tmp_path, limit=24)
    write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ['model.safetensors']


def test_mistakes_of_a_caller_are_caught(tmp_path: Path) -> None:
    with (pytest.raises(AssertionError, match='1 tensors not written'),
          CheckpointWriter(tmp_path, [TensorSpec('x', 'U8', (2,))])):
        pass
    with (pytest.raises(AssertionError), CheckpointWriter(tmp_path, SPECS) as writer):
        writer.write('odd', np.zeros(5, np.int8))
    with (pytest.raises(AssertionError), CheckpointWriter(tmp_path, SPECS) as writer):
        writer.write('odd', np.zeros(6, np.uint8))
    with pytest.raises(AssertionError, match='planned twice'):
        CheckpointWriter(tmp_path, [SPECS[0], SPECS[0]])
