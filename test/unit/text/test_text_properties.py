# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Properties of prompts and parser on random input (hypothesis)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma_thor_ros.schema import FinishReason
from gemma_thor_ros.text.call_syntax import DELIMITER, read_strict
from gemma_thor_ros.text.controls import CALL, CONTROL_TEXTS
from gemma_thor_ros.text.detokenize import Detokenizer
from gemma_thor_ros.text.parser import OutputParser, ParserDelta
from gemma_thor_ros.text.prompt import PromptState, render
from gemma_thor_ros.text.segments import encode_segments
from gemma_thor_ros.text.tokenizer import Tokenizer

RELAXED = settings(deadline=None, max_examples=150,
                   suppress_health_check=[HealthCheck.function_scoped_fixture,
                                          HealthCheck.too_slow])
# U+2581 is the vocabulary's way to write a blank: it can't be told from one.
CHARS = st.characters(exclude_categories=['Cs'], exclude_characters='▁')
TEXT = st.one_of(
    st.text(CHARS, max_size=12),
    st.lists(st.sampled_from([*CONTROL_TEXTS, 'call:f{', '}', '{', ',', '"', "'", 'thought\n',
                              ' ', '\n', '\\', '=', ':', '\U0001f916', '<0x41>', '<0xF0>', '\0',
                              '<unused3>', '<', '|>']), max_size=6).map(''.join))
KEY = st.text(CHARS, min_size=1, max_size=8).map(
    lambda key: re.sub(r'[,:{}\[\]="\'<>\r\n]', '', key).strip(' \t')).filter(bool)
NAME = st.from_regex(r'[a-zA-Z_][\w.:/-]{0,10}[a-z]', fullmatch=True).filter(
    lambda name: not re.search(r'\s', name))
VALUE = st.recursive(
    st.one_of(TEXT, st.none(), st.booleans(), st.integers(),
              st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEY, inner, max_size=4)),
    max_leaves=12)


def parse(tokenizer: Tokenizer, ids: list[int], **options: Any) -> Any:
    parser = OutputParser(tokenizer, **options)
    parser.push(ids)
    return parser.finish()


@RELAXED
@given(calls=st.lists(st.tuples(NAME, st.dictionaries(KEY, VALUE, max_size=5)), min_size=1,
                      max_size=3))
def test_rendered_calls_are_read_back(tiny: Tokenizer,
                                      calls: list[tuple[str, dict[str, Any]]]) -> None:
    message = {'role': 'assistant', 'tool_calls': [
        {'function': {'name': name, 'arguments': arguments}} for name, arguments in calls]}
    segments = render([{'role': 'user', 'content': 'x'}, message])
    start = next(index for index, segment in enumerate(segments) if segment.text == CALL)
    output = parse(tiny, encode_segments(segments[start:], tiny))
    assert output.finish_reason is FinishReason.TOOL_CALLS
    assert not output.repaired and not output.malformed and not output.content
    found = [(call.name, call.arguments) for call in output.tool_calls]
    assert json.dumps(found, sort_keys=True) == json.dumps(calls, sort_keys=True)


@settings(RELAXED, max_examples=60)
@given(arguments=st.dictionaries(KEY, VALUE, max_size=5))
def test_rendered_calls_are_read_back_with_the_real_vocabulary(
        real: Tokenizer, arguments: dict[str, Any]) -> None:
    test_rendered_calls_are_read_back.hypothesis.inner_test(real, [('f', arguments)])


def skeleton(text: str, name: str, key: str) -> tuple[list[Any], list[Any]]:
    """A chat that has the text everywhere, with something visible around it."""
    around = f'x{text}x'
    messages = [
        {'role': 'system', 'content': around},
        {'role': 'user', 'content': [{'type': 'text', 'text': around}, {'type': 'image'}]},
        {'role': 'assistant', 'content': around, 'reasoning_content': around, 'tool_calls': [
            {'id': text, 'function': {'name': f'x{name}x', 'arguments': {
                f'x{key}x': [around, {around: text}], 'n': text}}}]},
        {'role': 'tool', 'tool_call_id': text, 'name': around, 'content': around},
        {'role': 'assistant', 'content': around, 'reasoning_content': text},
        {'role': 'user', 'content': around},
        {'role': 'assistant', 'content': '', 'reasoning_content': around, 'tool_calls': [
            {'id': 'c', 'function': {'name': 'g', 'arguments': json.dumps({'a': text})}}]},
        {'role': 'tool', 'tool_call_id': 'c', 'content': {around: text}},
    ]
    tools = [{'function': {'name': 'g', 'description': text, 'parameters': {
        'type': 'object', 'properties': {around: {
            'type': 'string', 'description': around, 'enum': [text, around]}},
        'required': [around]}}}]
    return messages, tools


