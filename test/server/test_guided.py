# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Guided answers by the real openai client, over a scripted model that wants to say other things.

Its logits are 80 for what it wants and 0 for the rest, so that at temperature 0 the lowest id is
taken where what it wants may not come: the end, where one is allowed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from .conftest import Server, StartServer

VECTORS = Path(__file__).resolve().parents[1] / 'data' / 'vectors' / 'http.jsonl'
CASES = {case['id']: case for case in map(json.loads, VECTORS.read_text().splitlines())}
USER: Any = [{'role': 'user', 'content': 'level?'}]
TOOLS: Any = [
    {'type': 'function', 'function': {'name': 'get_battery', 'description': 'Battery level',
                                      'parameters': {'type': 'object', 'properties': {}}}},
    {'type': 'function', 'function': {
        'name': 'say', 'description': 'Speak',
        'parameters': {'type': 'object', 'properties': {'text': {'type': 'string'}},
                       'required': ['text']}}}]
BY_NAME = {tool['function']['name']: tool for tool in TOOLS}
REFUSAL = 'I would rather talk about the weather' + ' and the sea' * 8 + '<turn|>'
# Words, then nothing but string delimiters: closes a string that it was made to begin.
CLOSER = 'hello there' + '<|"|>' * 12 + '<turn|>'
CALL = '<|tool_call>call:get_battery{}<tool_call|>'
SAY = '<|tool_call>call:say{text:<|"|>hi<|"|>}<tool_call|>'
THOUGHT = '<|channel>thought\nI need the level.\n<channel|>'
PROMPTED = 'I need the level.<channel|>'


def ask(server: Server, **options: Any) -> Any:
    body = {'model': 'scripted', 'messages': USER, 'temperature': 0, 'max_tokens': 120, **options}
    return server.client().chat.completions.create(**body).choices[0]


def calls(choice: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments))
            for call in choice.message.tool_calls or []]


def test_h02_a_required_call_comes_and_ends(start_server: StartServer) -> None:
    case, server = CASES['H02'], start_server(REFUSAL)
    request, expected = case['request'], case['expected']
    choice = ask(server, tools=[BY_NAME[name] for name in request['tools']],
                 tool_choice=request['tool_choice'], max_tokens=request['max_tokens'])
    assert expected['tool_calls_min'] <= len(calls(choice)) <= expected['tool_calls_max']
    assert choice.message.content is expected['content']
    assert choice.finish_reason == expected['finish_reason']
    assert not choice.message.tool_calls[0].repaired


def test_h03_the_named_tool_is_called_once(start_server: StartServer) -> None:
    case = CASES['H03']
    for script in (CLOSER, SAY * 3):
        choice = ask(start_server(script), tools=TOOLS,
                     tool_choice=case['request']['tool_choice'])
        assert [name for name, _ in calls(choice)] == case['expected']['tool_calls_names']
        assert choice.finish_reason == 'tool_calls'
        assert choice.message.content is None


@pytest.mark.parametrize('script', ['{"n": 12}<turn|>', '   ' * 200, '\n' * 300, 'Twelve.<turn|>'])
def test_h05_the_text_is_json_and_ends(start_server: StartServer, script: str) -> None:
    """Also when the model wants blanks for ever: no more than a few in a row are allowed."""
    case, server = CASES['H05'], start_server(script)
    for temperature in (0, 1.5):
        choice = ask(server, temperature=temperature, seed=3, **case['request'])
        text = choice.message.content
        assert isinstance(json.loads(text)['n'], int)
        assert set(json.loads(text)) == {'n'}
        assert choice.finish_reason == 'stop'
        assert len(max(text.split('"n"'), key=len)) < 64
        assert ' ' * 7 not in text
        assert '\n\n' not in text


@pytest.mark.parametrize('thinking', [False, True])
@pytest.mark.parametrize(('tool_choice', 'script', 'names'), [
    ('required', CALL + SAY, ['get_battery', 'say']), ('required', SAY + REFUSAL, ['say']),
    ('required', REFUSAL, None), ('auto', 'One moment.' + CALL, ['get_battery']),
    ('auto', REFUSAL, [])])
