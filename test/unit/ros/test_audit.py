# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Records: what is in them, what redaction leaves, files, verdicts joined to their generation."""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import replace

import pytest

pytest.importorskip('gemma_thor_ros.msg')

from gemma_thor_ros.audit import (
    Generation,
    RecordFile,
    ids_hash,
    make_record,
    read_records,
    redacted,
    sampling_of,
)
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.ros.audit import Recorder, record_from_ros, record_to_ros
from gemma_thor_ros.ros.verdict import Outcome, Verdict
from gemma_thor_ros.schema import (
    ChatRequest,
    ChatResult,
    ConfigError,
    FinishReason,
    Priority,
    SamplingParams,
    Timings,
    ToolCall,
    Usage,
)

SAMPLING = SamplingParams(seed=2**63 + 5, logit_bias=((3, -1.5),), stop_ids=(7,))
MODEL = {
    'name': 'demo', 'kv_dtype': 'float32', 'device': 'cpu', 'engine_version': '1',
    'weights_hash': 'aa', 'template_hash': 'bb',
}  # fmt: skip
SECRET = 'the code is 1234'


def generation(request_id='goal', parent='goal', front_end='ros'):
    message = {'role': 'user', 'content': SECRET}
    request = ChatRequest(
        (message,), ({'type': 'function', 'function': {'name': 'drive', 'description': SECRET}},),
        stop=(SECRET,), session_id='s', front_end=front_end, parent_id=parent,
    )  # fmt: skip
    return Generation(
        request, request_id, (message,), (2, 105, 9), SAMPLING, Priority.AGENT, True, 12.5
    )


def result(call_id='c1'):
    call = ToolCall(call_id, 'drive', {'word': SECRET})
    return ChatResult(
        'x', SECRET, SECRET, (call,), FinishReason.TOOL_CALLS, Usage(3, 2), Timings(1.0), (5, 106),
        message=SECRET,
    )  # fmt: skip


def verdict(call_id='c1'):
    return Verdict(
        call_id, 'drive', json.dumps(SECRET), False, True, Outcome.EXECUTED, 'succeeded', SECRET,
        json.dumps(SECRET), '/drive', bytes(range(16)), 3.0,
    )  # fmt: skip


def recorder(chunks, **settings):
    config = EngineConfig(**{'audit.enabled': True, **settings})
    made = Recorder(config, chunks.append)
    made.open()
    return made


class Chat:
    def on_generation(self, listener):
        self.tell = listener

    def model_info(self):
        class Info:
            name, kv_dtype, device = 'demo', 'float32', 'cpu'
            facts = MODEL

        return Info


def test_a_record_has_what_a_replay_needs():
    record = json.loads(json.dumps(make_record(generation(), result(), MODEL)))
    assert sampling_of(record) == SAMPLING
    assert record['prompt_ids'] == [2, 105, 9] and record['completion_ids'] == [5, 106]
    assert (record['weights_hash'], record['template_hash']) == ('aa', 'bb')
    assert record['messages'][0]['content'] == SECRET and record['thinking'] is True


def test_redaction_leaves_no_text_and_no_ids_but_their_hashes():
    record = make_record(generation(), result(), MODEL)
    record['tool_verdicts'] = [{**vars(verdict()), 'outcome': 0, 'goal_id': '00'}]
    hidden = redacted(record)
    assert SECRET not in json.dumps(hidden) and hidden['redacted']
    assert hidden['completion_ids'] == [] and hidden['completion_hash'] == ids_hash((5, 106))
    assert hidden['sampling']['seed'] == SAMPLING.seed and not hidden['sampling']['logit_bias']
    assert hidden['tool_verdicts'][0]['status'] == 'succeeded'
    assert SECRET in json.dumps(record)  # the original is as it was


def test_the_file_is_private_appended_and_read_back(tmp_path):
    path = tmp_path / 'deep' / 'audit.jsonl'
    for request_id in ('a', 'b\n'):
        file = RecordFile(path)
        file.write(make_record(generation(request_id), result(), MODEL))
        file.close()
    assert [r['request_id'] for r in read_records(path)] == ['a', 'b\n']
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def numbers(path):
    return [int(r['request_id']) for r in read_records(path)]


def test_full_files_are_moved_on_and_no_record_is_lost_or_cut(tmp_path):
    path = tmp_path / 'audit.jsonl'
    size = len(json.dumps(make_record(generation('1000'), result(), MODEL)))
    for number in range(1000, 1020):     # opened anew each time: the size is that of the file
        file = RecordFile(path, max_bytes=4 * size, max_files=4)
        file.write(make_record(generation(str(number)), result(), MODEL))
        file.close()
    files = [tmp_path / f'audit.jsonl.{i}' for i in (3, 2, 1)] + [path]
    assert sorted(files) == sorted(tmp_path.iterdir())
    kept = [number for file in files for number in numbers(file)]
    assert kept == list(range(kept[0], 1020)) and len(kept) >= 3 * 3
    assert all(file.stat().st_size <= 4 * size for file in files)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)


