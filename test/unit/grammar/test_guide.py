# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What may follow what in an answer: thoughts, text, calls, JSON and the end, and the way back."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.guide import AnswerGuide, Contents, Guides
from gemma_thor_ros.schema import ChatRequest, RequestError
from gemma_thor_ros.text.grammar import MAX_ROLLBACK, GrammarError, Grammars, Tool
from gemma_thor_ros.text.parser import OutputParser
from gemma_thor_ros.text.prompt import PromptState
from gemma_thor_ros.text.segments import encode_segments, split_markers
from gemma_thor_ros.text.tokenizer import Tokenizer

from .walks import CALL, CALL_END, STOPS, Walker, ids_of

SAY = {'type': 'object', 'properties': {'text': {'type': 'string'}}, 'required': ['text']}
TOOLS = [Tool('get_battery', None), Tool('say', SAY)]
LEVEL = {'type': 'object', 'properties': {'level': {'type': 'integer'}}, 'required': ['level']}
THOUGHT = '<|channel>thought\nHm, {"level": 1}.\n<channel|>'
BATTERY = '<|tool_call>call:get_battery{}<tool_call|>'
HELLO = '<|tool_call>call:say{text:<|"|>hello<|"|>}<tool_call|>'
JSON = '{"level": 80}'
MODES = ('auto', 'auto_single', 'required', 'required_single', 'json', 'json_or_call')


def contents(grammars: Grammars, mode: str, **fields: Any) -> Contents:
    calls = None if mode == 'json' else grammars.calls(TOOLS)
    content = grammars.answer(LEVEL, 'schema') if mode.startswith('json') else None
    return Contents(calls, content, mode.startswith('required'), mode.endswith('single'), **fields)


def follows(tokenizer: Tokenizer, grammars: Grammars, what: Contents, raw: str) -> str:
    """'' when an answer as raw text is let through to its end, else what is not."""
    guide = AnswerGuide(grammars, what)
    for token_id in encode_segments(split_markers(raw), tokenizer):
        allowed = guide.allowed()
        fits = token_id not in guide.banned if allowed is None else token_id in ids_of(allowed)
        if not fits:
            return tokenizer.decode([token_id])
        guide.accept(token_id)
    return '' if guide.finished else 'no end'


@pytest.mark.parametrize(('mode', 'think', 'raw', 'stuck'), [
    ('auto', False, 'Full.<turn|>', ''), ('auto', False, BATTERY + '<|tool_response>', ''),
    ('auto', False, 'I look.' + BATTERY + HELLO + 'Done.<eos>', ''),
    ('auto', False, THOUGHT + BATTERY + '<turn|>', ''),
    ('auto', False, 'call:say{}<tool_call|>', '<tool_call|>'),
    ('auto', False, '<|channel>thought\n' + BATTERY, '<|tool_call>'),
    ('auto', False, '<|tool_call>call:fly{}', 'f'),
    ('auto', False, '<|tool_call>call:say{text:<|"|>a<turn|>', '<turn|>'),
    ('auto_single', False, 'I look.' + BATTERY + '<turn|>', ''),
    ('auto_single', False, BATTERY + BATTERY, '<|tool_call>'),
    ('auto_single', False, BATTERY + ' And', ' '),
    ('required', False, BATTERY + HELLO + '<|tool_response>', ''),
    ('required', False, BATTERY + '<eos>', ''), ('required', False, 'Full.', 'F'),
    ('required', False, '<turn|>', '<turn|>'), ('required', False, BATTERY + 'x', 'x'),
    ('required', False, THOUGHT + BATTERY, '<|channel>'),
    ('required', True, THOUGHT + BATTERY + '<turn|>', ''),
    ('required', True, THOUGHT + THOUGHT, '<|channel>'), ('required', True, THOUGHT + 'x', 'x'),
    ('required', True, '<|channel>thought\n<turn|>', '<turn|>'),
    ('required', True, '<|channel>thought\n<|tool_call>', '<|tool_call>'),
    ('required_single', False, BATTERY + '<turn|>', ''),
    ('required_single', False, HELLO + BATTERY, '<|tool_call>'),
    ('json', False, JSON + '<turn|>', ''), ('json', False, JSON + '<|tool_response>', ''),
    ('json', True, THOUGHT + JSON + '<turn|>', ''), ('json', False, THOUGHT, '<|channel>'),
    ('json', False, '{"level": <turn|>', '<turn|>'), ('json', False, BATTERY, '<|tool_call>'),
    ('json', False, JSON + ' and', ' '), ('json', False, 'The', 'T'),
    ('json_or_call', False, JSON + '<turn|>', ''), ('json_or_call', False, HELLO + '<turn|>', ''),
    ('json_or_call', True, THOUGHT + BATTERY + '<turn|>', ''),
    ('json_or_call', False, BATTERY + JSON, '{'), ('json_or_call', False, JSON + BATTERY,
                                                   '<|tool_call>')])