@RELAXED
@given(text=TEXT, name=TEXT, key=TEXT, thinking=st.booleans(), normalize=st.booleans())
def test_no_text_makes_a_control_token(tokenizer: Tokenizer, text: str, name: str, key: str,
                                       thinking: bool, normalize: bool) -> None:
    def controls(text: str, name: str, key: str) -> tuple[list[str], list[int]]:
        messages, tools = skeleton(text, name, key)
        segments = render(messages, tools, enable_thinking=thinking, normalize=normalize)
        placed = [segment.text for segment in segments if segment.control]
        ids = encode_segments(segments, tokenizer)
        assert tokenizer.decode(ids) == ''.join(segment.text for segment in segments)
        return placed, [token_id for token_id in ids if token_id in tokenizer.control_ids]

    placed, ids = controls(text, name, key)
    assert ids == [tokenizer.control_id(marker) for marker in placed]
    assert placed == controls('y', 'y', 'y')[0]


@RELAXED
@given(text=st.one_of(TEXT, st.text(max_size=20)))
def test_text_survives_and_never_becomes_control(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.control_ids.isdisjoint(ids)
    if '▁' not in text and not re.search('[\ud800-\udfff]', text):
        assert tokenizer.decode(ids) == text


def random_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    structure = st.sampled_from(sorted(tokenizer.control_ids))
    words = st.sampled_from([tokenizer.encode(text) for text in (
        'thought\n', 'thought', 'call:f{', 'call:', 'a:1', '}', ',', '{', '[', ']', 'b:', '"',
        "'", '=', ' ', '\n', 'true', '-1.5', '007', 'Hi', '(', ')', 'é日\U0001f916')])
    bytes_ = st.sampled_from(sorted(tokenizer.byte_values)).map(lambda token_id: [token_id])
    anything = st.integers(-3, tokenizer.vocab_size + 3).map(lambda token_id: [token_id])
    common = st.sampled_from([48, 49, 52, 52, 100, 101])
    part = st.one_of(words, words, common.map(lambda token_id: [token_id]),
                     structure.map(lambda token_id: [token_id]), bytes_, anything)
    return st.lists(part, max_size=40).map(lambda parts: [i for part in parts for i in part])


STATES = [PromptState(), PromptState(channel_text=''), PromptState(channel_text='thought\n'),
          PromptState(continues=True)]


@pytest.mark.parametrize('which', ['tiny', 'real'])
def test_any_ids_are_read_however_they_are_cut(which: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(which)

    @settings(RELAXED, max_examples=400)
    @given(ids=random_ids(tokenizer), cuts=st.lists(st.integers(0, 60), max_size=6),
           state=st.sampled_from(STATES), tools=st.sampled_from([None, {'f': {}}]),
           finish=st.sampled_from([None, *FinishReason]))
    def check(ids: list[int], cuts: list[int], state: PromptState, tools: Any,
              finish: FinishReason | None) -> None:
        outputs = []
        for borders in ([0, len(ids)], sorted({0, len(ids), *[min(c, len(ids)) for c in cuts]}),
                        list(range(len(ids) + 1))):
            parser = OutputParser(tokenizer, tools, prompt=state)
            deltas = [delta for start, end in zip(borders, borders[1:], strict=False)
                      for delta in parser.push(ids[start:end])]
            output = parser.finish(finish)
            deltas += output.deltas
            assert ''.join(delta.text for delta in deltas) == output.content
            assert ''.join(delta.reasoning for delta in deltas) == output.reasoning
            assert output.content.rstrip() == output.content
            for index, call in enumerate(output.tool_calls):
                joined = ''.join(delta.arguments for delta in deltas if delta.call_index == index)
                assert json.loads(joined, parse_constant=None) == call.arguments
            assert ParserDelta() not in deltas
            assert parser.finish() is output
            outputs.append(output)
        assert outputs[0] == outputs[1] == outputs[2]
        if finish in (None, FinishReason.LENGTH) and tokenizer.controls.stop_ids.isdisjoint(ids) \
                and tokenizer.controls.turn not in ids:
            assert outputs[0].finish_reason is FinishReason.LENGTH

    check()


@RELAXED
@given(values=st.lists(st.integers(0, 255), max_size=30), cut=st.integers(0, 30))
def test_detokenizer_equals_decode(tiny: Tokenizer, values: list[int], cut: int) -> None:
    by_value = {value: token_id for token_id, value in tiny.byte_values.items()}
    ids = [by_value[value] for value in values]
    ids[cut:cut] = tiny.encode('é <|turn>')
    detokenizer = Detokenizer(tiny)
    pieces = [detokenizer.push(ids[:cut]), *[detokenizer.push([i]) for i in ids[cut:]],
              detokenizer.flush()]
    assert ''.join(pieces) == tiny.decode(ids)
    assert '\ufffd' not in ''.join(pieces).replace(bytes(values).decode('utf-8', 'ignore'), '')


def oracle(body: str) -> bool:
    """The grammar once more, by another way: rewrite the body as JSON and let json judge."""
    pieces = body.split(DELIMITER)
    if len(pieces) % 2 == 0 or any('"' in piece for piece in pieces[::2]):
        return False
    text = ''.join(piece if index % 2 == 0 else f'"\\u0000{index}"'
                   for index, piece in enumerate(pieces))
    head = re.match(r'[ \t\r\n]*call[ \t\r\n]*:[ \t\r\n]*(?![:\s])([^\s"\'\[\]{}()<>,=]+)(?<!:)'
                    r'[ \t\r\n]*(?=\{)', text)
    if head is None:
        return False
    quoted = re.sub(r'([{,][ \t\r\n]*)([^,:{}\[\]="\'<>\r\n]+)(?=[ \t\r\n]*:)',
                    lambda match: match[1] + json.dumps(match[2]), text[head.end():])

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key.strip(' \t') for key, _ in pairs]
        if len(set(keys)) < len(keys) or '' in keys or any('\0' in key for key in keys):
            raise ValueError
        return dict(pairs)

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return isinstance(json.loads(quoted, object_pairs_hook=unique, parse_constant=refuse),
                          dict)
    except ValueError:
        return False


BODY = st.lists(st.one_of(
    st.sampled_from(['call', ':', 'f', '{', '}', '[', ']', ',', 'a:', 'b:', 'a', '1', '-0', '007',
                     '1.', '.5', '1e5', 'true', 'null', 'True', ' ', '\n', '"', "'", '=', '<',
                     DELIMITER, 'k k:', '{a:1}', '[1,2]', f'a:{DELIMITER}x{DELIMITER}', 'NaN'])),
    max_size=12)


@settings(RELAXED, max_examples=1500)
@given(parts=BODY, framed=st.booleans())
def test_strict_reader_agrees_with_another_one(parts: list[str], framed: bool) -> None:
    body = ''.join(parts)
    if framed:
        body = f'call:f{{a:1,{body}}}'
    assert (read_strict(body) is not None) == oracle(body)


def test_the_oracle_catches_a_lenient_reader() -> None:
    """The planted errors: what a lenient reader would let through."""
    for body in ('call:f{a=1}', 'call:f{a:1,a:2}', 'call:f{a:x}', 'call:f{a:"x"}', 'call:f{a:007}',
                 'call:f{a:1,}', 'call:f{a:1}}', 'f{a:1}', 'call:f{a:NaN}', 'call:f{a<:1}',
                 f'call:f{{{DELIMITER}a{DELIMITER}:1}}', 'call:f {a:1} x'):
        assert not oracle(body)
    assert oracle(f'call:f{{a:{DELIMITER}x"{DELIMITER}, b b : [1 , -0.5e3]}}')
