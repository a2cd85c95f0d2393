# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Memory-mapped safetensors: one file, or the shards that an index file lists.

Headers are input from outside: every number in them is checked against the file before it is used.
Knows no tensor names and nothing about models.
"""

from __future__ import annotations

import gc
import json
import math
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.schema import ConfigError

Array = npt.NDArray[Any]

MAX_HEADER_BYTES = 100_000_000           # the limit of the reference implementation
MAX_AXES = 8
INDEX_NAME = 'model.safetensors.index.json'
SINGLE_NAME = 'model.safetensors'
_ENTRY_KEYS = (b'"dtype"', b'"shape"', b'"data_offsets"')

# bf16 and the 8-bit floats have no NumPy type: they are shown as their bits.
NUMPY_TYPES: Mapping[str, type[np.generic]] = {
    'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': np.uint16,
    'F8_E4M3': np.uint8, 'F8_E5M2': np.uint8, 'F8_E8M0': np.uint8,
    'I64': np.int64, 'I32': np.int32, 'I16': np.int16, 'I8': np.int8,
    'U64': np.uint64, 'U32': np.uint32, 'U16': np.uint16, 'U8': np.uint8, 'BOOL': np.bool_,
}

_ITEM_BYTES = {name: np.dtype(kind).itemsize for name, kind in NUMPY_TYPES.items()}


class TensorInfo(NamedTuple):
    """Where one tensor lies: bytes `start` to `stop` of `file`, counted from the file's begin."""

    name: str
    dtype: str                           # as in the header: 'BF16', 'F8_E4M3', ...
    shape: tuple[int, ...]
    file: Path
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.stop - self.start


class SafetensorsFile(Mapping[str, TensorInfo]):
    """One mapped file: a mapping from tensor name to TensorInfo, and zero-copy views.

    Raises ConfigError naming the file, and the tensor where one is at fault, with the numbers.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._map, header, data_start = _map_file(self.path)
        self.metadata: dict[str, str] = _metadata(self.path, header)
        self._infos = _infos(self.path, header, data_start, len(self._map))

    def __getitem__(self, name: str) -> TensorInfo:
        return self._infos[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def view(self, name: str) -> Array:
        """The tensor as a read-only view of the mapped file; bf16 as uint16, fp8 as uint8 bits."""
        info = self._infos[name]
        dtype = np.dtype(NUMPY_TYPES[info.dtype])
        flat: Array = np.frombuffer(self._map, dtype, info.nbytes // dtype.itemsize, info.start)
        return flat.reshape(info.shape)

    def drop(self, start: int, stop: int) -> None:
        """Let bytes start to stop go from memory and the page cache; reading them maps them anew.

        Whole pages alone. For whoever has copied them elsewhere and needs the memory.
        """
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = stop // mmap.PAGESIZE * mmap.PAGESIZE - start
        if length <= 0:
            return
        self._map.madvise(mmap.MADV_DONTNEED, start, length)     # else the cache keeps them
        with self.path.open('rb') as file:
            os.posix_fadvise(file.fileno(), start, length, os.POSIX_FADV_DONTNEED)


class TensorFiles(Mapping[str, TensorInfo]):
    """All tensors of a folder, from one file or from shards."""

    def __init__(self, folder: Path, files: list[SafetensorsFile],
                 weight_map: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.files = files
        self._file_of: dict[str, SafetensorsFile] = {}
        for file in files:
            for name in file:
                other = self._file_of.get(name)
                if other is None or (weight_map or {}).get(name) == file.path.name:
                    self._file_of[name] = file
                elif (weight_map or {}).get(name) != other.path.name:
                    raise ConfigError(f'{folder}: tensor {name!r} is in both {other.path.name} '
                                      f'and {file.path.name}')

    def __getitem__(self, name: str) -> TensorInfo:
        return self._file_of[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def view(self, name: str) -> Array:
        """The tensor as a read-only view of its mapped file."""
        return self._file_of[name].view(name)

    def drop(self, names: Iterable[str]) -> None:
        """Let tensors go from memory and the page cache, neighbours of a file at once."""
        infos = sorted((self[name] for name in names), key=lambda info: (str(info.file),
                                                                         info.start))
        ranges: list[list[Any]] = []     # [name of one tensor, start, stop]
        for info in infos:
            last = ranges[-1] if ranges else None
            if last and last[2] == info.start and self[last[0]].file == info.file:
                last[2] = info.stop
            else:
                ranges.append([info.name, info.start, info.stop])
        for name, start, stop in ranges:
            self._file_of[name].drop(start, stop)


def open_tensors(folder: str | Path) -> TensorFiles:
    """Map the safetensors files of a folder; only headers are read.

    model.safetensors is preferred, then the index, then a single file of any name. Raises
    ConfigError when there is none, a shard is missing, or a file is corrupt.
    """
    with no_collection():
        return _open(Path(folder))


@contextmanager
def no_collection() -> Iterator[None]:
    """Let Python's collector rest: it would look again and again at what is made here to stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _open(folder: Path) -> TensorFiles:
    if not folder.is_dir():
        raise ConfigError(f'{folder}: no such folder')
    if (folder / SINGLE_NAME).is_file():
        return TensorFiles(folder, [SafetensorsFile(folder / SINGLE_NAME)])
    if (folder / INDEX_NAME).is_file():
        return _open_index(folder)
    found = sorted(folder.glob('*.safetensors'))
    if len(found) == 1:
        return TensorFiles(folder, [SafetensorsFile(found[0])])
    if found:
        raise ConfigError(f'{folder}: {len(found)} safetensors files but no {INDEX_NAME} that '
                          'says which belong together')
    raise ConfigError(f'{folder}: no {SINGLE_NAME} and no {INDEX_NAME}')


