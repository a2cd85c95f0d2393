# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The verbs render and parse: their contract, on vectors and on bad input."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.cli.main import main
from gemma_thor_ros.cli.render import load_tokenizer
from gemma_thor_ros.text.tokenizer import Tokenizer


class _Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.fixture
def verb(tiny_file: Path, tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch,
         capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a verb on a document; gives exit code and output."""
    def run(name: str, document: Any, *options: str) -> tuple[int, dict[str, Any]]:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        monkeypatch.setattr(sys, 'stdin', _Stdin(data))
        chosen = options or ('--tokenizer', str(tiny_file))
        code = main([name, *chosen])
        return code, json.loads(capsys.readouterr().out)
    return run


HELLO = [{'role': 'user', 'content': 'Hello'}]


def test_render(verb: Any, tiny: Tokenizer) -> None:
    code, output = verb('render', {'messages': HELLO})
    assert code == 0
    assert output['text'] == ('<bos><|turn>user\nHello<turn|>\n<|turn>model\n'
                              '<|channel>thought\n<channel|>')
    assert tiny.decode(output['token_ids']) == output['text']
    assert set(output) == {'text', 'token_ids'}
    small = verb('render', {'messages': HELLO, 'variant': 'small'})[1]['text']
    assert small.endswith('<|turn>model\n')


@pytest.mark.parametrize('place', ['top', 'kwargs', 'chat_template_kwargs', 'request'])
def test_render_takes_options_in_all_places(verb: Any, place: str) -> None:
    options = {'enable_thinking': True, 'add_generation_prompt': False}
    document: dict[str, Any] = {'messages': HELLO}
    if place == 'request':
        document = {'request': {**document, 'chat_template_kwargs': options}}
    else:
        document.update(options if place == 'top' else {place: options})
    assert verb('render', document)[1]['text'] \
        == '<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHello<turn|>\n'


@pytest.mark.vectors('chat_vectors')
def test_render_takes_vector_lines(verb: Any, case: dict[str, Any]) -> None:
    code, output = verb('render', {**case, 'normalize': False})
    assert code == 0
    if case['rendered'] is None:
        assert case['expect_ours_contains'] in output['text']
    else:
        assert output['text'] == case['rendered']


@pytest.mark.vectors('parser_vectors', 'tool_call_bodies', 'reasoning_channels')
def test_parse_takes_case_lines(verb: Any, case: dict[str, Any]) -> None:
    code, output = verb('parse', case)
    assert code == 0
    assert set(output) == {'content', 'reasoning_content', 'tool_calls', 'finish_reason',
                           'repaired', 'malformed'}
    for key, value in case['expected'].items():
        if key == 'tool_calls':
            assert [{'name': call['name'], 'arguments': call['arguments']}
                    for call in output[key]] == value
        elif key in output:
            assert output[key] == value


def test_parse_inputs_agree(verb: Any, tiny: Tokenizer) -> None:
    raw = 'Hi<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|><|tool_response>'
    segments = [{'text': 'H'}, {'text': 'i', 'control': False},
                {'text': '<|tool_call>', 'control': True}, {'text': 'call:f{a:'},
                {'text': '<|"|>', 'control': True}, {'text': 'x'},
                {'text': '<|"|>', 'control': True}, {'text': '}'},
                {'text': '<tool_call|>', 'control': True},
                {'text': '<|tool_response>', 'control': True}]
    ids = [token for segment in segments for token in (
        [tiny.control_id(segment['text'])] if segment.get('control')
        else tiny.encode(str(segment['text'])))]
    expected = {'content': 'Hi', 'reasoning_content': None, 'tool_calls': [
        {'name': 'f', 'arguments': {'a': 'x'}, 'repaired': False}],
        'finish_reason': 'tool_calls', 'repaired': False, 'malformed': []}
    for document in ({'raw': raw}, {'segments': segments}, {'token_ids': ids}):
        assert verb('parse', document) == (0, expected)
    text = [{'text': 'a <|tool_call> b <|audio>'}]
    assert verb('parse', {'segments': text})[1]['content'] == 'a <|tool_call> b <|audio>'
    assert verb('parse', {'raw': 'x', 'finish': 'cancelled'})[1]['finish_reason'] == 'cancelled'
    assert verb('parse', {'raw': 'a<|video|>b<audio|>c'})[1]['content'] == 'ab<audio|>c'


@pytest.mark.parametrize(('name', 'document', 'param'), [
    ('render', b'{', ''), ('render', b'\xff', ''), ('render', b'[1]', ''), ('render', b'', ''),
    ('render', b'{"messages": NaN}', ''), ('render', b'[' * 100000, ''),
    ('render', {}, 'messages'), ('render', {'messages': 'x'}, 'messages'),
    ('render', {'messages': []}, 'messages'),
    ('render', {'messages': [{'role': 'robot', 'content': ''}]}, 'messages[0].role'),
    ('render', {'messages': HELLO, 'tools': {}}, 'tools'),
    ('render', {'messages': HELLO, 'tools': [{}]}, 'tools'),
    ('render', {'messages': HELLO, 'variant': 'xl'}, 'variant'),
    ('render', {'messages': HELLO, 'variant': 3}, 'variant'),
    ('render', {'messages': HELLO, 'enable_thinking': 'yes'}, 'enable_thinking'),
    ('render', {'messages': HELLO, 'kwargs': 3}, 'kwargs'),
    ('render', {'messages': HELLO, 'bos_token': '<s>'}, 'bos_token'),
    ('render', {'messages': HELLO, 'continue_final_message': 3}, 'continue_final_message'),
    ('render', {'messages': HELLO, 'continue_final_message': True}, 'continue_final_message'),
    ('render', {'messages': [{'role': 'user', 'content': [{'type': 'audio'}]},
                             {'role': 'assistant', 'tool_calls': [{'function': {
                                 'name': 'f', 'arguments': 'x'}}]}]},
     'messages[1].tool_calls[0].function.arguments'),
    ('parse', {}, 'raw'), ('parse', {'raw': 3}, 'raw'), ('parse', {'token_ids': 'x'}, 'token_ids'),
    ('parse', {'token_ids': [1.0]}, 'token_ids'), ('parse', {'token_ids': [True]}, 'token_ids'),
    ('parse', {'token_ids': [-1]}, 'token_ids'), ('parse', {'token_ids': [10 ** 9]}, 'token_ids'),
    ('parse', {'segments': 'x'}, 'segments'), ('parse', {'segments': [{'text': 3}]}, 'segments'),
    ('parse', {'segments': [{'text': 'x', 'control': 'y'}]}, 'segments'),
    ('parse', {'segments': [{'text': 'x', 'control': True}]}, 'segments'),
    ('parse', {'raw': 'x', 'tools': 3}, 'tools'), ('parse', {'raw': 'x', 'finish': 'x'}, 'finish'),
    ('parse', {'raw': 'x', 'finish': ['stop']}, 'finish'),
    ('parse', {'raw': 'x', 'prompt_tail': 3}, 'prompt_tail'),
])
def test_bad_input(verb: Any, name: str, document: Any, param: str) -> None:
    code, output = verb(name, document)
    assert code == 2
    assert set(output) == {'error'}
    assert output['error']['param'] == param
    assert output['error']['message']


def test_missing_tokenizer(verb: Any, tmp_path: Path) -> None:
    for name in ('render', 'parse'):
        code, output = verb(name, {'messages': HELLO, 'raw': 'x'}, '--json', '--tokenizer',
                            str(tmp_path / 'none.json'))
        assert code == 2
        assert output['error']['param'] == 'tokenizer'
        assert 'none.json' in output['error']['message']


def test_config_beside_the_file_is_read(tiny_file: Path) -> None:
    assert load_tokenizer(tiny_file).controls.image == 200
