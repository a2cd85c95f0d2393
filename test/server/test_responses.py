# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/responses by the real openai client: items, events in order, stored conversations."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from gemma_thor_ros.server.response_input import messages_of
from gemma_thor_ros.server.response_store import ResponseStore
from gemma_thor_ros.server.response_types import ReasoningOptions, ResponseOut

from .conftest import HTTP, Server, StartServer

TOOLS: Any = [
    {'type': 'function', 'name': 'get_battery', 'description': 'Battery level', 'strict': False,
     'parameters': {'type': 'object', 'properties': {}}},
    {'type': 'function', 'name': 'say', 'parameters': {
        'type': 'object', 'properties': {'text': {'type': 'string'}}, 'required': ['text']}}]
THOUGHT = '<|channel>thought\nI look it up.\n<channel|>'
CALL = '<|tool_call>call:get_battery{}<tool_call|>'
SAY = '<|tool_call>call:say{text:<|"|>zwei €🤖<|"|>}<tool_call|>'
ANSWER = 'It is at 80 percent.<turn|>'


def events_of(server: Server, body: Any) -> list[dict[str, Any]]:
    """The stream's events, checked for form: names equal types, numbers run on."""
    with HTTP.stream('POST', f'{server.url}/v1/responses',
                     json={**body, 'stream': True}) as response:
        blocks = [block for block in response.read().decode().split('\n\n') if block]
    events = []
    for block in blocks:
        name, data = block.split('\n')
        event = json.loads(data.removeprefix('data: '))
        assert name == f'event: {event["type"]}'
        events.append(event)
    assert [event['sequence_number'] for event in events] == list(range(len(events)))
    return events


def test_text_in_text_out(start_server: StartServer) -> None:
    client = start_server(ANSWER).client()
    answer = client.responses.create(model='scripted', input='level?', instructions='Be brief.')
    assert answer.output_text == 'It is at 80 percent.'
    assert answer.status == 'completed'
    assert answer.instructions == 'Be brief.'
    assert [item.type for item in answer.output] == ['message']
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_thought_and_calls_become_items(start_server: StartServer) -> None:
    client = start_server(THOUGHT + 'I check.' + CALL + SAY + '<|tool_response>').client()
    answer = client.responses.create(model='scripted', input='level?', tools=TOOLS)
    kinds = [item.type for item in answer.output]
    assert kinds == ['reasoning', 'message', 'function_call', 'function_call']
    thought, message, first, second = answer.output
    assert thought.type == 'reasoning' and thought.content is not None
    assert thought.content[0].text == 'I look it up.'
    assert answer.output_text == 'I check.'
    assert first.type == second.type == 'function_call'
    assert (first.name, first.arguments) == ('get_battery', '{}')
    assert json.loads(second.arguments) == {'text': 'zwei €🤖'}
    assert len({item.id for item in answer.output}) == 4
    assert first.call_id != second.call_id
    assert message.type == 'message' and message.status == 'completed'


@pytest.mark.parametrize('raw', ['Hi 🤖, 3 < 4.<turn|>', THOUGHT + 'Full.<turn|>', THOUGHT + CALL,
                                 'I check.' + SAY + CALL + '<|tool_response>'])
def test_streamed_equals_whole(start_server: StartServer, raw: str) -> None:
    client = start_server(raw).client()
    options: Any = {'model': 'scripted', 'input': 'level?', 'tools': TOOLS,
                    'extra_body': {'seed': 1}}
    whole = client.responses.create(**options)
    text = ''
    with client.responses.stream(**options) as stream:
        for event in stream:
            if event.type == 'response.output_text.delta':
                text += event.delta
        streamed = stream.get_final_response()
    assert text == whole.output_text == streamed.output_text
    assert streamed.usage is not None and whole.usage is not None
    assert streamed.usage.total_tokens == whole.usage.total_tokens

    def shown(response: Any) -> list[Any]:
        items = [item.to_dict() for item in response.output]
        return [[item.get(name) for name in ('type', 'name', 'arguments', 'status')]
                + [part['text'] for part in item.get('content', ())] for item in items]

    assert shown(streamed) == shown(whole)


