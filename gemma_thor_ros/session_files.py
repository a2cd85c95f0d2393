# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Conversations in files, so that they outlive the node: one JSON file each, in one folder.

Holds messages and whose they are; their K and V may lie in a file beside it (session_caches.py).
Knows no model and no front end.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma_thor_ros.schema import ErrorCode, RequestError

FORMAT = 1
MAX_BYTES = 64 << 20
_NAME = re.compile(r'[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}')


@dataclass(frozen=True)
class SavedSession:
    """What a file holds."""

    session_id: str
    owner: str
    created: float  # wall clock, seconds
    num_tokens: int
    messages: tuple[dict[str, Any], ...]
    cache: str = ''  # the hash of the file with its K and V; '' = there is none


class SessionFolder:
    """The saved sessions of a node. Files are readable by their owner alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, session: SavedSession) -> int:
        """Write a session, whole or not at all, over an older one of that name; return the bytes.

        Raises:
            RequestError: INVALID_REQUEST for a name that is no plain file name or a session that
                is no JSON; ENGINE when the file can't be written.
        """
        path = self._path(name)
        content = {
            'format': FORMAT,
            'session_id': session.session_id,
            'owner': session.owner,
            'created': session.created,
            'num_tokens': session.num_tokens,
            'messages': list(session.messages),
            'cache': session.cache,
        }
        try:
            text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)
        except (TypeError, ValueError) as error:
            raise _invalid(
                f'session {session.session_id!r} can not be written as JSON: {error}'
            ) from error
        data = text.encode('utf-8', 'surrogatepass')
        write_whole(path, [data])
        return len(data)

    def cache_path(self, name: str) -> Path:
        """Return where the K and V of a saved session lie, if anywhere.

        Raises:
            RequestError: INVALID_REQUEST for a name that is no plain file name.
        """
        return self._path(name).with_suffix('.kv')

    def read(self, name: str) -> SavedSession:
        """Read a saved session; its messages are lists of objects, what they hold is not checked.

        Raises:
            RequestError: UNKNOWN_SESSION when there is no such file; INVALID_REQUEST for a name
                that is no plain file name and for a file that is no saved session.
        """
        path = self._path(name)
        try:
            size = path.stat().st_size
            if size > MAX_BYTES:
                raise _invalid(f'{path} has {size:,} bytes, at most {MAX_BYTES:,} are read')
            content = json.loads(path.read_bytes().decode('utf-8', 'surrogatepass'))
        except FileNotFoundError:
            raise RequestError(
                ErrorCode.UNKNOWN_SESSION, f'there is no saved session {name!r}', 'name'
            ) from None
        except OSError as error:
            raise RequestError(
                ErrorCode.ENGINE, f'{path} can not be read: {error.strerror or error}'
            ) from error
        except (ValueError, RecursionError) as error:
            raise _invalid(f'{path} is no saved session: {error}') from error
        return _checked(path, content)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise _invalid(
                f'name is {name!r}: 1 to 128 letters, digits, "_", "-" or "." are allowed, no "." '
                'at the start'
            )
        return self._folder / f'{name}.json'


def write_whole(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file that its owner alone may read, whole or not at all; its folder is made.

    Raises:
        RequestError: ENGINE when it can't be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp makes the file with mode 0600
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix='.', suffix='.part')
        try:
            with os.fdopen(handle, 'wb') as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise RequestError(
            ErrorCode.ENGINE, f'{path} can not be written: {error.strerror or error}'
        ) from error


def _checked(path: Path, content: Any) -> SavedSession:
    if not isinstance(content, dict):
        raise _invalid(f'{path} is no saved session: it holds a {type(content).__name__}')
    if content.get('format') != FORMAT:
        raise _invalid(
            f'{path} is of format {content.get("format")!r}, this version reads {FORMAT}'
        )
    kinds = {'session_id': str, 'owner': str, 'created': (int, float), 'num_tokens': int}
    for key, kind in kinds.items():
        if not isinstance(content.get(key), kind):  # type: ignore[arg-type]
            raise _invalid(f'{path} is no saved session: {key} is {content.get(key)!r}')
    if not isinstance(content.setdefault('cache', ''), str):  # files of older versions lack it
        raise _invalid(f'{path} is no saved session: cache is {content["cache"]!r}')
    messages: Any = content.get('messages')
    if not isinstance(messages, Sequence) or not all(isinstance(m, dict) for m in messages):
        raise _invalid(f'{path} is no saved session: messages must be a list of objects')
    return SavedSession(
        content['session_id'],
        content['owner'],
        float(content['created']),
        content['num_tokens'],
        tuple(messages),
        content['cache'],
    )


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message, 'name')
