# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The real openai client against the endpoint."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import openai
import pytest

from .conftest import StartServer, wait_until

USER: Any = [{'role': 'user', 'content': 'level?'}]
TOOLS: Any = [
    {'type': 'function', 'function': {'name': 'get_battery', 'description': 'Battery level',
                                      'parameters': {'type': 'object', 'properties': {}}}},
    {'type': 'function', 'function': {
        'name': 'say', 'description': 'Speak',
        'parameters': {'type': 'object', 'properties': {'text': {'type': 'string'}},
                       'required': ['text']}}}]
THOUGHT = '<|channel>thought\nI look it up.\n<channel|>'
CALL = '<|tool_call>call:get_battery{}<tool_call|><|tool_response>'
TWO_CALLS = ('<|tool_call>call:say{text:<|"|>one<|"|>}<tool_call|>'
             '<|tool_call>call:say{text:<|"|>zwei €🤖<|"|>}<tool_call|><|tool_response>')


def test_whole_answer(start_server: StartServer) -> None:
    client = start_server('The battery is full.<turn|>').client()
    answer = client.chat.completions.create(model='scripted', messages=USER)
    assert answer.choices[0].message.content == 'The battery is full.'
    assert answer.choices[0].finish_reason == 'stop'
    assert answer.choices[0].message.tool_calls is None
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens > 3


def test_models_lists_the_loaded_one(start_server: StartServer) -> None:
    models = start_server('x<turn|>', model__name='robot-brain').client().models.list()
    assert [model.id for model in models] == ['robot-brain']


@pytest.mark.parametrize('raw', ['Hi 🤖, 3 < 4 & <b>ok</b>.<turn|>', THOUGHT + 'Full.<turn|>',
                                 THOUGHT + CALL, TWO_CALLS, 'I check.' + CALL])
def test_streamed_equals_whole(start_server: StartServer, raw: str) -> None:
    client = start_server(raw).client()
    options: Any = {'model': 'scripted', 'messages': USER, 'tools': TOOLS, 'seed': 1}
    whole = client.chat.completions.create(**options).choices[0]
    text = reasoning = finish = ''
    calls: list[list[str]] = []
    for chunk in client.chat.completions.create(stream=True, **options):
        choice = chunk.choices[0]
        text += choice.delta.content or ''
        reasoning += getattr(choice.delta, 'reasoning_content', None) or ''
        for piece in choice.delta.tool_calls or []:
            assert piece.function is not None
            if piece.index == len(calls):
                calls.append([piece.id or '', piece.function.name or '', ''])
            calls[piece.index][2] += piece.function.arguments or ''
        finish = choice.finish_reason or finish
    assert text == (whole.message.content or '')
    assert reasoning == (getattr(whole.message, 'reasoning_content', None) or '')
    assert [call[1:] for call in calls] == [
        [call.function.name, call.function.arguments]      # type: ignore[union-attr]
        for call in whole.message.tool_calls or []]
    assert finish == whole.finish_reason
    assert len({call[0] for call in calls}) == len(calls)


def test_events_of_a_call_come_in_order(start_server: StartServer) -> None:
    """Role, call with its name and what is known of its arguments, finish, usage, [DONE]."""
    server = start_server(CALL)
    body = {'messages': USER, 'tools': TOOLS, 'stream': True,
            'stream_options': {'include_usage': True}}
    response = server.post(body)
    lines = [line for line in response.text.split('\n\n') if line]
    assert lines[-1] == 'data: [DONE]'
    events = [json.loads(line.removeprefix('data: ')) for line in lines[:-1]]
    assert len({(event['id'], event['created']) for event in events}) == 1
    assert events[0]['choices'][0]['delta']['role'] == 'assistant'
    pieces = [piece for event in events for choice in event['choices']
              for piece in choice['delta'].get('tool_calls', [])]
    assert pieces[0]['type'] == 'function'
    assert pieces[0]['id']
    assert pieces[0]['function']['name'] == 'get_battery'
    assert not any('name' in piece['function'] for piece in pieces[1:])
    assert ''.join(piece['function']['arguments'] for piece in pieces) == '{}'
    assert events[-2]['choices'][0] == {'index': 0, 'delta': {}, 'finish_reason': 'tool_calls'}
    assert events[-1]['choices'] == []
    assert events[-1]['usage']['completion_tokens'] > 0