def test_events_come_in_the_order_of_the_sdk(start_server: StartServer) -> None:
    server = start_server(THOUGHT + 'I check.' + CALL + '<|tool_response>')
    events = events_of(server, {'input': 'level?', 'tools': TOOLS})
    kinds = [event['type'].removeprefix('response.') for event in events]
    once = [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    assert once == [
        'created', 'in_progress',
        'output_item.added', 'content_part.added', 'reasoning_text.delta', 'reasoning_text.done',
        'content_part.done', 'output_item.done',
        'output_item.added', 'content_part.added', 'output_text.delta', 'output_text.done',
        'content_part.done', 'output_item.done',
        'output_item.added', 'function_call_arguments.delta', 'function_call_arguments.done',
        'output_item.done', 'completed']
    assert events[0]['response']['status'] == 'in_progress'
    assert events[0]['response']['output'] == []
    last = events[-1]['response']
    done = [event['item'] for event in events if event['type'] == 'response.output_item.done']
    for item, final in zip(done, last['output'], strict=True):
        assert {**item, 'repaired': None} == {**final, 'repaired': None}
    assert last['output'][2]['repaired'] is False
    for event in events:
        if 'item_id' in event:
            assert event['item_id'] == last['output'][event['output_index']]['id']


def test_tools_round_trip_over_a_stored_response(start_server: StartServer) -> None:
    server = start_server(THOUGHT + CALL + '<|tool_response>', ANSWER)
    client = server.client()
    first = client.responses.create(model='scripted', input='level?', tools=TOOLS)
    call = first.output[-1]
    assert call.type == 'function_call'
    result: Any = [{'type': 'function_call_output', 'call_id': call.call_id, 'output': '80'}]
    second = client.responses.create(model='scripted', input=result, tools=TOOLS,
                                     previous_response_id=first.id)
    assert second.output_text == 'It is at 80 percent.'
    assert second.previous_response_id == first.id
    # The same conversation as items, nothing stored: the same prompt.
    items: Any = [{'role': 'user', 'content': 'level?'},
                  *(item.to_dict() for item in first.output), *result]
    third = client.responses.create(model='scripted', input=items, tools=TOOLS, store=False)
    assert second.usage is not None and third.usage is not None
    assert third.usage.input_tokens == second.usage.input_tokens


def test_a_stored_answer_can_be_looked_up_and_forgotten(start_server: StartServer) -> None:
    client = start_server(ANSWER).client()
    kept = client.responses.create(model='scripted', input='a')
    assert client.responses.retrieve(kept.id).output_text == kept.output_text
    client.responses.delete(kept.id)
    passing = client.responses.create(model='scripted', input='a', store=False)
    for response_id in (kept.id, passing.id, 'resp_none'):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response_id)
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model='scripted', input='b', previous_response_id=response_id)


def test_length_makes_it_incomplete(start_server: StartServer) -> None:
    server = start_server('one two three four five six seven<turn|>')
    body = {'input': 'x', 'max_output_tokens': 4}
    whole = server.client().responses.create(model='scripted', input='x', max_output_tokens=4)
    assert whole.status == 'incomplete'
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == 'max_output_tokens'
    assert whole.output[0].status == 'incomplete'                # type: ignore[union-attr]
    last = events_of(server, body)[-1]
    assert last['type'] == 'response.incomplete'
    assert last['response']['incomplete_details']['reason'] == 'max_output_tokens'


def test_logprobs_of_the_text(start_server: StartServer) -> None:
    server = start_server(THOUGHT + 'Hi there<turn|>')
    body: Any = {'input': 'x', 'include': ['message.output_text.logprobs'], 'top_logprobs': 2,
                 'temperature': 0.0, 'enable_thinking': True}
    whole = server.post(body, '/v1/responses').json()
    logprobs = whole['output'][1]['content'][0]['logprobs']
    assert ''.join(entry['token'] for entry in logprobs) == 'Hi there'
    assert all(len(entry['top_logprobs']) == 2 for entry in logprobs)
    streamed = [entry for event in events_of(server, body)
                if event['type'] == 'response.output_text.delta' for entry in event['logprobs']]
    assert streamed == logprobs


def test_a_failed_answer_ends_its_stream(start_server: StartServer) -> None:
    server = start_server('word ' * 300 + '<turn|>', model__script_delay=0.01,
                          request__timeout=0.2)
    last = events_of(server, {'input': 'x'})[-1]
    assert last['type'] == 'response.failed'
    assert '0.2 s' in last['response']['error']['message']
    assert last['response']['output'][0]['status'] == 'incomplete'
    answer = server.post({'input': 'x'}, '/v1/responses')
    assert answer.status_code == 504


@pytest.mark.parametrize(('extra', 'words'), [
    ({'input': []}, 'input is empty'), ({'input': [{'type': 'web_search_call'}]}, 'input[0].type'),
    ({'input': [{'role': 'robot', 'content': 'x'}]}, 'input[0].role'),
    ({'input': [{'role': 'user', 'content': [{'type': 'input_image', 'image_url': 'x'}]}]},
     'takes no input_image'),
    ({'input': [{'role': 'user', 'content': [3]}]}, 'input[0].content[0]'),
    ({'input': [{'type': 'function_call', 'call_id': 'a', 'name': 'b', 'arguments': {}}]},
     'input[0].arguments'),
    ({'input': [{'type': 'function_call_output', 'call_id': 'a', 'output': 'x'}]}, 'call'),
    ({'tools': [{'type': 'web_search'}]}, 'tools[0].type'), ({'background': True}, 'background'),
    ({'conversation': 'c'}, 'conversation'), ({'prompt': {'id': 'x'}}, 'prompt'),
    ({'text': {'format': {'type': 'grammar'}}}, 'text.format'),
    ({'tool_choice': 'required'}, 'tool_choice'),
    ({'reasoning': {'effort': 'enormous'}}, 'reasoning.effort'),
    ({'max_output_tokens': 0}, 'max_output_tokens'), ({'temperature': -1}, 'temperature')])