def test_calls_with_and_without_a_thought(start_server: StartServer, thinking: bool,
                                          tool_choice: Any, script: str, names: Any) -> None:
    """A thought may come first when thinking is on; text only where no call is required."""
    server = start_server((THOUGHT if thinking else '') + script)
    options: dict[str, Any] = {'extra_body': {'enable_thinking': True}} if thinking else {}
    choice = ask(server, tools=TOOLS, tool_choice=tool_choice, **options)
    reasoning = getattr(choice.message, 'reasoning_content', None)
    assert reasoning == ('I need the level.' if thinking else None)
    assert len(calls(choice)) >= (tool_choice == 'required')
    if names is not None:
        assert [name for name, _ in calls(choice)] == names
    assert (choice.message.content is None) == (tool_choice == 'required')
    assert choice.finish_reason == ('tool_calls' if calls(choice) else 'stop')


def test_no_thought_where_thinking_is_off(start_server: StartServer) -> None:
    choice = ask(start_server(THOUGHT + CALL), tools=TOOLS[:1], tool_choice='required')
    assert getattr(choice.message, 'reasoning_content', None) is None
    assert calls(choice) == [('get_battery', {})]


def test_a_prompt_that_ends_in_an_open_thought(start_server: StartServer) -> None:
    """Behind a tool's answer, with thinking on, the prompt has opened the thought already."""
    messages = [*USER,
                {'role': 'assistant', 'content': '', 'tool_calls': [
                    {'id': 'a', 'type': 'function',
                     'function': {'name': 'get_battery', 'arguments': '{}'}}]},
                {'role': 'tool', 'tool_call_id': 'a', 'content': '{"level": 80}'}]
    schema = {'type': 'object', 'properties': {'level': {'type': 'integer'}},
              'required': ['level']}
    server = start_server(PROMPTED + '{"level": 80}<turn|>')
    text = ask(server, messages=messages, tools=TOOLS, extra_body={'enable_thinking': True},
               response_format={'type': 'json_schema',
                                'json_schema': {'name': 'level', 'schema': schema}})
    assert text.message.reasoning_content == 'I need the level.'
    assert json.loads(text.message.content) == {'level': 80}
    call = ask(start_server(PROMPTED + SAY + REFUSAL), messages=messages, tools=TOOLS,
               tool_choice='required', extra_body={'enable_thinking': True})
    assert call.message.reasoning_content == 'I need the level.'
    assert calls(call) == [('say', {'text': 'hi'})]


def test_one_call_where_parallel_ones_are_not_wanted(start_server: StartServer) -> None:
    server = start_server('I say it.' + SAY + SAY + CALL + 'Done.<turn|>')
    assert len(calls(ask(server, tools=TOOLS))) == 3
    choice = ask(server, tools=TOOLS, parallel_tool_calls=False)
    assert calls(choice) == [('say', {'text': 'hi'})]
    assert (choice.message.content, choice.finish_reason) == ('I say it.', 'tool_calls')
    choice = ask(server, tools=TOOLS, parallel_tool_calls=False, tool_choice='required')
    assert len(calls(choice)) == 1


def test_allowed_tools_narrow_the_choice(start_server: StartServer) -> None:
    allowed = {'type': 'allowed_tools', 'allowed_tools': {
        'mode': 'auto', 'tools': [{'type': 'function', 'function': {'name': 'get_battery'}}]}}
    choice = ask(start_server(SAY + '<turn|>'), tools=TOOLS, tool_choice=allowed)
    assert {name for name, _ in calls(choice)} == {'get_battery'}
    choice = ask(start_server('No.<turn|>'), tools=TOOLS, tool_choice=allowed)
    assert (choice.message.content, calls(choice)) == ('No.', [])