def test_a_mended_call_is_marked_whole_and_streamed(start_server: StartServer) -> None:
    mended = 'call:say{text:<|"|>one<|"|>}<tool_call|>'           # without its opener
    right = '<|tool_call>call:say{text:<|"|>two<|"|>}<tool_call|>'
    server = start_server(mended + right + '<|tool_response>', tools__constrain_calls=False)
    body = {'messages': USER, 'tools': TOOLS}
    message = server.post(body).json()['choices'][0]['message']
    assert [call['repaired'] for call in message['tool_calls']] == [True, False]
    events = [json.loads(line[6:]) for line in server.post({**body, 'stream': True}).iter_lines()
              if line.startswith('data: {')]
    pieces = [piece for event in events for choice in event['choices']
              for piece in choice['delta'].get('tool_calls', [])]
    assert [piece['index'] for piece in pieces if piece.get('repaired')] == [0]
    assert events[-1]['choices'][0]['finish_reason'] == 'tool_calls'
    with server.client().chat.completions.stream(model='scripted', messages=USER,
                                                 tools=TOOLS) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [
        {'text': 'one'}, {'text': 'two'}]


def test_tools_round_trip(start_server: StartServer) -> None:
    client = start_server(THOUGHT + CALL, 'It is at 80 percent.<turn|>').client()
    first = client.chat.completions.create(model='scripted', messages=USER, tools=TOOLS)
    message = first.choices[0].message
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    messages = [*USER, message, {'role': 'tool', 'tool_call_id': call.id, 'content': '80'}]
    second = client.chat.completions.create(model='scripted', messages=messages, tools=TOOLS)
    assert second.choices[0].message.content == 'It is at 80 percent.'


@pytest.mark.parametrize('arguments', ['null', '', '{}'])
def test_empty_arguments_in_the_history_are_taken(start_server: StartServer,
                                                  arguments: str) -> None:
    call = {'id': 'a', 'type': 'function', 'function': {'name': 'get_battery',
                                                        'arguments': arguments}}
    messages = [*USER, {'role': 'assistant', 'tool_calls': [call]},
                {'role': 'tool', 'tool_call_id': 'a', 'content': '1'}]
    assert start_server('ok<turn|>').post({'messages': messages}).status_code == 200


def test_arguments_that_are_no_json_name_the_message(start_server: StartServer) -> None:
    call = {'id': 'a', 'type': 'function', 'function': {'name': 'get_battery', 'arguments': '{x'}}
    messages = [*USER, {'role': 'assistant', 'tool_calls': [call]},
                {'role': 'tool', 'tool_call_id': 'a', 'content': '1'}]
    response = start_server('ok<turn|>').post({'messages': messages})
    assert response.status_code == 400
    assert '1' in response.json()['error']['message']
    assert 'arguments' in response.json()['error']['message']


def test_max_tokens_ends_with_length(start_server: StartServer) -> None:
    client = start_server('one two three four five six seven eight<turn|>').client()
    answer = client.chat.completions.create(model='scripted', messages=USER, max_tokens=5)
    assert answer.choices[0].finish_reason == 'length'
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_stop_strings_and_the_call_after_them(start_server: StartServer) -> None:
    server = start_server('All done END extra ' + CALL)
    client = server.client()
    for stream in (False, True):
        options: Any = {'model': 'scripted', 'messages': USER, 'stop': ['END'], 'stream': stream}
        if stream:
            chunks = list(client.chat.completions.create(**options))
            text = ''.join(chunk.choices[0].delta.content or '' for chunk in chunks)
            assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)
            finish = chunks[-1].choices[0].finish_reason
        else:
            choice = client.chat.completions.create(**options).choices[0]
            text, finish = choice.message.content, choice.finish_reason
            assert choice.message.tool_calls is None
        assert (text, finish) == ('All done', 'stop')
    assert wait_until(lambda: server.runtime.require_chat().stats().running == 0)


