# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Records of requests on ~/requests and in a file: generations joined with their tools' verdicts.

A generation of ROS is held until its request has ended, since the verdicts come after it; one of
HTTP is written at once. Off unless audit.enabled. What is in a record is ../audit.py's to say.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import gemma_thor_ros.msg as msg
from gemma_thor_ros.audit import FORMAT, Generation, RecordFile, ids_hash, make_record, redacted
from gemma_thor_ros.chat import Chat
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.ros.answers import (
    timings_from_ros,
    timings_to_ros,
    usage_from_ros,
    usage_to_ros,
    verdict_from_ros,
    verdict_to_ros,
)
from gemma_thor_ros.ros.conversions import json_text, ros_text, time_from_ros, time_to_ros
from gemma_thor_ros.ros.verdict import Outcome, Verdict
from gemma_thor_ros.schema import ChatResult, Timings, Usage

_log = logging.getLogger(__name__)
# Settings of a record that RequestRecord.msg has no field for travel in sampling_json.
_BESIDE_SAMPLING = (
    'parent_id',
    'stop',
    'continue_final_message',
    'tool_choice',
    'tool_names',
    'parallel_tool_calls',
    'response_schema',
    'thinking_budget',
    'model',
    'kv_dtype',
    'device',
    'call_ids',
    'prompt_hash',
    'completion_hash',
)


class Recorder:
    """Writes the records of a node; safe to use from any thread.

    Args:
        publish: puts a record on ~/requests.
    """

    def __init__(self, config: EngineConfig, publish: Callable[[msg.RequestRecord], None]) -> None:
        self._config = config
        self._publish = publish
        self._lock = threading.Lock()
        self._open: dict[str, list[dict[str, Any]]] = {}
        self._file: RecordFile | None = None
        self.num_lost = 0  # records that the disk refused

    def open(self) -> None:
        """Open the file, if the audit is on and has one. Raises ConfigError."""
        if self._config['audit.enabled'] and self._config['audit.file']:
            self._file = RecordFile(
                self._config['audit.file'],
                int(self._config['audit.max_file_mb'] * 1e6),
                self._config['audit.max_files'],
            )

    def close(self) -> None:
        """Write what is held and close the file."""
        with self._lock:
            held = [record for records in self._open.values() for record in records]
            self._open.clear()
        for record in held:
            self._write(record)
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def watch(self, chat: Chat) -> None:
        """Record the generations of a chat from now on, if the audit is on."""
        if not self._config['audit.enabled']:
            return
        info = chat.model_info()
        model = {
            **info.facts, 'name': info.name, 'kv_dtype': info.kv_dtype, 'device': info.device
        }
        chat.on_generation(lambda generation, result: self._take(generation, result, model))

    def finish(self, parent_id: str, verdicts: Sequence[Verdict]) -> None:
        """Write the generations of a ROS request that has ended."""
        with self._lock:
            records = self._open.pop(parent_id, [])
        for record in records:
            record['tool_verdicts'] = [
                plain_verdict(v) for v in verdicts if v.call_id in record['call_ids']
            ]
            self._write(record)

    def _take(self, generation: Generation, result: ChatResult, model: dict[str, Any]) -> None:
        record = make_record(generation, result, model)
        if generation.request.parent_id:
            with self._lock:
                self._open.setdefault(generation.request.parent_id, []).append(record)
        else:
            self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        if self._config['audit.redact']:
            record = redacted(record)
        if self._file is not None:
            try:
                self._file.write(record)
            except (OSError, ValueError) as error:  # ValueError: closed by a cleanup
                self.num_lost += 1
                _log.error('request %s is not in the audit: %s', record['request_id'], error)
        if record['front_end'] != 'http' or self._config['ros.publish_http']:
            self._publish(record_to_ros(record))


def plain_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON can hold it."""
    values = dataclasses.asdict(verdict)
    return {**values, 'outcome': int(verdict.outcome), 'goal_id': verdict.goal_id.hex()}


def record_to_ros(record: dict[str, Any]) -> msg.RequestRecord:
    """Return the ROS message of a record."""
    verdicts = [
        Verdict(
            **{**v, 'outcome': Outcome(v['outcome']), 'goal_id': bytes.fromhex(v['goal_id'])}
        )
        for v in record['tool_verdicts']
    ]
    hidden = record['redacted']
    settings = {**record['sampling'], **{name: record[name] for name in _BESIDE_SAMPLING}}
    return msg.RequestRecord(
        stamp=time_to_ros(record['stamp']),
        request_id=record['request_id'],
        session_id=record['session_id'],
        front_end=record['front_end'],
        client=ros_text(record.get('client', '')),
        priority=record['priority'],
        redacted=hidden,
        messages_json='' if hidden else ros_text(json_text(record['messages'])),
        tools_json='' if hidden else ros_text(json_text(record['tools'])),
        sampling_json=ros_text(json_text(settings)),
        choice=record['choice'],
        thinking=record['thinking'],
        prompt_ids=record['prompt_ids'],
        completion_ids=record['completion_ids'],
        text=ros_text(record['text']),
        reasoning=ros_text(record['reasoning']),
        finish_reason=record['finish_reason'],
        error_code=record['error_code'],
        error_msg=ros_text(record['error_msg']),
        tool_verdicts=[verdict_to_ros(verdict) for verdict in verdicts],
        usage=usage_to_ros(Usage(**record['usage'])),
        timings=timings_to_ros(Timings(**record['timings'])),
        engine_version=record['engine_version'],
        weights_hash=record['weights_hash'],
        template_hash=record['template_hash'],
        image_hashes=record['image_hashes'],
    )


def record_from_ros(message: msg.RequestRecord) -> dict[str, Any]:
    """Return the record that a message of ~/requests holds."""
    sampling = json.loads(message.sampling_json)
    beside = {name: sampling.pop(name) for name in _BESIDE_SAMPLING if name in sampling}
    return {
        'format': FORMAT,
        'stamp': time_from_ros(message.stamp),
        'request_id': message.request_id,
        'session_id': message.session_id,
        'front_end': message.front_end,
        'client': message.client,
        'priority': message.priority,
        'redacted': message.redacted,
        'messages': json.loads(message.messages_json or '[]'),
        'tools': json.loads(message.tools_json or '[]'),
        'sampling': sampling,
        'choice': message.choice,
        'thinking': message.thinking,
        'prompt_ids': list(message.prompt_ids),
        'completion_ids': list(message.completion_ids),
        'prompt_hash': ids_hash(message.prompt_ids),
        'completion_hash': ids_hash(message.completion_ids),
        'text': message.text,
        'reasoning': message.reasoning,
        'finish_reason': message.finish_reason,
        'error_code': message.error_code,
        'error_msg': message.error_msg,
        'tool_verdicts': [plain_verdict(verdict_from_ros(v)) for v in message.tool_verdicts],
        'usage': dataclasses.asdict(usage_from_ros(message.usage)),
        'timings': dataclasses.asdict(timings_from_ros(message.timings)),
        'engine_version': message.engine_version,
        'weights_hash': message.weights_hash,
        'template_hash': message.template_hash,
        'image_hashes': list(message.image_hashes),
        **beside,
    }