def test_what_may_follow_what(tokenizer: Tokenizer, grammars: Grammars, mode: str, think: bool,
                              raw: str, stuck: str) -> None:
    found = follows(tokenizer, grammars, contents(grammars, mode, may_think=think), raw)
    assert found.startswith(stuck) if stuck else not found


@pytest.mark.parametrize(('mode', 'rest'), [
    ('auto', BATTERY + '<turn|>'), ('required', HELLO + '<turn|>'), ('json', JSON + '<turn|>')])
def test_a_prompt_that_ends_inside_a_thought(tokenizer: Tokenizer, grammars: Grammars, mode: str,
                                             rest: str) -> None:
    """It is closed first, and no other one follows where one is not free to come."""
    for think in (False, True):
        what = contents(grammars, mode, may_think=think, in_thought=True)
        assert not follows(tokenizer, grammars, what, 'Let me see.<channel|>' + rest)
        assert follows(tokenizer, grammars, what, rest)
        if mode != 'auto':
            assert follows(tokenizer, grammars, what, 'x<channel|>' + THOUGHT) == '<|channel>'


class Model:
    """Prefers tokens by chance, and some of the structure's."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.rng = random.Random(seed)
        self.size = tokenizer.vocab_size
        self.controls = sorted(tokenizer.control_ids)
        self.closer = Walker(tokenizer, self.rng, 'close')

    def choose(self, guide: AnswerGuide, closing: bool) -> int:
        allowed = guide.allowed()
        ids = (sorted(set(range(self.size)) - set(guide.banned)) if allowed is None
               else ids_of(allowed))
        if closing:
            ends = [i for i in ids if i in STOPS or i == 101]
            if ends:
                return min(ends, key=lambda i: (i == 101, i))
            return self.closer.choose(ids)
        if self.rng.random() < 0.4:
            return self.rng.choice([i for i in ids if i in self.controls] or ids)
        return self.rng.choice(ids)


@settings(deadline=None, max_examples=150,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2 ** 32 - 1), mode=st.sampled_from(MODES), think=st.booleans(),
       inside=st.booleans())
def test_whatever_the_model_wants_the_answer_is_what_it_has_to_be(
        tokenizer: Tokenizer, grammars: Grammars, seed: int, mode: str, think: bool,
        inside: bool) -> None:
    """Every call is whole, declared, valid and not repaired; a free one goes back at any time."""
    what = contents(grammars, mode, may_think=think, in_thought=inside)
    guide, model = AnswerGuide(grammars, what), Model(tokenizer, seed)
    tokens: list[int] = []
    while not guide.finished:
        assert len(tokens) < 1500
        token_id = model.choose(guide, closing=len(tokens) >= 40)
        guide.accept(token_id)
        tokens.append(token_id)
        if model.rng.random() < 0.1:                     # drafts that are not taken
            count = min(len(tokens), model.rng.randint(1, 16))
            masks = []
            for _ in range(2):
                guide.rollback(count)
                masks.append([(guide.allowed(), guide.banned)])
                for again in tokens[len(tokens) - count:]:
                    guide.accept(again)
                    masks[-1].append((guide.allowed(), guide.banned))
            assert masks[0] == masks[1]
    schemas = {'get_battery': {}, 'say': SAY}
    parser = OutputParser(tokenizer, schemas, in_thought=inside)
    parser.push(tokens)
    output = parser.finish()
    assert not output.malformed
    for call in output.tool_calls:
        assert not call.repaired
        assert call.arguments == {} if call.name == 'get_battery' \
            else list(call.arguments) == ['text']
    if mode.startswith('required'):
        assert output.tool_calls
        assert output.content == ''
    if mode.endswith('single'):
        assert len(output.tool_calls) <= 1
    if mode.startswith('json'):
        assert bool(output.content) != bool(output.tool_calls)
    if not (think or inside) and not mode.startswith('auto'):
        assert output.reasoning == ''


def test_the_way_back_crosses_calls_and_thoughts(tokenizer: Tokenizer,
                                                 grammars: Grammars) -> None:
    what = contents(grammars, 'auto')
    raw = THOUGHT + 'x' + BATTERY + HELLO + 'y<turn|>'
    tokens = encode_segments(split_markers(raw), tokenizer)
    guide, masks = AnswerGuide(grammars, what), []
    for token_id in tokens:
        masks.append((guide.allowed(), guide.banned))
        guide.accept(token_id)
    assert guide.finished
    for start in (len(tokens) - 1, len(tokens) // 2, max(0, len(tokens) - MAX_ROLLBACK)):
        guide.rollback(len(tokens) - start)
        for index, token_id in enumerate(tokens[start:], start):
            assert (guide.allowed(), guide.banned) == masks[index]
            guide.accept(token_id)
    with pytest.raises(GrammarError):
        guide.rollback(MAX_ROLLBACK + 1)


def test_a_wrong_token_raises(tokenizer: Tokenizer, grammars: Grammars) -> None:
    for mode, token_id in (('required', 106), ('required', 700), ('required', CALL_END),
                           ('required', 100), ('json', 106), ('json', CALL), ('json', 0)):
        with pytest.raises(GrammarError):
            AnswerGuide(grammars, contents(grammars, mode)).accept(token_id)
    guide = AnswerGuide(grammars, contents(grammars, 'json'))
    for token_id in tokenizer.encode(JSON):
        guide.accept(token_id)
    guide.accept(1)
    assert ids_of(guide.allowed() or b'') == []
    with pytest.raises(GrammarError):
        guide.accept(1)


def request(**fields: Any) -> ChatRequest:
    tools = [{'type': 'function', 'function': {'name': 'get_battery'}},
             {'type': 'function', 'function': {'name': 'say', 'parameters': SAY}}]
    return replace(ChatRequest(({'role': 'user', 'content': 'x'},), tuple(tools)), **fields)


@pytest.mark.parametrize(('fields', 'constrain', 'guided'), [
    ({}, True, True), ({}, False, False), ({'tools': ()}, True, False),
    ({'parallel_tool_calls': False}, False, True), ({'tool_choice': 'required'}, False, True),
    ({'tool_names': ('say',)}, False, True), ({'tool_choice': 'none'}, True, False),
    ({'response_schema': LEVEL}, False, True), ({'tools': (), 'response_schema': {}}, True, True),
    ({'sampling': {'ignore_eos': True}}, True, False)])
def test_which_requests_have_a_guide(grammars: Grammars, fields: dict[str, Any], constrain: bool,
                                     guided: bool) -> None:
    guides = Guides(grammars, EngineConfig.from_mapping({'tools.constrain_calls': constrain}))
    assert (guides.make(request(**fields), PromptState(), False) is not None) == guided


def test_a_request_becomes_contents(tokenizer: Tokenizer, grammars: Grammars) -> None:
    guides = Guides(grammars, EngineConfig())

    def stuck(raw: str, thinks: bool = False, prompt: PromptState | None = None,
              **fields: Any) -> str:
        guide = guides.make(request(**fields), prompt or PromptState(), thinks)
        assert guide is not None
        return follows(tokenizer, grammars, guide._contents, raw)

    assert not stuck(BATTERY + HELLO + '<turn|>')
    assert stuck(HELLO, tool_names=('get_battery',))
    assert not stuck(HELLO + '<turn|>', tool_names=('say',), tool_choice='required')
    assert stuck(HELLO + HELLO, tool_names=('say',), tool_choice='required') == '<|tool_call>'
    assert not stuck(HELLO + HELLO + '<turn|>', tool_choice='required')
    assert stuck(JSON, tool_choice='required', response_schema=LEVEL) == '{'
    assert not stuck(JSON + '<turn|>', response_schema=LEVEL)
    assert not stuck(THOUGHT + JSON + '<turn|>', True, response_schema=LEVEL)
    open_thought = PromptState(channel_text='thought\n')
    assert not stuck('x<channel|>' + JSON + '<turn|>', True, open_thought, response_schema=LEVEL)


def test_schemas_that_can_not_be_kept(grammars: Grammars) -> None:
    guides = Guides(grammars, EngineConfig())
    odd = {'properties': {'a': {'not': {}}}}
    function = {'name': 'odd', 'parameters': odd}
    tools = ({'type': 'function', 'function': function},)
    assert guides.make(request(tools=tools), PromptState(), False) is not None
    strict = ({'type': 'function', 'function': {**function, 'strict': True}},)
    for fields in ({'tools': tools, 'tool_choice': 'required'}, {'tools': strict},
                   {'response_schema': odd}):
        with pytest.raises(RequestError) as caught:
            guides.make(request(**fields), PromptState(), False)
        assert '/properties/a/not' in caught.value.message
