# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What a generation was, as plain JSON: everything needed to look into it and to run it again.

One record for each generation; the rounds of an agent loop have the same `parent_id`. Knows no
ROS, no engine and no model: chat.py makes the generations, front ends add verdicts and write.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemma_thor_ros.schema import (
    ChatRequest,
    ChatResult,
    ConfigError,
    Priority,
    SamplingParams,
)
from gemma_thor_ros.validate import IMAGE_PARTS

_log = logging.getLogger(__name__)

FORMAT = 1
_MODEL_FACTS = ('kv_dtype', 'device', 'engine_version', 'weights_hash', 'template_hash')
_SECRET_TEXTS = ('text', 'reasoning', 'error_msg')
_SECRET_LISTS = ('messages', 'tools', 'stop', 'prompt_ids', 'completion_ids')
# What a reader relies on: the type of a field, and that of its items.
_TYPES: dict[str, tuple[Any, type | None]] = {
    'request_id': (str, None),
    'prompt_ids': (list, int),
    'completion_ids': (list, int),
    'sampling': (dict, None),
    'messages': (list, dict),
    'tools': (list, dict),
    'stop': (list, str),
    'tool_names': (list, str),
    'call_ids': (list, str),
    'tool_verdicts': (list, dict),
    'text': (str, None),
    'reasoning': (str, None),
}
_SECRET_OF_VERDICTS = ('arguments_json', 'reason', 'result_json')


@dataclass(frozen=True)
class Generation:
    """What the engine was asked to do: settings resolved, history included."""

    request: ChatRequest
    request_id: str
    messages: tuple[dict[str, Any], ...]  # empty when the request brought a raw prompt
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: Priority
    thinking: bool
    started: float  # wall clock, seconds