def test_logprobs(start_server: StartServer) -> None:
    client = start_server('Hi there<turn|>').client()
    answer = client.chat.completions.create(model='scripted', messages=USER, logprobs=True,
                                            top_logprobs=2, temperature=0.0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert ''.join(entry.token for entry in logprobs.content).startswith('Hi there')
    assert all(entry.logprob <= 0.0 and len(entry.top_logprobs) == 2 for entry in logprobs.content)


def test_client_gone_cancels_the_request(start_server: StartServer) -> None:
    server = start_server('word ' * 300 + '<turn|>', model__script_delay=0.01)
    stream = server.client().chat.completions.create(model='scripted', messages=USER, stream=True)
    next(iter(stream))
    next(iter(stream))
    stream.close()
    chat = server.runtime.require_chat()
    limit = time.monotonic() + 2.0
    while chat.stats().running and time.monotonic() < limit:
        time.sleep(0.01)
    assert chat.stats().running == 0
    assert chat.stats().requests_cancelled == 1


def test_two_clients_at_once_get_their_own_answers(start_server: StartServer) -> None:
    server = start_server('alpha ' * 30 + '<turn|>', model__script_delay=0.002)
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        messages: Any = [{'role': 'user', 'content': f'client {number}'}]
        answer = server.client().chat.completions.create(model='scripted', messages=messages)
        answers[number] = answer.choices[0].message.content or ''

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert answers == {number: ('alpha ' * 30).strip() for number in range(6)}


def test_health_while_loading(start_server: StartServer) -> None:
    server = start_server('x<turn|>', wait=False, model__script_load=1.0)
    with pytest.raises(openai.APIStatusError) as error:
        server.client().chat.completions.create(model='scripted', messages=USER)
    assert error.value.status_code == 503
    assert 'loading' in str(error.value)
    health = server.get('/health')
    assert (health.status_code, health.json()['status']) == (503, 'loading')
    assert server.runtime.wait_ready(10.0)
    assert server.get('/health').json()['status'] == 'ok'


@pytest.mark.parametrize(('extra', 'thinks'), [
    ({'reasoning_effort': 'none'}, False), ({'reasoning_effort': 'max'}, True),
    ({'enable_thinking': True}, True),
    ({'chat_template_kwargs': {'enable_thinking': False}, 'reasoning_effort': 'high'}, False),
    ({}, False)])
def test_thinking_switches(start_server: StartServer, extra: dict[str, Any], thinks: bool) -> None:
    """Whether the prompt asks for a thought shows in its length: the empty one is prefilled."""
    server = start_server('x<turn|>', 'x<turn|>', 'x<turn|>')
    tokens = []
    for options in ({'enable_thinking': True}, {'enable_thinking': False}, extra):
        answer = server.post({'messages': USER, **options}).json()
        tokens.append(answer['usage']['prompt_tokens'])
    assert tokens[0] != tokens[1]
    assert tokens[2] == tokens[0 if thinks else 1]


def test_reasoning_is_taken_back_under_both_names(start_server: StartServer) -> None:
    server = start_server('x<turn|>')
    call = {'id': 'a', 'type': 'function', 'function': {'name': 'get_battery', 'arguments': '{}'}}
    sizes = set()
    for name in ('reasoning', 'reasoning_content'):
        messages = [*USER, {'role': 'assistant', 'tool_calls': [call], name: 'I look it up.'},
                    {'role': 'tool', 'tool_call_id': 'a', 'content': '1'}]
        answer = server.post({'messages': messages, 'tools': TOOLS, 'enable_thinking': True})
        sizes.add(answer.json()['usage']['prompt_tokens'])
    assert len(sizes) == 1