def test_a_line_larger_than_the_limit_is_written_whole_and_one_file_is_enough(tmp_path):
    path = tmp_path / 'a.jsonl'
    file = RecordFile(path, max_bytes=10, max_files=1)
    for number in (1, 2):
        file.write(make_record(generation(str(number)), result(), MODEL))
    file.close()
    assert numbers(path) == [2] and list(tmp_path.iterdir()) == [path]


def test_a_disk_that_refuses_to_rename_loses_no_record(tmp_path, monkeypatch):
    path = tmp_path / 'a.jsonl'
    file = RecordFile(path, max_bytes=10)
    file.write(make_record(generation('1'), result(), MODEL))

    def refuse(*_):
        raise OSError('read-only')

    with monkeypatch.context() as patch:
        patch.setattr(type(path), 'replace', refuse)
        file.write(make_record(generation('2'), result(), MODEL))
    file.write(make_record(generation('3'), result(), MODEL))
    file.close()
    assert numbers(tmp_path / 'a.jsonl.1') == [1, 2] and numbers(path) == [3]


def test_who_asked_and_which_images_are_in_the_record():
    asked = generation()
    url = 'data:image/png;base64,AAAA'
    message = {'role': 'user', 'content': [{'type': 'image_url', 'image_url': {'url': url}},
                                           {'type': 'text', 'text': SECRET}]}
    asked = replace(asked, messages=(message,), request=replace(asked.request, client='~/chat'))
    record = make_record(asked, result(), MODEL)
    assert record['client'] == '~/chat'
    assert record['image_hashes'] == [hashlib.sha256(url.encode()).hexdigest()]
    back = record_from_ros(record_to_ros(redacted(record)))
    assert (back['client'], back['image_hashes']) == ('~/chat', record['image_hashes'])
    assert url not in json.dumps(redacted(record))


@pytest.mark.parametrize('line', ['{', '[]', '{"format": 9}', '{"format": 1}'])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    path = tmp_path / 'x.jsonl'
    path.write_text(f'\n{line}\n')
    with pytest.raises(ConfigError, match=r'x\.jsonl:2'):
        list(read_records(path))
    with pytest.raises(ConfigError, match='nowhere'):
        list(read_records(tmp_path / 'nowhere'))
    with pytest.raises(ConfigError, match='can not be opened'):
        RecordFile(tmp_path)


@pytest.mark.parametrize('hide', [False, True])
def test_the_message_and_the_record_say_the_same(hide):
    record = make_record(generation(), result(), MODEL)
    if hide:
        record = redacted(record)
    back = record_from_ros(record_to_ros(record))
    for name in set(record) - {'timings', 'prompt_hash', 'completion_hash'}:
        expected = json.loads(json.dumps(record[name]))
        assert json.loads(json.dumps(back[name])) == expected, name
    assert sampling_of(back) == sampling_of(record)


def test_verdicts_join_the_generation_of_their_call():
    published = []
    made, chat = recorder(published), Chat()
    made.watch(chat)
    chat.tell(generation('goal'), result('c1'))
    chat.tell(generation('goal.1'), result('c2'))
    assert not published  # the verdicts are still to come
    made.finish('goal', [verdict('c2'), verdict('c1')])
    assert [r.request_id for r in published] == ['goal', 'goal.1']
    assert [[v.call_id for v in r.tool_verdicts] for r in published] == [['c1'], ['c2']]
    assert bytes(published[0].tool_verdicts[0].goal_id.uuid) == bytes(range(16))
    made.finish('goal', [])
    assert len(published) == 2


@pytest.mark.parametrize(('publish', 'count'), [(False, 0), (True, 1)])
def test_http_is_on_the_topic_only_if_wanted_and_in_the_file_always(tmp_path, publish, count):
    published, path = [], tmp_path / 'a.jsonl'
    made = recorder(published, **{'audit.file': str(path), 'ros.publish_http': publish})
    chat = Chat()
    made.watch(chat)
    chat.tell(generation(parent='', front_end='http'), result())
    made.close()
    assert len(published) == count and len(list(read_records(path))) == 1


def test_what_is_held_is_written_at_the_end_and_nothing_is_when_the_audit_is_off(tmp_path):
    published, path = [], tmp_path / 'a.jsonl'
    made, chat = recorder(published, **{'audit.file': str(path), 'audit.redact': True}), Chat()
    made.watch(chat)
    chat.tell(generation(), result())
    made.close()
    assert len(published) == 1 and SECRET not in path.read_text()
    off = recorder([], **{'audit.enabled': False, 'audit.file': str(tmp_path / 'b.jsonl')})
    off.watch(object())
    assert not (tmp_path / 'b.jsonl').exists()
