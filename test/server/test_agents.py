# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Agent loops as programs write them: the openai client, LangChain, and the demo model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.server.run import Sidecar

from .conftest import Server, StartServer

THOUGHT = '<|channel>thought\nFirst the battery.\n<channel|>'
BATTERY = '<|tool_call>call:get_battery{}<tool_call|><|tool_response>'
DRIVE = '<|tool_call>call:drive{distance:2.5}<tool_call|><|tool_response>'
DONE = 'I drove 2.5 metres at 80 percent.<turn|>'
SCRIPT = (THOUGHT + BATTERY, 'Enough for it.' + DRIVE, DONE)


def function(name: str, description: str, **properties: Any) -> Any:
    return {'type': 'function', 'function': {
        'name': name, 'description': description, 'parameters': {
            'type': 'object', 'properties': properties, 'required': list(properties)}}}


TOOLS: Any = [function('get_battery', 'Battery level'),
              function('drive', 'Drive ahead', distance={'type': 'number'})]
RESULTS = {'get_battery': '80', 'drive': '{"driven": 2.5}'}


def answered(messages: list[Any], seen: list[Any]) -> list[Any]:
    """Results of the calls in the last message."""
    results = []
    for call in messages[-1].get('tool_calls') or ():
        name = call['function']['name']
        seen.append((name, json.loads(call['function']['arguments'])))
        results.append({'role': 'tool', 'tool_call_id': call['id'], 'content': RESULTS[name]})
    return results


def test_an_answer_without_calls_has_no_such_key(plain_server: Server) -> None:
    message = plain_server.post({'messages': [{'role': 'user', 'content': 'x'}]}).json()
    assert message['choices'][0]['message'] == {
        'role': 'assistant', 'content': 'x', 'refusal': None}


@pytest.mark.parametrize('stream', [False, True])
def test_three_rounds_with_the_openai_client(start_server: StartServer, stream: bool) -> None:
    client = start_server(*SCRIPT).client()
    messages: list[Any] = [{'role': 'system', 'content': 'You are a robot.'},
                           {'role': 'user', 'content': 'Drive 2.5 m if the battery allows.'}]
    seen: list[Any] = []
    for _ in range(3):
        options: Any = {'model': 'scripted', 'messages': messages, 'tools': TOOLS}
        if stream:
            with client.chat.completions.stream(**options) as events:
                for _event in events:
                    pass
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**options).choices[0].message
        messages.append(message.to_dict())
        messages += answered(messages, seen)
    assert seen == [('get_battery', {}), ('drive', {'distance': 2.5})]
    assert messages[-1]['content'] == 'I drove 2.5 metres at 80 percent.'
    assert [message['role'] for message in messages] == [
        'system', 'user', 'assistant', 'tool', 'assistant', 'tool', 'assistant']


def test_three_rounds_over_responses(start_server: StartServer) -> None:
    client = start_server(*SCRIPT).client()
    tools: Any = [{'type': 'function', 'strict': False, **item['function']} for item in TOOLS]
    seen = []
    given: Any = 'Drive 2.5 m if the battery allows.'
    before = None
    for _ in range(3):
        response = client.responses.create(model='scripted', input=given, tools=tools,
                                           previous_response_id=before)
        before, given = response.id, []
        for item in response.output:
            if item.type == 'function_call':
                seen.append((item.name, json.loads(item.arguments)))
                given.append({'type': 'function_call_output', 'call_id': item.call_id,
                              'output': RESULTS[item.name]})
    assert seen == [('get_battery', {}), ('drive', {'distance': 2.5})]
    assert response.output_text == 'I drove 2.5 metres at 80 percent.'


@tool
def get_battery() -> str:
    """Battery level"""
    return RESULTS['get_battery']


@tool
def drive(distance: float) -> str:
    """Drive ahead"""
    return RESULTS['drive']


