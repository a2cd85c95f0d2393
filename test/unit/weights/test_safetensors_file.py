# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The mapped reader against files of the safetensors library, and against files that lie."""

from __future__ import annotations

import gc
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.safetensors_file import (
    SafetensorsFile,
    no_collection,
    open_tensors,
    read_json,
)

from .reference_formats import Tensors, write_file, write_folder

TENSORS: Tensors = {
    'a.weight': ('BF16', np.arange(12, dtype=np.uint16).reshape(3, 4)),
    'b': ('F32', np.array([1.5, -2.25], np.float32)),
    'c.weight_packed': ('U8', np.arange(7, dtype=np.uint8)),
    'd.weight_scale': ('F8_E4M3', np.arange(250, 255, dtype=np.uint8)),
    'scalar': ('F32', np.asarray(0.125, np.float32)),
}


def write_raw(path: Path, header: Any, data: bytes) -> Path:
    """A file of a given header (JSON value or bytes) and data, sound or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[Any], start: Any, stop: Any) -> dict[str, Any]:
    return {'dtype': dtype, 'shape': shape, 'data_offsets': [start, stop]}


def test_reads_what_the_library_wrote(tmp_path: Path) -> None:
    write_file(tmp_path / 'x.safetensors', TENSORS)
    file = SafetensorsFile(tmp_path / 'x.safetensors')
    assert set(file) == set(TENSORS) and len(file) == 5
    assert file.metadata == {'format': 'pt'}
    for name, (dtype, array) in TENSORS.items():
        assert file[name].dtype == dtype and file[name].shape == array.shape
        assert file[name].nbytes == array.nbytes
        view = file.view(name)
        assert np.array_equal(view, array) and view.dtype == array.dtype
        assert not view.flags.owndata and not view.flags.writeable


def test_views_outlive_the_reader_and_may_be_unaligned(tmp_path: Path) -> None:
    path = write_raw(tmp_path / 'odd.safetensors',
                     {'x': entry('U8', [1], 0, 1), 'y': entry('F32', [2], 1, 9)},
                     b'\x07' + np.array([3, 4], np.float32).tobytes())
    view = SafetensorsFile(path).view('y')
    assert view.tolist() == [3.0, 4.0]


def test_shards_with_an_index(tmp_path: Path) -> None:
    write_folder(tmp_path, {}, TENSORS, num_shards=3)
    tensors = open_tensors(tmp_path)
    assert set(tensors) == set(TENSORS)
    for name, (_, array) in TENSORS.items():
        assert np.array_equal(tensors.view(name), array)


ENTRY = b'{"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}'
FAULTY: list[tuple[str, Any, bytes, str]] = [
    ('no JSON', b'{"a":', b'', 'corrupt header of 5 bytes'),
    ('no object', [1], b'', 'not a JSON object'),
    ('not UTF-8', b'{"\xff": 1}', b'', 'corrupt header'),
    ('deep nesting', b'[' * 100_000, b'', 'corrupt header'),
    ('twice', b'{"a": 1, "a": 2}', b'', "'a' appears twice"),
    ('entry twice', b'{"a": %b, "a": %b}' % (ENTRY, ENTRY), b'0', "'a' appears twice"),
    ('key twice', b'{"a": {"dtype": "I8", %b}' % ENTRY[1:], b'0', "'dtype' appears twice"),
    ('key twice, elsewhere missing', b'{"a": {"dtype": "I8", %b, "b": {%b}' % (
        ENTRY[1:], ENTRY.partition(b', ')[2]), b'0', 'dtype None'),
    ('metadata twice', b'{"__metadata__": {"f": "1", "f": "2"}, "a": %b}' % ENTRY, b'0',
     "'f' appears twice"),
    ('metadata', {'__metadata__': 3}, b'', '__metadata__'),
    ('no description', {'a': 3}, b'', "'a' has no description"),
    ('dtype', {'a': entry('F31', [1], 0, 4)}, b'0000', "'F31'"),
    ('dtype of wrong type', {'a': entry([], [1], 0, 4)}, b'0000', 'dtype'),  # type: ignore[arg-type]
    ('shape', {'a': entry('F32', [-1], 0, 4)}, b'0000', r'shape \[-1\]'),
    ('float shape', {'a': entry('F32', [1.0], 0, 4)}, b'0000', r'shape \[1.0\]'),
    ('bool shape', {'a': entry('F32', [True], 0, 4)}, b'0000', r'shape \[True\]'),
    ('many axes', {'a': entry('F32', [2 ** 62] * 5000, 0, 4)}, b'0000', 'shape'),
    ('huge', {'a': entry('F32', [2 ** 40, 2 ** 40], 0, 4)}, b'0000',
     'needs 4835703278458516698824704'),
    ('empty', {'a': entry('F32', [0, 2 ** 60], 0, 0)}, b'', 'is empty'),
    ('offsets', {'a': entry('F32', [1], 4, 0)}, b'0000', r'data_offsets \[4, 0\]'),
    ('negative offset', {'a': entry('F32', [1], -4, 0)}, b'0000', 'data_offsets'),
    ('size', {'a': entry('F32', [2], 0, 4)}, b'0000', 'needs 8 bytes, its data_offsets give 4'),
    ('truncated', {'a': entry('F32', [4], 0, 16)}, b'0' * 15, r'truncated: .*the file has \d+'),
    ('rest', {'a': entry('F32', [1], 0, 4)}, b'0' * 5, 'its tensors end at byte'),
    ('overlap', {'a': entry('F32', [1], 0, 4), 'b': entry('F32', [1], 2, 6)}, b'0' * 6,
     "'b' starts at byte .*overlaps"),
    ('same bytes', {'a': entry('F32', [1], 0, 4), 'b': entry('F32', [1], 0, 4)}, b'0' * 4,
     'overlaps'),
    ('hole', {'a': entry('F32', [1], 0, 4), 'b': entry('F32', [1], 8, 12)}, b'0' * 12, 'hole'),
]


@pytest.mark.parametrize(('header', 'data', 'message'), [case[1:] for case in FAULTY],
                         ids=[case[0] for case in FAULTY])
def test_headers_that_lie_are_refused_by_name(tmp_path: Path, header: Any, data: bytes,
                                              message: str) -> None:
    path = write_raw(tmp_path / 'bad.safetensors', header, data)
    with pytest.raises(ConfigError, match=message) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(('content', 'message'), [
    (b'', '0 bytes, too short'),
    (b'\0' * 7, '7 bytes, too short'),
    (struct.pack('<Q', 100) + b'{}', 'truncated: header needs 108 bytes, the file has 10'),
    (struct.pack('<Q', 2 ** 63) + b'{}', '9223372036854775808 bytes, the limit'),
])
def test_files_that_are_too_short(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / 'short.safetensors'
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        SafetensorsFile(path)


def test_every_truncation_of_a_good_file_is_refused(tmp_path: Path) -> None:
    write_file(tmp_path / 'good.safetensors', TENSORS)
    content = (tmp_path / 'good.safetensors').read_bytes()
    path = tmp_path / 'cut.safetensors'
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ConfigError, match=r'cut.safetensors'):
            SafetensorsFile(path)


@pytest.fixture(scope='module')
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, bytes]]:
    folder = tmp_path_factory.mktemp('fuzz')
    write_file(folder / 'good.safetensors', TENSORS)
    yield folder, (folder / 'good.safetensors').read_bytes()


@settings(max_examples=300, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_gives_a_config_error_or_sound_tensors(good: tuple[Path, bytes],
                                                          data: st.DataObject) -> None:
    folder, content = good
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(content) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    check_is_safe(folder / 'damaged.safetensors', bytes(damaged))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (st.lists(inner, max_size=4)
                   | st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=12)
ENTRIES = st.fixed_dictionaries({}, optional={
    'dtype': st.sampled_from(['F32', 'BF16', 'U8', 'F8_E4M3', 'BOOL']) | JSON_VALUES,
    'shape': st.lists(st.integers(0, 5) | st.integers(), max_size=3) | JSON_VALUES,
    'data_offsets': (st.lists(st.integers(0, 64) | st.integers(), min_size=2, max_size=2)
                     | JSON_VALUES)})


@settings(max_examples=300, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.dictionaries(st.text(max_size=8), ENTRIES | JSON_VALUES, max_size=4),
       data=st.binary(max_size=64))
def test_any_header_gives_a_config_error_or_sound_tensors(good: tuple[Path, bytes], header: Any,
                                                          data: bytes) -> None:
    text = json.dumps(header).encode()
    check_is_safe(good[0] / 'made.safetensors', struct.pack('<Q', len(text)) + text + data)


def check_is_safe(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)         # a mapped file must not be overwritten in place
    path.write_bytes(content)
    try:
        file = SafetensorsFile(path)
    except ConfigError as error:
        assert str(path) in str(error)
        return
    total = 0
    for name in file:
        view = file.view(name)
        assert view.shape == file[name].shape
        total += len(view.tobytes())
    assert total < len(content)


def test_missing_shards_and_lying_indexes(tmp_path: Path) -> None:
    write_folder(tmp_path, {}, TENSORS, num_shards=3)
    index_path = tmp_path / 'model.safetensors.index.json'
    index = json.loads(index_path.read_text())

    def fails(change: dict[str, Any], message: str) -> None:
        index_path.write_text(json.dumps({**index, **change}))
        with pytest.raises(ConfigError, match=message):
            open_tensors(tmp_path)

    names = index['weight_map']
    fails({'weight_map': {}}, 'has no weight_map')
    fails({'weight_map': {**names, 'b': '../../secret'}}, "'b' is said to be in '../../secret'")
    fails({'weight_map': {**names, 'b': '/etc/passwd'}}, 'no file name')
    fails({'weight_map': {**names, 'b': 3}}, 'no file name')
    fails({'weight_map': {**names, 'zz': names['b']}}, "lacks tensor 'zz'")
    index_path.write_text(json.dumps(index))
    (tmp_path / 'model-00002-of-00003.safetensors').unlink()
    with pytest.raises(ConfigError, match=r'1 of 3 shards are missing: model-00002-of-00003'):
        open_tensors(tmp_path)


def test_a_tensor_in_two_shards_needs_the_index_to_decide(tmp_path: Path) -> None:
    write_file(tmp_path / 'one.safetensors', {'x': ('U8', np.array([1], np.uint8)),
                                              'y': ('U8', np.array([5], np.uint8))})
    write_file(tmp_path / 'two.safetensors', {'x': ('U8', np.array([2], np.uint8)),
                                              'z': ('U8', np.array([6], np.uint8))})
    index = tmp_path / 'model.safetensors.index.json'
    for shard, value in (('one.safetensors', 1), ('two.safetensors', 2)):
        index.write_text(json.dumps({'weight_map': {'y': 'one.safetensors', 'z': 'two.safetensors',
                                                    'x': shard}}))
        assert open_tensors(tmp_path).view('x').tolist() == [value]
    index.write_text(json.dumps({'weight_map': {'y': 'one.safetensors', 'z': 'two.safetensors'}}))
    with pytest.raises(ConfigError, match=r"'x' is in both one.safetensors and two.safetensors"):
        open_tensors(tmp_path)


def test_folders_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'no such folder'):
        open_tensors(tmp_path / 'nowhere')
    with pytest.raises(ConfigError, match=r'no model.safetensors and no model.safetensors.index'):
        open_tensors(tmp_path)
    write_file(tmp_path / 'any.safetensors', TENSORS)
    assert len(open_tensors(tmp_path)) == 5
    write_file(tmp_path / 'other.safetensors', TENSORS)
    with pytest.raises(ConfigError, match=r'2 safetensors files but no model.safetensors.index'):
        open_tensors(tmp_path)


def test_json_files(tmp_path: Path) -> None:
    path = tmp_path / 'x.json'
    for content, message in ((b'[]', 'holds no JSON object'), (b'{', 'not valid JSON'),
                             (b'\xff', 'not valid JSON'), (b'[' * 99_999, 'not valid JSON')):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            read_json(path)
    path.write_bytes(b'{"a": "' + b'x' * 100 + b'"}')
    with pytest.raises(ConfigError, match=r'109 bytes, the limit is 50'):
        read_json(path, limit=50)
    with pytest.raises(ConfigError, match=r'No such file'):
        read_json(tmp_path / 'none.json')


def test_the_collector_rests_and_comes_back() -> None:
    assert gc.isenabled()
    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ConfigError), no_collection():
        raise ConfigError('wrong')
    assert gc.isenabled()