def make_record(
    generation: Generation, result: ChatResult, model: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the record of a generation; `model` has the facts about what ran it."""
    request = generation.request
    return {
        'format': FORMAT,
        'stamp': generation.started,
        'request_id': generation.request_id,
        'parent_id': request.parent_id or generation.request_id,
        'session_id': request.session_id,
        'front_end': request.front_end,
        'client': request.client,
        'priority': int(generation.priority),
        'redacted': False,
        'messages': [dict(message) for message in generation.messages],
        'tools': [dict(tool) for tool in request.tools],
        'stop': list(request.stop),
        'sampling': asdict(generation.sampling),
        'choice': request.choice,
        'thinking': generation.thinking,
        'continue_final_message': request.continue_final_message,
        'tool_choice': request.tool_choice,
        'tool_names': list(request.tool_names),
        'parallel_tool_calls': request.parallel_tool_calls,
        'response_schema': request.response_schema,
        'thinking_budget': request.thinking_budget,
        'prompt_ids': list(generation.prompt_ids),
        'completion_ids': list(result.token_ids),
        'prompt_hash': ids_hash(generation.prompt_ids),
        'completion_hash': ids_hash(result.token_ids),
        'text': result.text,
        'reasoning': result.reasoning,
        'call_ids': [call.call_id for call in result.tool_calls],
        'finish_reason': str(result.finish_reason),
        'error_code': int(result.code),
        'error_msg': result.message,
        'tool_verdicts': [],
        'usage': asdict(result.usage),
        'timings': asdict(result.timings),
        'model': str(model.get('name', '')),
        **{name: str(model.get(name, '')) for name in _MODEL_FACTS},
        'image_hashes': image_hashes(generation.messages),
    }


def redacted(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without texts, arguments and token ids, which spell them; hashes stay."""
    result = {**record, 'redacted': True}
    result.update(dict.fromkeys(_SECRET_TEXTS, ''))
    result.update({key: [] for key in _SECRET_LISTS})
    empty = dict.fromkeys(_SECRET_OF_VERDICTS, '')
    result['tool_verdicts'] = [{**verdict, **empty} for verdict in record['tool_verdicts']]
    result['response_schema'] = None
    # A bias names the tokens that a client wants or fears.
    result['sampling'] = {**record['sampling'], 'logit_bias': []}
    return result


def image_hashes(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sha256 of each image in messages, in hex, as it was sent."""
    given = [
        part.get('image_url')
        for message in messages
        if isinstance(message.get('content'), list | tuple)
        for part in message['content']
        if isinstance(part, Mapping) and part.get('type') in IMAGE_PARTS
    ]
    urls = [url.get('url') if isinstance(url, Mapping) else url for url in given]
    return [hashlib.sha256(str(url).encode()).hexdigest() for url in urls]


def ids_hash(token_ids: Sequence[int]) -> str:
    """Return the sha256 of token ids, in hex; equal hashes mean equal tokens."""
    return hashlib.sha256(','.join(map(str, token_ids)).encode()).hexdigest()


def contradictions(record: Mapping[str, Any]) -> list[str]:
    """Say where a record that is not redacted does not hold together by itself.

    Its hashes are of its own ids, and all but a raw prompt of HTTP has messages. That finds damage
    and careless changes; who means to deceive can make the hashes anew.
    """
    found = [
        f'{name}_hash is not that of its {name}_ids'
        for name in ('prompt', 'completion')
        if record.get(f'{name}_hash', '') != ids_hash(record[f'{name}_ids'])
    ]
    if 'messages' not in record or not (record['messages'] or _may_be_raw(record)):
        found.append('its messages are missing: the prompt is that of its token ids')
    calls = set(record.get('call_ids', ()))
    odd = [str(v.get('call_id')) for v in record.get('tool_verdicts', ())
           if v.get('call_id') not in calls]
    if odd:
        found.append(f'it has verdicts on calls that it has not: {", ".join(odd)}')
    return found


def _may_be_raw(record: Mapping[str, Any]) -> bool:
    """Whether a record may come from a raw prompt, which has neither session nor tools."""
    fields = ('session_id', 'tools', 'thinking', 'call_ids', 'tool_verdicts', 'image_hashes')
    return record.get('front_end') != 'ros' and not any(record.get(name) for name in fields)


def sampling_of(record: Mapping[str, Any]) -> SamplingParams:
    """Return the settings that a record ran with.

    Raises:
        ConfigError: they are not those of this version.
    """
    values = dict(record['sampling'])
    values['logit_bias'] = tuple((int(i), float(b)) for i, b in values.get('logit_bias') or ())
    values['stop_ids'] = tuple(values.get('stop_ids') or ())
    unknown = set(values) - set(SamplingParams.__dataclass_fields__)
    if unknown:
        raise ConfigError(f'sampling has unknown settings: {", ".join(sorted(unknown))}')
    return SamplingParams(**values)


class RecordFile:
    """JSON lines, appended and on disk line by line; readable by their owner alone.

    A file that a line would make too large is renamed to FILE.1, the one of that name to FILE.2
    and so on; a line is never split, and never lost before its file is the oldest.

    Args:
        path: of the file that is written.
        max_bytes: of a file, unless one line is longer; 0 = no limit.
        max_files: that are kept, the one that is written among them; the oldest is removed.

    Raises:
        ConfigError: the file can't be opened.
    """

    def __init__(self, path: str | Path, max_bytes: int = 0, max_files: int = 10) -> None:
        self.path = Path(path).expanduser()
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise ConfigError(f'audit.file {self.path} can not be opened: {error}') from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record. Raises OSError when the disk refuses it."""
        line = json.dumps(record, ensure_ascii=True, separators=(',', ':')) + '\n'
        with self._lock:
            if self._max_bytes and self._size > 0 and self._size + len(line) > self._max_bytes:
                try:
                    self._rotate()
                except OSError as error:  # too large a file is better than a lost record
                    _log.error('%s goes on growing: %s', self.path, error)
            self._file.write(line)
            self._file.flush()
            self._size += len(line)

    def _open(self) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            # A line that a crash tore must not swallow the next record.
            if size and os.pread(descriptor, 1, size - 1) != b'\n':
                _log.warning('%s ends in half a line: the next record begins a new one', self.path)
                size += os.write(descriptor, b'\n')
        except OSError:
            os.close(descriptor)
            raise
        self._file = os.fdopen(descriptor, 'a', encoding='utf-8')
        self._size = size

    def _rotate(self) -> None:
        """Move the files on by one. Raises OSError; the file in use is then still written."""
        names = [self.path, *(
            self.path.with_name(f'{self.path.name}.{i}') for i in range(1, self._max_files))]
        if len(names) == 1:
            names[0].unlink(missing_ok=True)
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if newer.exists():
                newer.replace(older)
        full = self._file
        self._open()
        full.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


def read_records(
    path: str | Path, on_fault: Callable[[str], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Return the records of a JSON-lines file, one after the other.

    Args:
        path: of the file.
        on_fault: is told of each line that is no record, with file and line; the line is left out.

    Raises:
        ConfigError: the file can't be read; without `on_fault` also the first such line.
    """
    path = Path(path).expanduser()
    try:
        with path.open('rb') as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = _checked(line, f'{path}:{number}')
                except ConfigError as error:
                    if on_fault is None:
                        raise
                    on_fault(str(error))
                else:
                    yield record
    except OSError as error:
        raise ConfigError(f'{path} can not be read: {error}') from error


def _checked(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f'{where} is no JSON: {error}') from error
    if not isinstance(record, dict) or record.get('format') != FORMAT:
        raise ConfigError(f'{where} is no record of format {FORMAT}')
    missing = {'request_id', 'prompt_ids', 'completion_ids', 'sampling'} - set(record)
    if missing:
        raise ConfigError(f'{where} lacks {", ".join(sorted(missing))}')
    for name, (kind, item) in _TYPES.items():
        value = record.get(name)
        if name in record and not (
            isinstance(value, kind) and (item is None or all(type(i) is item for i in value))
        ):
            raise ConfigError(f'{where}: its {name} is not what a record has there')
    return record