@pytest.mark.parametrize('responses_api', [False, True])
@pytest.mark.parametrize('stream', [False, True])
def test_three_rounds_with_langchain(start_server: StartServer, stream: bool,
                                     responses_api: bool) -> None:
    url = start_server(*SCRIPT).url
    model = ChatOpenAI(model='scripted', base_url=f'{url}/v1', api_key=SecretStr('none'),
                       max_retries=0, temperature=0.5, use_responses_api=responses_api,
                       stream_usage=True)
    agent = model.bind_tools([get_battery, drive])
    tools = {'get_battery': get_battery, 'drive': drive}
    messages: list[Any] = [SystemMessage('You are a robot.'), HumanMessage('Drive 2.5 m.')]
    seen = []
    for _ in range(3):
        if stream:
            answer: Any = None
            for chunk in agent.stream(messages):
                assert isinstance(chunk, AIMessageChunk)
                answer = chunk if answer is None else answer + chunk
        else:
            answer = agent.invoke(messages)
        assert answer.usage_metadata['output_tokens'] > 0
        messages.append(answer)
        for call in answer.tool_calls:
            seen.append((call['name'], call['args']))
            result = tools[call['name']].invoke(call['args'])
            messages.append(ToolMessage(result, tool_call_id=call['id']))
    assert seen == [('get_battery', {}), ('drive', {'distance': 2.5})]
    assert answer.text == 'I drove 2.5 metres at 80 percent.'


class Report(BaseModel):
    """State of the robot"""

    battery: int
    docked: bool


@pytest.mark.parametrize(('method', 'raw'), [
    ('json_schema', '{"battery": 80, "docked": true}<turn|>'),
    ('function_calling', '<|tool_call>call:Report{battery:80,docked:true}<tool_call|>')])
def test_structured_output_with_langchain(start_server: StartServer, method: Any,
                                          raw: str) -> None:
    url = start_server(raw).url
    model = ChatOpenAI(model='scripted', base_url=f'{url}/v1', api_key=SecretStr('none'),
                       max_retries=0, temperature=0.5)
    asker = model.with_structured_output(Report, method=method)
    assert asker.invoke('How are you?') == Report(battery=80, docked=True)


def test_a_chosen_tool_with_langchain(demo_server: Server) -> None:
    """The real model has to call the tool that was named, whatever it would do."""
    model = ChatOpenAI(model='demo', base_url=f'{demo_server.url}/v1', api_key=SecretStr('none'),
                       max_retries=0, temperature=0.0)
    agent = model.bind_tools([get_battery, drive], tool_choice='get_battery')
    calls = agent.invoke('hello').tool_calls
    assert [(call['name'], call['args']) for call in calls] == [('get_battery', {})]


@pytest.fixture(scope='module')
def demo_server() -> Iterator[Server]:
    config = EngineConfig.from_mapping({'http.port': 0})
    runtime = Runtime(config)
    sidecar = Sidecar(runtime, config)
    runtime.start()
    url = f'http://127.0.0.1:{sidecar.start()}'
    assert runtime.wait_ready(60.0), runtime.error
    yield Server(runtime, sidecar, url)
    runtime.stop(5.0)
    sidecar.stop(5.0)


UNIT = {'type': 'string', 'enum': ['m', 'cm', 'mm', 'ft', 'in'], 'description': 'Unit of distance'}
ROBOT: Any = [
    function('drive', 'Drive straight ahead or back.',
             distance={'type': 'number', 'description': 'How far, a positive number'}, unit=UNIT,
             direction={'type': 'string', 'enum': ['forward', 'backward']}),
    function('turn', 'Turn on the spot.',
             angle={'type': 'number', 'description': 'How far, a positive number'},
             unit={'type': 'string', 'enum': ['deg', 'rad'], 'description': 'Unit of angle'},
             direction={'type': 'string', 'enum': ['left', 'right']}),
    function('dock', 'Drive to the charging dock.'),
    function('say', 'Speak a sentence aloud.', text={'type': 'string'})]
COMMANDS = [
    ('drive two metres forward', 'drive', {'distance': 2, 'unit': 'm', 'direction': 'forward'},
     '{"distance_m": 2.0, "x": 2.0, "y": 0.0}'),
    ('turn left 90 degrees', 'turn', {'angle': 90, 'unit': 'deg', 'direction': 'left'},
     '{"angle_deg": 90.0}'),
    ('go to the dock', 'dock', {}, '{}')]


