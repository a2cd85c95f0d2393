# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Recorded requests of the demo model run again: the same tokens, or the difference by name."""

from __future__ import annotations

import json

import pytest

from gemma_thor_ros.audit import RecordFile, ids_hash, make_record, redacted
from gemma_thor_ros.cli.main import main
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import ChatRequest

SETTINGS = ['--set', 'engine.context_length=512', '--set', 'engine.kv_memory=0.1']
DRIVE = {
    'type': 'function',
    'function': {
        'name': 'drive',
        'description': 'Drive straight.',
        'parameters': {'type': 'object', 'properties': {'distance': {'type': 'number'}}},
    },
}


@pytest.fixture(scope='module')
def records():
    config = EngineConfig(**{'engine.context_length': 512, 'engine.kv_memory': 0.1})
    runtime = Runtime(config)
    runtime.start()
    assert runtime.wait_ready(60.0), runtime.error
    chat, made = runtime.require_chat(), []
    info = chat.model_info()
    model = {**info.facts, 'name': info.name, 'kv_dtype': info.kv_dtype, 'device': info.device}
    chat.on_generation(lambda g, r: made.append(make_record(g, r, model)))
    for text, tools, sampling in (
        ('Hello!', (), {}),
        ('drive two metres forward', (DRIVE,), {'temperature': 0.0}),
        ('turn left', (DRIVE,), {'temperature': 1.5, 'seed': 3}),
        ('and back', (), {'seed': 5, 'logit_bias': [(110, 1.0)], 'repetition_penalty': 1.1}),
    ):
        chat.submit(
            ChatRequest(
                ({'role': 'user', 'content': text},), tools, {'max_tokens': 24, **sampling},
                session_id='s',
            )
        ).result(60.0)  # fmt: skip
    stream = chat.submit(ChatRequest(({'role': 'user', 'content': 'Tell me a story.'},)))
    stream.wait(30.0)
    stream.cancel()
    stream.result(30.0)
    for request in (
        ChatRequest(
            ({'role': 'user', 'content': 'go'},), (DRIVE,), {'seed': 4, 'max_tokens': 40},
            tool_choice='required', parallel_tool_calls=False,
        ),
        ChatRequest((), prompt='raw words', sampling={'seed': 8, 'max_tokens': 12}),
        ChatRequest(({'role': 'user', 'content': 'Hello!'},), stop=('o', ',')),
    ):  # fmt: skip
        chat.submit(request).result(60.0)
    runtime.stop()
    assert len(made) == 8 and made[4]['finish_reason'] == 'cancelled'
    return made


def replay(tmp_path, capsys, records):
    path = tmp_path / 'audit.jsonl'
    file = RecordFile(path)
    for record in records:
        file.write(record)
    file.close()
    code = main(['replay', str(path), '--json', *SETTINGS])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else err


def test_all_answers_come_out_the_same(tmp_path, capsys, records):
    code, report = replay(tmp_path, capsys, records)
    assert code == 0, report
    assert report['records'] == 8 and report['different'] == report['skipped'] == 0
    tokens = [outcome['num_tokens'] for outcome in report['outcomes']]
    assert tokens == [len(record['completion_ids']) for record in records]
    assert not any(outcome['notes'] for outcome in report['outcomes'])


def test_differences_are_named(tmp_path, capsys, records):
    bias = {**records[0]['sampling'], 'logit_bias': [[110, 100.0]]}
    other = {**records[0], 'sampling': bias}
    prompt = {**records[1], 'messages': [{'role': 'user', 'content': 'other'}]}
    ids = with_ids(records[1], completion=[*records[1]['completion_ids'][:-1], 7])
    weights = {**records[1], 'weights_hash': 'other'}
    long = with_ids(records[6], prompt=[2] * 600)
    code, report = replay(tmp_path, capsys, [other, prompt, ids, weights, long])
    assert code == 1 and report['different'] == 4
    found = [outcome['differences'] for outcome in report['outcomes']]
    last = len(ids['completion_ids']) - 1
    assert found[0][0].startswith('token ') and found[1][0].startswith('prompt token ')
    assert found[2][0].startswith(f'token {last} was 7, it is ')
    assert found[3] == [] and 'weights_hash was other' in report['outcomes'][3]['notes'][0]
    assert found[4][0].startswith('refused: ')


def with_ids(record, **ids):
    hashes = {f'{name}_hash': ids_hash(value) for name, value in ids.items()}
    return {**record, **{f'{name}_ids': value for name, value in ids.items()}, **hashes}


def without(record, name):
    return {key: value for key, value in record.items() if key != name}


def test_a_record_that_was_changed_is_found_out(tmp_path, capsys, records):
    plain, call, cut, raw = records[0], records[5], records[4], records[6]
    changed = [
        ({**plain, 'text': plain['text'] + ' And more.'}, 'text was '),
        ({**plain, 'reasoning': 'I thought.'}, "reasoning was 'I thought.', its tokens spell ''"),
        ({**cut, 'text': f'X{cut["text"]}'}, 'text was '),
        ({**raw, 'text': 'other'}, "text was 'other', its tokens spell "),
        ({**plain, 'finish_reason': 'tool_calls'}, 'finish_reason was tool_calls, it is '),
        ({**call, 'call_ids': []}, 'it had 0 tool calls, it has 1'),
        ({**plain, 'prompt_hash': plain['completion_hash']}, 'prompt_hash is not that of '),
        ({**plain, 'completion_hash': 'ab'}, 'completion_hash is not that of its completion_ids'),
        (without(plain, 'messages'), 'its messages are missing'),
        ({**plain, 'messages': []}, 'its messages are missing'),
        ({**call, 'tool_verdicts': [{'call_id': 'c9'}]}, 'verdicts on calls that it has not: c9'),
    ]
    code, report = replay(tmp_path, capsys, [record for record, _ in changed])
    assert code == 1
    for outcome, (_, said) in zip(report['outcomes'], changed, strict=True):
        assert len(outcome['differences']) == 1 and said in outcome['differences'][0], (
            said, outcome)


def test_bad_lines_are_left_out_and_named(tmp_path, capsys, records):
    path, good = tmp_path / 'audit.jsonl', json.dumps(records[0])
    torn = [good[:200], '\x00\x00', json.dumps({**records[0], 'prompt_ids': 'abc'})]
    path.write_text('\n'.join([torn[0], good, *torn[1:], good[:300]]))
    file = RecordFile(path)  # a crash tore the last line: the next record is a line of its own
    file.write(records[1])
    file.close()
    assert main(['replay', str(path), *SETTINGS]) == 1
    out = capsys.readouterr().out
    assert '2 records: 0 differ, 0 skipped, 4 lines are no records' in out
    assert [f'{path}:{number}' in out for number in range(1, 7)] == [
        True, False, True, True, True, False]
    path.write_text(torn[0])
    assert main(['replay', str(path)]) == 2
    assert f'1 lines are no records, the first: {path}:1 is no JSON' in capsys.readouterr().err


def test_what_can_not_be_replayed_is_an_error(tmp_path, capsys, records):
    code, message = replay(tmp_path, capsys, [redacted(records[0])])
    assert code == 2 and 'redacted' in message
    assert main(['replay', str(tmp_path / 'none.jsonl')]) == 2
    assert 'none.jsonl' in capsys.readouterr().err


def test_a_bag_needs_rosbag2(tmp_path, capsys):
    try:
        import rosbag2_py  # noqa: F401
    except ImportError as error:
        assert main(['replay', str(tmp_path)]) == 2
        assert 'rosbag2_py' in capsys.readouterr().err
        pytest.skip(f'bags can not be read here: {error}')