def test_what_is_not_served_is_named(plain_server: Server, extra: Any, words: str) -> None:
    answer = plain_server.post({'input': 'x', **extra}, '/v1/responses')
    assert answer.status_code == 400
    assert words in answer.json()['error']['message']


IMAGE = {'role': 'user', 'content': [{'type': 'input_image', 'image_url': 'data:,x'}]}


@pytest.mark.parametrize(('asked', 'param'), [
    ('word ' * 400_000, 'input'), ([], 'input'), ([IMAGE], 'input.content[0]')],
    ids=['too long', 'empty', 'an image'])
def test_a_fault_of_the_conversation_names_the_input(plain_server: Server, asked: Any,
                                                     param: str) -> None:
    answer = plain_server.post({'input': asked}, '/v1/responses')
    error = answer.json()['error']
    assert answer.status_code == 400 and error['param'].startswith(param), error
    assert 'messages' not in error['message'] + error['param']
    chat = plain_server.post({'messages': []}).json()['error']
    assert chat['param'] == 'messages'


def test_items_become_messages() -> None:
    call = {'type': 'function_call', 'id': 'fc', 'call_id': 'a', 'name': 'say',
            'arguments': '{"text":"x"}'}
    items = [
        {'role': 'developer', 'content': 'Be brief.'},
        {'type': 'message', 'role': 'user', 'content': [{'type': 'input_text', 'text': 'a'},
                                                        {'type': 'input_text', 'text': 'b'}]},
        {'type': 'reasoning', 'summary': [], 'content': [{'type': 'reasoning_text', 'text': 't'}]},
        {'type': 'message', 'role': 'assistant',
         'content': [{'type': 'output_text', 'text': 'o'}]},
        call, {**call, 'call_id': 'b'},
        {'type': 'function_call_output', 'call_id': 'a', 'output': '1'},
        {'type': 'function_call_output', 'call_id': 'b', 'output': [{'type': 'input_text',
                                                                    'text': '2'}]},
        {'type': 'reasoning', 'summary': [{'type': 'summary_text', 'text': 's'}]},
        {'role': 'assistant', 'content': 'one'}, {'role': 'assistant', 'content': 'two'},
        {'type': 'reasoning', 'summary': []}]
    function = {'name': 'say', 'arguments': '{"text":"x"}'}
    assert messages_of(items) == [
        {'role': 'developer', 'content': 'Be brief.'}, {'role': 'user', 'content': 'ab'},
        {'role': 'assistant', 'reasoning': 't', 'content': 'o', 'tool_calls': [
            {'id': 'a', 'type': 'function', 'function': function},
            {'id': 'b', 'type': 'function', 'function': function}]},
        {'role': 'tool', 'tool_call_id': 'a', 'content': '1'},
        {'role': 'tool', 'tool_call_id': 'b', 'content': '2'},
        {'role': 'assistant', 'reasoning': 's', 'content': 'one'},
        {'role': 'assistant', 'content': 'two'}]


def test_the_store_is_bounded() -> None:
    def response(number: int) -> ResponseOut:
        return ResponseOut(id=f'resp_{number}', created_at=0, status='completed', model='m',
                           reasoning=ReasoningOptions(), store=True, temperature=1.0, top_p=1.0)

    store = ResponseStore(max_entries=4)
    for number in range(10):
        store.put(response(number), store.get(f'resp_{number - 1}'),
                  [{'role': 'user', 'content': str(number)}])
    assert len(store) == 4
    kept = store.get('resp_9')
    assert kept is not None
    assert [message['content'] for message in kept.messages] == [str(n) for n in range(10)]
    assert store.get('resp_5') is None
    small = ResponseStore(max_entries=100, max_bytes=20_000)
    for number in range(50):
        small.put(response(number), None, [{'role': 'user', 'content': 'x' * 3000}])
        assert small.num_bytes <= 20_000
    assert 1 < len(small) < 10
    small.put(response(99), None, [{'role': 'user', 'content': 'x' * 30_000}])
    assert small.get('resp_99') is None
    for number in range(50):
        small.delete(f'resp_{number}')
    assert (len(small), small.num_bytes) == (0, 0)