def test_three_commands_on_the_demo_model(demo_server: Server) -> None:
    """A real model calls, hears the result and says a sentence, three times in one talk."""
    client = demo_server.client(timeout=60.0)
    messages: list[Any] = []
    for command, name, arguments, result in COMMANDS:
        messages.append({'role': 'user', 'content': command})
        options: Any = {'model': 'demo', 'tools': ROBOT, 'temperature': 0.0}
        message = client.chat.completions.create(messages=messages, **options).choices[0].message
        assert message.tool_calls is not None, message
        call = message.tool_calls[0]
        assert call.type == 'function'
        assert (call.function.name, json.loads(call.function.arguments)) == (name, arguments)
        messages += [message.to_dict(),
                     {'role': 'tool', 'tool_call_id': call.id, 'content': result}]
        said = client.chat.completions.create(messages=messages, **options).choices[0].message
        assert said.content
        assert not said.tool_calls
        messages.append(said.to_dict())


def test_streamed_equals_whole_on_the_demo_model(demo_server: Server) -> None:
    """The same request and seed at temperature 1: the same text, whichever way and however warm
    the prefix cache.
    """
    client = demo_server.client(timeout=60.0)
    options: Any = {'model': 'demo', 'messages': [{'role': 'user', 'content': 'what can you do?'}],
                    'tools': ROBOT, 'temperature': 1.5, 'seed': 11, 'max_tokens': 48}
    whole = client.chat.completions.create(**options).choices[0]
    for _ in range(2):
        text, calls, finish = '', '', None
        for chunk in client.chat.completions.create(stream=True, **options):
            delta = chunk.choices[0].delta
            text += delta.content or ''
            calls += ''.join((piece.function and piece.function.arguments) or ''
                             for piece in delta.tool_calls or ())
            finish = chunk.choices[0].finish_reason or finish
        assert text == (whole.message.content or '')
        assert calls == ''.join(
            call.function.arguments for call in whole.message.tool_calls or ()
            if call.type == 'function')
        assert finish == whole.finish_reason


def test_a_thinking_budget_cuts_the_thought_and_no_more(demo_server: Server) -> None:
    """The call that follows a cut thought is as good as the one after a whole thought."""
    body = {'messages': [{'role': 'user', 'content': 'drive two metres forward'}], 'tools': ROBOT,
            'temperature': 0.0, 'enable_thinking': True}
    whole = demo_server.post(body).json()
    thought = whole['choices'][0]['message']['reasoning_content']
    assert len(thought.split()) > 4
    for budget in (0, 1, 3, 500):
        cut = demo_server.post({**body, 'thinking_budget': budget}).json()
        message = cut['choices'][0]['message']
        shown = message.get('reasoning_content', '')
        assert thought.startswith(shown)
        assert (shown == thought) is (budget == 500)
        assert bool(shown) is (budget > 0)
        call = message['tool_calls'][0]
        assert call['function'] == whole['choices'][0]['message']['tool_calls'][0]['function']
        assert call['repaired'] is False
    must = demo_server.post({**body, 'thinking_budget': 2, 'tool_choice': 'required'}).json()
    message = must['choices'][0]['message']
    assert thought.startswith(message['reasoning_content'])
    assert message['reasoning_content'] != thought
    assert message['tool_calls'][0]['function']['name'] == 'drive'
    flat = [{'type': 'function', **item['function']} for item in ROBOT]
    answer = demo_server.post({'input': 'drive two metres forward', 'tools': flat,
                               'temperature': 0.0, 'enable_thinking': True, 'thinking_budget': 3},
                              '/v1/responses').json()
    assert [item['type'] for item in answer['output']] == ['reasoning', 'function_call']
    assert thought.startswith(answer['output'][0]['content'][0]['text'])
    assert demo_server.post({**body, 'thinking_budget': -1}).status_code == 400