def test_none_shows_no_tools(start_server: StartServer) -> None:
    server = start_server('x<turn|>')
    with_tools, without = (server.post({'messages': USER, **extra}).json()['usage'] for extra in (
        {'tools': TOOLS, 'tool_choice': 'none'}, {}))
    assert with_tools['prompt_tokens'] == without['prompt_tokens']


WRONG = '<|tool_call>call:fly{height:<|"|>9<|"|>}<tool_call|><turn|>'


def test_a_call_that_begins_is_one_of_a_declared_tool(start_server: StartServer) -> None:
    """What the model wants is no declared tool. Unless it is held to them, that comes out."""
    choice = ask(start_server(WRONG), tools=TOOLS[:1])
    assert calls(choice) == [('get_battery', {})]
    choice = ask(start_server(WRONG, tools__constrain_calls=False), tools=TOOLS[:1])
    assert calls(choice) == [('fly', {'height': '9'})]


def test_a_call_within_a_thought_or_without_its_opener_does_not_come(
        start_server: StartServer) -> None:
    server = start_server('<|channel>thought\nHm.' + CALL + '<channel|>Yes.<turn|>',
                          'call:get_battery{}<tool_call|>Yes.<turn|>')
    for _ in range(2):
        assert calls(ask(server, tools=TOOLS, extra_body={'enable_thinking': True})) == []


class Pose(BaseModel):
    x: float
    y: float
    frame: Literal['map', 'odom'] = 'map'


class Plan(BaseModel):
    goal: str
    poses: list[Pose]
    speed: float | None
    careful: bool


PLAN = ('{"goal": "the dock", "poses": [{"x": 1.5, "y": -2, "frame": "odom"}], "speed": null, '
        '"careful": true}')


def test_parse_gives_a_model_of_pydantic(start_server: StartServer) -> None:
    client = start_server(PLAN + ' and more<turn|>').client()
    answer = client.chat.completions.parse(model='scripted', messages=USER, temperature=0,
                                           response_format=Plan)
    plan = answer.choices[0].message.parsed
    assert plan == Plan(goal='the dock', poses=[Pose(x=1.5, y=-2.0, frame='odom')], speed=None,
                        careful=True)


def test_parse_gives_tool_arguments_of_pydantic(start_server: StartServer) -> None:
    raw = ('<|tool_call>call:Plan{careful:true,goal:<|"|>dock<|"|>,poses:[{frame:<|"|>map<|"|>,'
           'x:1,y:2}],speed:0.5}<tool_call|><|tool_response>')
    client = start_server(raw).client()
    answer = client.chat.completions.parse(
        model='scripted', messages=USER, temperature=0, tool_choice='required',
        tools=[openai.pydantic_function_tool(Plan)])
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.parsed_arguments == Plan(
        goal='dock', poses=[Pose(x=1, y=2)], speed=0.5, careful=True)


def test_a_stream_is_guided_as_the_whole(start_server: StartServer) -> None:
    client = start_server(PLAN + '<turn|>').client()
    with client.chat.completions.stream(model='scripted', messages=USER, temperature=0,
                                        response_format=Plan) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == PLAN
    assert final.choices[0].message.parsed is not None


def test_responses_are_guided_too(start_server: StartServer) -> None:
    server = start_server(PLAN + '<turn|>')
    answer = server.client().responses.parse(model='scripted', input='plan', temperature=0,
                                             text_format=Plan)
    assert answer.output_parsed is not None
    assert answer.output_parsed.goal == 'the dock'
    server = start_server(REFUSAL)
    tools: Any = [{'type': 'function', **tool['function']} for tool in TOOLS]
    for choice in ('required', {'type': 'function', 'name': 'get_battery'},
                   {'type': 'allowed_tools', 'mode': 'required',
                    'tools': [{'type': 'function', 'name': 'get_battery'}]}):
        answer = server.client().responses.create(
            model='scripted', input='level?', temperature=0, tools=tools[:1],
            tool_choice=choice)                          # type: ignore[arg-type]
        assert [item.type for item in answer.output] == ['function_call']


