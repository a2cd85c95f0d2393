# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Our reading of model output: every published case, whole, token by token, and cut in two."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemma_thor_ros.text.normalize_tools import tool_schemas
from gemma_thor_ros.text.parser import OutputParser, ParsedOutput, ParserDelta
from gemma_thor_ros.text.prompt import prompt_state
from gemma_thor_ros.text.segments import Segment, encode_segments, split_markers
from gemma_thor_ros.text.tokenizer import Tokenizer

FILES = ('parser_vectors', 'tool_call_bodies', 'reasoning_channels', 'streaming')
# Stop strings are applied behind the parser: the chat layer's tests have that case.
ELSEWHERE = ('S11',)


def token_ids(case: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    if 'token_bytes_hex' in case:
        by_value = {value: token_id for token_id, value in tokenizer.byte_values.items()}
        return [by_value[value] for value in bytes.fromhex(''.join(case['token_bytes_hex']))]
    if 'segments' in case:
        segments = [Segment(item['text'], item.get('control', False))
                    for item in case['segments']]
    else:
        segments = split_markers(case.get('raw', case.get('raw_model_output')))
    return encode_segments(segments, tokenizer)


def read(case: dict[str, Any], tokenizer: Tokenizer,
         pieces: list[list[int]]) -> tuple[ParsedOutput, list[ParserDelta]]:
    parser = OutputParser(tokenizer, tool_schemas(case.get('tools')),
                          prompt=prompt_state(split_markers(case.get('prompt_tail', ''))))
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    output = parser.finish()
    return output, deltas + list(output.deltas)


def check_joined(output: ParsedOutput, deltas: list[ParserDelta]) -> None:
    """Joined deltas equal the whole, byte for byte."""
    assert ''.join(delta.text for delta in deltas) == output.content
    assert ''.join(delta.reasoning for delta in deltas) == output.reasoning
    for index, call in enumerate(output.tool_calls):
        of_call = [delta for delta in deltas if delta.call_index == index]
        assert [delta.call_name for delta in of_call] == [call.name, '']
        assert ''.join(delta.arguments for delta in of_call) == call.arguments_json
        assert json.loads(call.arguments_json) == call.arguments
    assert max((delta.call_index for delta in deltas), default=-1) < len(output.tool_calls)
    for delta in deltas:
        assert '\ufffd' not in delta.text + delta.reasoning + delta.arguments
        assert delta != ParserDelta()


def check_expected(case: dict[str, Any], output: ParsedOutput) -> None:
    expected = case['expected']
    found = {
        'content': output.content or None,
        'reasoning_content': output.reasoning or None,
        'tool_calls': [{'name': call.name, 'arguments': call.arguments}
                       for call in output.tool_calls],
        'finish_reason': str(output.finish_reason),
        'repaired': output.repaired,
        'malformed': list(output.malformed),
    }
    compared = [key for key in found if key in expected]
    assert {key: found[key] for key in compared} == {key: expected[key] for key in compared}
    # Equality of Python values takes 1 for 1.0 and for true; JSON text doesn't.
    if 'tool_calls' in expected:
        assert json.dumps(found['tool_calls']) == json.dumps(expected['tool_calls'])


@pytest.mark.vectors(*FILES, without=ELSEWHERE)
def test_case_however_it_is_cut(case: dict[str, Any], tokenizer: Tokenizer) -> None:
    ids = token_ids(case, tokenizer)
    whole, deltas = read(case, tokenizer, [ids])
    if 'events' not in case['expected']:
        check_expected(case, whole)
    check_joined(whole, deltas)
    cuts = [[[token_id] for token_id in ids]]
    cuts += [[ids[:cut], ids[cut:]] for cut in range(1, len(ids))]
    for pieces in cuts:
        output, deltas = read(case, tokenizer, pieces)
        assert output == whole
        check_joined(output, deltas)
        for text in case['expected'].get('never_in_any_delta', ()):
            for delta in deltas:
                assert text not in delta.text + delta.arguments
                assert delta.reasoning != text


def test_calls_come_as_name_then_arguments(tokenizer: Tokenizer) -> None:
    """What the HTTP stream of case S12 is made of."""
    raw = '<|tool_call>call:get_battery{}<tool_call|><|tool_response>'
    _, deltas = read({}, tokenizer, [token_ids({'raw': raw}, tokenizer)])
    assert deltas == [ParserDelta(call_index=0, call_name='get_battery'),
                      ParserDelta(call_index=0, arguments='{}')]


def test_the_split_check_catches_a_reader_of_decoded_text(tiny: Tokenizer) -> None:
    """The planted error: decoding each token by itself breaks a character made of bytes."""
    ids = tiny.encode('Hi \U0001f916!')
    naive = ''.join(bytes(tiny.token_bytes(token_id)).decode('utf-8', 'replace')
                    for token_id in ids)
    deltas = [ParserDelta(text=naive)]
    output, _ = read({}, tiny, [ids])
    with pytest.raises(AssertionError):
        check_joined(output, deltas)


def test_the_case_check_catches_a_wrong_repaired_flag(tiny: Tokenizer) -> None:
    """The planted error: a lenient reader that calls everything well-formed."""
    case = {'id': 'x', 'expected': {'tool_calls': [{'name': 'f', 'arguments': {'a': 1}}],
                                    'repaired': True},
            'raw': '<|tool_call>call:f{a=1}<tool_call|><|tool_response>'}
    output, _ = read(case, tiny, [token_ids(case, tiny)])
    check_expected(case, output)
    wrong = {**case, 'expected': {**case['expected'], 'repaired': False}}
    with pytest.raises(AssertionError):
        check_expected(wrong, output)
