# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The K and V of a saved session: one binary file beside its messages.

    magic, length of the header (u32), header (JSON), token ids (i32), full pages, sliding pages

Little-endian. The header says what the pages are of; a file of another model, page type, version
or machine is refused by what differs, and a damaged one by its hash, which the session's file
keeps. Knows no engine thread and no session.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gemma_thor_ros.engine.saved_prefix import SavedPrefix
from gemma_thor_ros.schema import PromptImage
from gemma_thor_ros.session_files import write_whole

MAGIC = b'gemma_thor_ros KV pages\n'
FORMAT = 1
MAX_HEADER_BYTES = 1 << 20
_PART_BYTES = 8 << 20
_LENGTH = struct.Struct('<I')


class CacheRefused(Exception):
    """A file whose pages can't be used; the text says why, without the file's name."""


def write_cache(path: Path, saved: SavedPrefix, identity: Mapping[str, str]) -> tuple[int, str]:
    """Write the pages, whole or not at all, readable by their owner alone; return bytes and hash.

    Raises:
        RequestError: ENGINE when the file can't be written.
    """
    header = json.dumps({
        'format': FORMAT, 'identity': dict(identity), 'prompt': saved.identity,
        'page_size': saved.page_size, 'layout': list(saved.layout),
        'tokens': saved.token_ids.size, 'full': list(saved.full.shape),
        'sliding': list(saved.sliding.shape),
        'images': [[image.start, image.num_tokens, image.digest.hex()] for image in saved.images],
    }).encode()
    digest, num_bytes = hashlib.sha256(), 0

    def parts() -> Iterator[bytes | memoryview]:
        yield MAGIC + _LENGTH.pack(len(header)) + header
        for array in saved.token_ids.astype('<i4'), saved.full, saved.sliding:
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            yield from (flat[at:at + _PART_BYTES].data
                        for at in range(0, flat.size, _PART_BYTES))

    def counted() -> Iterator[bytes | memoryview]:
        nonlocal num_bytes
        for part in parts():
            digest.update(part)
            num_bytes += len(part)
            yield part

    write_whole(path, counted())
    return num_bytes, digest.hexdigest()


def read_cache(path: Path, digest: str, identity: Mapping[str, str],
               max_bytes: int) -> SavedPrefix:
    """Map a file of pages and check all of it; the pages are read from disk as they are used.

    Raises:
        CacheRefused: with the reason.
    """
    try:
        with path.open('rb') as file:
            size = file.seek(0, 2)
            if size < len(MAGIC) + _LENGTH.size:
                raise CacheRefused('it holds no KV pages')
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CacheRefused(f'it can not be read: {error.strerror or error}') from error
    header, start = _header(data, size)
    if size - start > max_bytes:
        raise CacheRefused(f'it has {size - start:,} bytes, at most {max_bytes:,} are read')
    _check_identity(header['identity'], identity)
    with memoryview(data) as view:
        found = hashlib.sha256(view).hexdigest()
    if found != digest:
        raise CacheRefused(f'its hash is {found[:12]}..., not {digest[:12]}... as the session '
                           'says: it is damaged, or of another save')
    try:
        return _parse(header, data, start, size)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CacheRefused(f'its header and its pages do not agree: {error!r}') from error


def _header(data: mmap.mmap, size: int) -> tuple[dict[str, Any], int]:
    """The header, and where what follows it begins."""
    start = len(MAGIC) + _LENGTH.size
    if data[:len(MAGIC)] != MAGIC:
        raise CacheRefused('it holds no KV pages')
    length, = _LENGTH.unpack(data[len(MAGIC):start])
    if length > min(MAX_HEADER_BYTES, size - start):
        raise CacheRefused(f'its header has {length:,} bytes, the file {size:,}')
    try:
        header = json.loads(data[start:start + length])
    except (ValueError, RecursionError) as error:
        raise CacheRefused(f'its header is no JSON: {error}') from error
    if not isinstance(header, dict) or header.get('format') != FORMAT:
        shown = header.get('format') if isinstance(header, dict) else header
        raise CacheRefused(f'it is of format {shown!r}, this version reads {FORMAT}')
    return header, start + length


def _check_identity(found: Any, expected: Mapping[str, str]) -> None:
    if not isinstance(found, dict):
        raise CacheRefused(f'its identity is {found!r}')
    for key in sorted({*found, *expected}):
        if found.get(key) != expected.get(key):
            raise CacheRefused(f'its {key} is {found.get(key)!r}, here it is '
                               f'{expected.get(key)!r}')


def _parse(header: dict[str, Any], data: mmap.mmap, start: int, size: int) -> SavedPrefix:
    num_tokens, shapes = int(header['tokens']), [tuple(map(int, header[name]))
                                                 for name in ('full', 'sliding')]
    ends = [start + 4 * num_tokens]
    for count, width in shapes:
        ends.append(ends[-1] + count * width)
    if ends[-1] != size or min(num_tokens, *shapes[0], *shapes[1]) < 0:
        raise ValueError(f'{size} bytes, {ends[-1]} expected')
    ids = np.frombuffer(data, '<i4', num_tokens, start).astype(np.int32)
    full, sliding = (
        np.frombuffer(data, np.uint8, count * width, at).reshape(count, width)
        for (count, width), at in zip(shapes, ends, strict=False))
    images = tuple(PromptImage(int(first), int(count), bytes.fromhex(digest), None, 0)
                   for first, count, digest in header['images'])
    return SavedPrefix(ids, str(header['prompt']), images, int(header['page_size']),
                       tuple(map(str, header['layout'])), full, sliding)