def test_json_object_with_a_schema_is_held_to_it(start_server: StartServer) -> None:
    answer = start_server(PLAN + '<turn|>').post({'messages': USER, 'response_format': {
        'type': 'json_object', 'schema': {'enum': [[7]]}}}).json()
    assert json.loads(answer['choices'][0]['message']['content']) == [7]


def schema_format(schema: Any) -> Any:
    return {'type': 'json_schema', 'json_schema': {'name': 'n', 'schema': schema}}


NESTED = {'type': 'object', 'properties': {'a/b': {'not': {'type': 'null'}}}}


@pytest.mark.parametrize(('extra', 'words'), [
    ({'response_format': schema_format(NESTED)},
     'response_format.json_schema.schema: not at /properties/a~1b/not is not supported'),
    ({'response_format': schema_format({'type': 'array', 'uniqueItems': True})}, '/uniqueItems'),
    ({'response_format': schema_format({'type': 'obj'})}, 'is no JSON schema'),
    ({'response_format': {'type': 'json_schema'}}, 'response_format.schema is missing'),
    ({'response_format': {'type': 'json_schema', 'json_schema': {'type': 'object'}}},
     'response_format.json_schema.schema is missing'),
    ({'response_format': {'type': 'json_object', 'schema': NESTED}},
     'response_format.schema: not at /properties/a~1b/not'),
    ({'response_format': schema_format(7)}, 'must be a JSON schema object'),
    ({'response_format': schema_format({'$ref': '#/$defs/x'})}, "'#/$defs/x'"),
    ({'response_format': schema_format({'type': 'string', 'pattern': '(?=a)'})}, '/pattern'),
    ({'response_format': {'type': 'xml'}}, "'xml'"),
    ({'tool_choice': 'required'}, 'no tools'), ({'tool_choice': 'sometimes'}, "'sometimes'"),
    ({'tool_choice': {'type': 'function', 'function': {'name': 'fly'}}, 'tools': TOOLS}, "'fly'"),
    ({'tool_choice': {'type': 'custom'}, 'tools': TOOLS}, "'custom'"),
    ({'tool_choice': {'type': 'function'}, 'tools': TOOLS}, 'names no function'),
    ({'tool_choice': 'required', 'ignore_eos': True, 'tools': TOOLS}, 'ignore_eos'),
    ({'tool_choice': 'required', 'tools': [{'type': 'function', 'function': {
        'name': 'f', 'parameters': NESTED}}]},
     'tools[0].function.parameters: not at /properties/a~1b/not'),
    ({'tools': [{'type': 'function', 'function': {
        'name': 'f', 'strict': True, 'parameters': NESTED}}]},
     'tools[0].function.parameters: not at /properties/a~1b/not')])
def test_what_can_not_be_kept_is_refused_by_its_pointer(plain_server: Server, extra: Any,
                                                        words: str) -> None:
    answer = plain_server.post({'messages': USER, **extra})
    assert answer.status_code == 400
    assert words in answer.json()['error']['message']


def test_a_loose_tool_keeps_its_name_where_its_schema_can_not_be_kept(
        start_server: StartServer) -> None:
    tool = {'type': 'function', 'function': {'name': 'f', 'parameters': NESTED}}
    raw = '<|tool_call>call:f{b:[1,{c:<|"|>x<|"|>}]}<tool_call|><turn|>'
    assert calls(ask(start_server(raw), tools=[tool])) == [('f', {'b': [1, {'c': 'x'}]})]


def test_choices_are_guided_one_by_one(start_server: StartServer) -> None:
    server = start_server(REFUSAL)
    body = {'messages': USER, 'n': 3, 'tools': TOOLS[:1], 'tool_choice': 'required',
            'temperature': 0}
    found = server.post(body).json()['choices']
    assert [choice['finish_reason'] for choice in found] == ['tool_calls'] * 3