def read_json(path: Path, limit: int = MAX_HEADER_BYTES) -> dict[str, Any]:
    """A JSON object from a file. Raises ConfigError naming the file when it is anything else."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise ConfigError(f'{path}: {size} bytes, the limit is {limit}')
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f'{path}: {error.strerror}') from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f'{path}: not valid JSON: {error}') from error
    if not isinstance(value, dict):
        raise ConfigError(f'{path}: holds no JSON object')
    return value


def _open_index(folder: Path) -> TensorFiles:
    path = folder / INDEX_NAME
    weight_map = read_json(path).get('weight_map')
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f'{path}: has no weight_map')
    allowed: set[str] = set()            # there are few shards and tens of thousands of tensors
    for name, shard in weight_map.items():
        if isinstance(shard, str) and shard in allowed:
            continue
        # A shard name with a path could point anywhere on the machine.
        if not isinstance(shard, str) or not shard or Path(shard).name != shard or '\0' in shard:
            raise ConfigError(f'{path}: tensor {name!r} is said to be in {shard!r}, which is no '
                              'file name')
        allowed.add(shard)
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise ConfigError(f'{folder}: {len(missing)} of {len(shards)} shards are missing: '
                          f'{", ".join(missing[:3])}{", ..." if len(missing) > 3 else ""}')
    files = [SafetensorsFile(folder / shard) for shard in shards]
    tensors = TensorFiles(folder, files, weight_map)
    for name, shard in weight_map.items():
        if name not in tensors:
            raise ConfigError(f'{folder / shard}: lacks tensor {name!r}, which {INDEX_NAME} lists')
    return tensors


def _map_file(path: Path) -> tuple[mmap.mmap, dict[str, Any], int]:
    """The mapping, the decoded header, and where the tensor bytes begin."""
    try:
        with path.open('rb') as file:
            size = path.stat().st_size
            if size < 8:
                raise ConfigError(f'{path}: {size} bytes, too short for a safetensors file')
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ConfigError(f'{path}: {error.strerror}') from error
    size = len(mapped)
    (length,) = struct.unpack('<Q', mapped[:8])
    if length > MAX_HEADER_BYTES:
        raise ConfigError(f'{path}: header says it has {length} bytes, the limit is '
                          f'{MAX_HEADER_BYTES}; this is no safetensors file')
    if 8 + length > size:
        raise ConfigError(f'{path}: truncated: header needs {8 + length} bytes, the file has '
                          f'{size}')
    try:
        header = _parse_header(mapped[8:8 + length])
    except (ValueError, RecursionError) as error:
        raise ConfigError(f'{path}: corrupt header of {length} bytes: {error}') from error
    if not isinstance(header, dict):
        raise ConfigError(f'{path}: corrupt header: not a JSON object')
    return mapped, header, 8 + length


def _parse_header(text: bytes) -> Any:
    """The header's JSON value; ValueError where a key appears twice in an object.

    Looking at every object takes as long as all the rest. Where each key of an entry stands as
    often in the text as there are entries, none is there twice and no entry hides another.
    """
    header = json.loads(text)
    if isinstance(header, dict) and b'\\' not in text:
        count = len(header) - ('__metadata__' in header)
        metadata = header.get('__metadata__')
        keys = metadata if isinstance(metadata, dict) else ()
        once = [b'"__metadata__"', *(f'"{key}"'.encode() for key in keys)]
        if all(text.count(key) == count for key in _ENTRY_KEYS) and all(
                text.count(key) <= 1 for key in once):
            return header
    return json.loads(text, object_pairs_hook=_unique_pairs)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f'{next(key for key in keys if keys.count(key) > 1)!r} appears twice')
    return result


def _metadata(path: Path, header: dict[str, Any]) -> dict[str, str]:
    metadata = header.pop('__metadata__', {})
    if not isinstance(metadata, dict):
        raise ConfigError(f'{path}: corrupt header: __metadata__ is no object')
    return {str(key): str(value) for key, value in metadata.items()}


def _infos(path: Path, header: dict[str, Any], data_start: int,
           size: int) -> dict[str, TensorInfo]:
    infos = {name: _info(path, name, entry, data_start) for name, entry in header.items()}
    # The format allows neither holes nor overlaps: walk the tensors in file order.
    position = data_start
    for info in sorted(infos.values(), key=lambda item: (item.start, item.stop)):
        if info.stop > size:
            raise ConfigError(f'{path}: truncated: tensor {info.name!r} ends at byte {info.stop}, '
                              f'the file has {size}')
        if info.start != position:
            what = 'overlaps the tensor before it' if info.start < position else 'leaves a hole'
            raise ConfigError(f'{path}: corrupt header: tensor {info.name!r} starts at byte '
                              f'{info.start}, expected {position}: it {what}')
        position = info.stop
    if position != size:
        raise ConfigError(f'{path}: {size} bytes, but its tensors end at byte {position}')
    return infos


def _info(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    def refuse(what: str) -> ConfigError:
        return ConfigError(f'{path}: corrupt header: tensor {name!r} {what}')

    if not isinstance(entry, dict):
        raise refuse('has no description')
    dtype, shape, offsets = entry.get('dtype'), entry.get('shape'), entry.get('data_offsets')
    if not isinstance(dtype, str) or dtype not in NUMPY_TYPES:
        raise refuse(f'has dtype {dtype!r}; known are {", ".join(NUMPY_TYPES)}')
    if not _are_counts(shape) or len(shape) > MAX_AXES:
        raise refuse(f'has shape {str(shape)[:80]}')
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refuse(f'has data_offsets {str(offsets)[:80]}')
    # Python integers: no overflow, whatever the header says.
    expected = _ITEM_BYTES[dtype] * math.prod(shape)
    start, stop = offsets
    if expected == 0:
        raise refuse(f'is empty: shape {shape}')
    if stop - start != expected:
        raise refuse(f'of dtype {dtype} and shape {shape} needs {expected} bytes, '
                     f'its data_offsets give {stop - start}')
    return TensorInfo(name, dtype, tuple(shape), path, data_start + start, data_start + stop)


def _are_counts(values: Any) -> TypeGuard[list[int]]:
    # type(): bool is an int, too
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 1 << 63 for value in values)
