# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Chat completions beyond the plain case: n, steps and events, pings, deadlines, ids, errors."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import (
    ChatDelta,
    ChatResult,
    ConfigError,
    FinishReason,
    Timings,
    ToolCallDelta,
    Usage,
)
from gemma_thor_ros.server.chat_completions import ChatForm
from gemma_thor_ros.server.errors import without_folders
from gemma_thor_ros.server.openai_types import ChatCompletionRequest
from gemma_thor_ros.server.run import Sidecar

from .conftest import HTTP, Server, StartServer, wait_until

USER: Any = [{'role': 'user', 'content': 'level?'}]
CALL = '<|tool_call>call:get_battery{}<tool_call|><|tool_response>'
PATH = '/v1/chat/completions'


def events_of(server: Server, body: Any) -> list[Any]:
    """The stream's events; None for [DONE]."""
    with HTTP.stream('POST', server.url + PATH, json={**body, 'stream': True}) as response:
        lines = [line for line in response.read().decode().split('\n\n') if line]
    return [None if line == 'data: [DONE]' else json.loads(line[6:]) for line in lines
            if not line.startswith(':')]


def test_choices_come_whole_and_streamed(start_server: StartServer) -> None:
    """Each choice is a request of its own, streamed under its index, counted together."""
    server = start_server('one two<turn|>')
    body = {'messages': USER, 'n': 3, 'stream_options': {'include_usage': True}}
    whole = server.post(body).json()
    assert [choice['index'] for choice in whole['choices']] == [0, 1, 2]
    texts, finishes = ['', '', ''], ['', '', '']
    events = events_of(server, body)
    assert events[-1] is None
    usage = events[-2]['usage']
    for event in events[:-2]:
        assert event['usage'] is None
        for choice in event['choices']:
            texts[choice['index']] += choice['delta'].get('content', '')
            finishes[choice['index']] = choice['finish_reason'] or finishes[choice['index']]
    assert texts == [choice['message']['content'] for choice in whole['choices']]
    assert finishes == ['stop'] * 3
    assert usage['completion_tokens'] == whole['usage']['completion_tokens']
    one = server.post({'messages': USER}).json()['usage']
    assert whole['usage']['completion_tokens'] == 3 * one['completion_tokens']
    assert whole['usage']['prompt_tokens'] == one['prompt_tokens']


def test_choices_differ_by_their_index_alone() -> None:
    """On the demo model: with a seed, choices differ, and the same call gives the same ones."""
    config = EngineConfig.from_mapping({'http.port': 0, 'engine.context_length': 512})
    runtime = Runtime(config)
    sidecar = Sidecar(runtime, config)
    runtime.start()
    server = Server(runtime, sidecar, f'http://127.0.0.1:{sidecar.start()}')
    try:
        assert runtime.wait_ready(60.0), runtime.error
        # a word after which the model is of several minds
        body = {'messages': [{'role': 'user', 'content': 'drive'}], 'n': 4, 'seed': 5,
                'max_tokens': 12, 'temperature': 2.0, 'top_k': 0, 'top_p': 1.0}

        def texts() -> list[str]:
            return [choice['message']['content'] or choice['message']['tool_calls']
                    for choice in server.post(body).json()['choices']]

        first = texts()
        assert len({json.dumps(text) for text in first}) > 1
        assert texts() == first
        streamed = [''] * 4
        for event in events_of(server, body)[:-1]:
            for choice in event['choices']:
                streamed[choice['index']] += choice['delta'].get('content', '')
        assert [text for text in streamed if text] == [t for t in first if isinstance(t, str)]
    finally:
        runtime.stop(5.0)
        sidecar.stop(5.0)


def test_too_many_choices_start_nothing(start_server: StartServer) -> None:
    server = start_server('x<turn|>', engine__max_sequences=2, engine__max_waiting=1,
                          model__script_delay=0.05)
    ends: list[str] = []
    server.runtime.require_chat().on_result(
        lambda request, result: ends.append(str(result.finish_reason)))
    assert server.post({'messages': USER, 'n': 17}).status_code == 400
    busy = server.post({'messages': USER, 'n': 4})
    assert (busy.status_code, busy.headers['retry-after']) == (429, '1')
    stats = server.runtime.require_chat().stats
    assert wait_until(lambda: stats().running + stats().waiting == 0)
    assert wait_until(lambda: ends == ['cancelled'] * 3), ends   # heard of, though never read
    assert server.post({'messages': USER, 'n': 3}).status_code == 200


def test_at_most_one_event_a_step(start_server: StartServer) -> None:
    server = start_server('one two three four five six seven' + CALL)
    steps = server.runtime.require_chat().stats().steps
    events = events_of(server, {'messages': USER, 'stream_options': {'include_usage': True}})
    steps = server.runtime.require_chat().stats().steps - steps
    # Besides the steps: the role, the end, the usage and [DONE].
    assert len(events) - 4 <= steps


def test_a_chunk_speaks_of_one_call_once() -> None:
    """Some clients read the first entry of a chunk's calls and no other, even where a step of
    drafted tokens ends a call and begins the next one.
    """
    form = ChatForm('id', 'm', ChatCompletionRequest(messages=USER, n=2), cast(Chat, None))
    steps = [(ToolCallDelta(0, 'a', 'go'), ToolCallDelta(0, arguments='{"x": '),
              ToolCallDelta(0, arguments='1')),
             (ToolCallDelta(0, arguments='}'), ToolCallDelta(1, 'b', 'stop'),
              ToolCallDelta(1, arguments='{'), ToolCallDelta(1, arguments='}'),
              ToolCallDelta(2, 'c', 'say'), ToolCallDelta(2, arguments='{}'))]
    result = ChatResult('id', '', '', (), FinishReason.TOOL_CALLS, Usage(), Timings())
    written = [form.delta(1, ChatDelta(n, tool_calls=calls)) for n, calls in enumerate(steps)]
    written.append(form.finished(1, result))
    assert form.finished(0, result).count('data:') == 1        # nothing of the other choice
    read: dict[int, list[str]] = {}
    for event in ''.join(written).split('\n\n')[:-1]:
        choice = json.loads(event[6:])['choices'][0]
        for call in choice['delta'].get('tool_calls', [])[:1]:
            name, arguments = read.setdefault(call['index'], [call['function'].get('name'), ''])
            read[call['index']] = [name, arguments + call['function']['arguments']]
    assert choice['finish_reason'] == 'tool_calls'
    assert read == {0: ['go', '{"x": 1}'], 1: ['stop', '{}'], 2: ['say', '{}']}
    assert [text.count('data:') for text in written] == [1, 1, 3]


@pytest.mark.parametrize(('path', 'extra', 'param'), [
    (PATH, {'modalities': ['text', 'audio']}, 'modalities'),
    (PATH, {'audio': {'voice': 'alloy', 'format': 'wav'}}, 'audio'),
    (PATH, {'web_search_options': {}}, 'web_search_options'),
    (PATH, {'guided_choice': ['a', 'b']}, 'guided_choice'),
    ('/v1/completions', {'prompt': 'x', 'grammar': 'root ::= "a"'}, 'grammar'),
    ('/v1/responses', {'input': 'x', 'structured_outputs': {'regex': 'a'}}, 'structured_outputs'),
    (PATH, {'logprobs': True, 'top_logprobs': 21}, 'top_logprobs'),
    (PATH, {'logprobs': True, 'top_logprobs': -1}, 'top_logprobs'),
    ('/v1/responses', {'input': 'x', 'top_logprobs': -1}, 'top_logprobs'),
    ('/v1/completions', {'prompt': 'x', 'logprobs': 21}, 'logprobs'),
    (PATH, {'tool_choice': 5}, 'tool_choice'), (PATH, {'stop': {}}, 'stop'),
    (PATH, {'stop': [1]}, 'stop'), (PATH, {'logit_bias': {'5': 'x'}}, 'logit_bias.5'),
    ('/v1/completions', {'prompt': {}}, 'prompt'), ('/v1/responses', {'input': 5}, 'input'),
    # true and false are no numbers
    (PATH, {'max_tokens': True}, 'max_tokens'), (PATH, {'seed': False}, 'seed'),
    (PATH, {'top_k': True}, 'top_k'), (PATH, {'temperature': False}, 'temperature'),
    (PATH, {'n': True}, 'n'), (PATH, {'logit_bias': {'5': True}}, 'logit_bias.5'),
    (PATH, {'stop_token_ids': [True]}, 'stop_token_ids.0'),
    ('/v1/completions', {'prompt': [True]}, 'prompt'),
    ('/v1/completions', {'prompt': 'x', 'logprobs': True}, 'logprobs'),
    ('/v1/responses', {'input': 'x', 'max_output_tokens': True}, 'max_output_tokens'),
    ('/v1/responses', {'input': 'x', 'deadline_ms': True}, 'deadline_ms'),
    ('/detokenize', {'tokens': [True]}, 'tokens.0')])
def test_what_binds_an_answer_is_never_ignored(plain_server: Server, path: str, extra: Any,
                                               param: str) -> None:
    answer = plain_server.post({'messages': USER, **extra}, path)
    error = answer.json()['error']
    assert (answer.status_code, error['param']) == (400, param)
    assert error['message'].startswith((f'{param} ', f'{param}: ', 'modalities other'))


@pytest.mark.parametrize(('role', 'part', 'status'), [
    ('assistant', {'type': 'text', 'text': 'No.'}, 200),
    ('assistant', {'type': 'refusal', 'refusal': 'No.'}, 200),
    ('assistant', {'type': 'output_text', 'text': 'No.'}, 200),
    ('assistant', {'type': 'refusal', 'text': 'No.'}, 400),
    ('user', {'type': 'input_text', 'text': 'No.'}, 200),
    ('user', {'type': 'input_text', 'text': 5}, 400),
    ('user', {'type': 'word', 'text': 'No.'}, 400)])
def test_parts_of_text(plain_server: Server, role: str, part: Any, status: int) -> None:
    """All kinds of parts say the same to the model."""
    messages = [*USER, {'role': role, 'content': [part]}, *USER]
    answer = plain_server.post({'messages': messages})
    assert answer.status_code == status, answer.text
    if status == 200:
        plain = plain_server.post({'messages': [*USER, {'role': role, 'content': 'No.'}, *USER]})
        assert answer.json()['usage']['prompt_tokens'] == plain.json()['usage']['prompt_tokens']
    else:
        assert answer.json()['error']['param'].startswith('messages[1].content[0]')


def test_text_alone_is_a_modality(plain_server: Server) -> None:
    assert plain_server.post({'messages': USER, 'modalities': ['text']}).status_code == 200


def test_long_numbers_are_refused_in_our_words(plain_server: Server) -> None:
    raw = b'{"messages": [], "seed": ' + b'9' * 5000 + b'}'
    answer = HTTP.post(plain_server.url + PATH, content=raw,
                       headers={'Content-Type': 'application/json'})
    words = 'the body is not JSON: an integer has too many digits'
    assert (answer.status_code, answer.json()['error']['message']) == (400, words)


def test_first_bytes_and_pings_come_before_the_first_token(start_server: StartServer) -> None:
    server = start_server('x<turn|>', model__script_delay=0.6, http__keep_alive=0.1)
    begin = time.monotonic()
    with HTTP.stream('POST', server.url + PATH,
                     json={'messages': USER, 'stream': True}) as response:
        lines = response.iter_lines()
        assert 'assistant' in next(lines)
        assert time.monotonic() - begin < 0.5
        seen = list(lines)
    first = next(i for i, line in enumerate(seen) if '"content":"x"' in line)
    assert seen[:first].count(': keep-alive') >= 3
    chunks = list(server.client().chat.completions.create(
        model='scripted', messages=USER, stream=True))
    assert ''.join(chunk.choices[0].delta.content or '' for chunk in chunks) == 'x'


def test_deadline_ends_the_request(start_server: StartServer) -> None:
    server = start_server('word ' * 300 + '<turn|>', model__script_delay=0.01)
    answer = server.post({'messages': USER, 'deadline_ms': 100})
    assert (answer.status_code, answer.json()['error']['code']) == (504, 'deadline')
    refused = server.post({'messages': USER, 'deadline_ms': 1e-3})       # foreseen at once
    assert refused.json()['error']['param'] == 'deadline_ms'
    last = events_of(server, {'messages': USER, 'deadline_ms': 100})
    assert last[-2]['error']['code'] == 'deadline'
    assert last[-1] is None


def test_one_failed_choice_ends_the_others(start_server: StartServer) -> None:
    server = start_server('word ' * 300 + '<turn|>', model__script_delay=0.01)
    done: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: done.append(
        server.post({'messages': USER, 'n': 2, 'deadline_ms': 150})))
    thread.start()
    thread.join(10.0)
    assert done[0].status_code == 504
    stats = server.runtime.require_chat().stats
    assert wait_until(lambda: stats().running == 0, 2.0)   # the other one ends with its step


def test_priorities_up_to_the_limit(start_server: StartServer) -> None:
    server = start_server('x<turn|>')
    for name, status in (('background', 200), ('agent', 200), ('dialogue', 403),
                         ('operator', 403)):
        answer = server.post({'messages': USER, 'priority': name})
        assert answer.status_code == status, answer.text
    assert answer.json()['error']['param'] == 'priority'


def test_ids_come_back_on_every_answer(plain_server: Server) -> None:
    for path, status in (('/health', 200), ('/nothing', 404), ('/v1/models', 200)):
        answer = HTTP.get(plain_server.url + path, headers={'X-Request-Id': 'robot-7'})
        assert (answer.status_code, answer.headers['x-request-id']) == (status, 'robot-7')
        fresh = HTTP.get(plain_server.url + path).headers['x-request-id']
        assert fresh.startswith('req-')
    answer = plain_server.post({'messages': USER})
    assert answer.headers['x-request-id'] == answer.json()['id']
    refused = plain_server.post({'messages': 1}, headers={'X-Request-Id': 'robot-8'})
    assert (refused.status_code, refused.headers['x-request-id']) == (400, 'robot-8')


def test_an_id_in_use_is_refused_and_long_ones_have_choices(start_server: StartServer) -> None:
    server = start_server('word ' * 100 + '<turn|>', model__script_delay=0.005)
    long = {'X-Request-Id': 'x' * 64}
    answer = server.post({'messages': USER, 'n': 2, 'max_tokens': 4}, headers=long)
    assert answer.status_code == 200
    stream = server.client().chat.completions.create(
        model='scripted', messages=USER, stream=True, extra_headers={'X-Request-Id': 'same'})
    next(iter(stream))
    second = server.post({'messages': USER}, headers={'X-Request-Id': 'same'})
    assert second.status_code == 400
    assert 'same' in second.json()['error']['message']
    stream.close()


def test_timings_and_usage_details(start_server: StartServer) -> None:
    server = start_server('<|channel>thought\nhm hm\n<channel|>one two three<turn|>')
    whole = server.post({'messages': USER}).json()
    assert whole['usage']['completion_tokens_details']['reasoning_tokens'] > 1
    assert whole['timings']['total_ms'] >= whole['timings']['time_to_first_token_ms'] > 0
    again = server.post({'messages': USER}).json()['usage']
    assert again['prompt_tokens_details']['cached_tokens'] <= again['prompt_tokens']
    last = events_of(server, {'messages': USER, 'stream_options': {'include_usage': True}})[-2]
    assert last['timings']['tokens_per_s'] > 0


def test_continue_final_message(start_server: StartServer) -> None:
    server = start_server(' at 80 percent.<turn|>')
    messages = [*USER, {'role': 'assistant', 'content': 'It is'}]
    answer = server.post({'messages': messages, 'continue_final_message': True}).json()
    assert answer['choices'][0]['message']['content'] == ' at 80 percent.'
    refused = server.post({'messages': USER, 'continue_final_message': True})
    assert refused.status_code == 400


def test_errors_hold_no_path_of_the_machine(tmp_path: Path) -> None:
    folder = tmp_path / 'secret' / 'model'
    config = EngineConfig.from_mapping({'model.path': str(folder), 'http.port': 0})
    runtime = Runtime(config)
    sidecar = Sidecar(runtime, config)
    with pytest.raises(ConfigError, match='secret'):
        runtime.start()
    url = f'http://127.0.0.1:{sidecar.start()}'
    try:
        health = HTTP.get(f'{url}/health')
        asked = HTTP.post(url + PATH, json={'messages': USER})
        assert health.status_code == asked.status_code == 503
        for answer in (health, asked):
            assert 'model' in answer.text
            assert 'secret' not in answer.text and str(tmp_path.parent) not in answer.text
    finally:
        sidecar.stop(5.0)


@pytest.mark.parametrize(('text', 'shown'), [
    ('/a/b/config.json: no such file', 'config.json: no such file'),
    ("can't read '/home/x/y z'", "can't read 'y z'"), ('see http://a/b/c', 'see http://a/b/c'),
    ('3/4 of 5/6 tokens', '3/4 of 5/6 tokens'), ('~/models/x is empty', 'x is empty'),
    ('error in (/opt/x/y.py:3)', 'error in (y.py:3)')])
def test_folders_are_cut_off(text: str, shown: str) -> None:
    assert without_folders(text) == shown


def test_a_bug_of_ours_tells_nothing(start_server: StartServer,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server('x<turn|>')

    def fail(request: Any) -> Any:
        raise KeyError('/etc/secret')

    monkeypatch.setattr(server.runtime.require_chat(), 'submit', fail)
    answer = server.post({'messages': USER})
    assert answer.status_code == 500
    assert answer.json()['error'] == {'message': 'internal error, see the log', 'param': None,
                                      'type': 'server_error', 'code': 'internal_error'}


def test_64_clients_get_their_own_answers(start_server: StartServer) -> None:
    """Half stream, half don't, some leave: every request ends right and nothing is left over."""
    server = start_server('one two three four<turn|>', engine__max_sequences=16,
                          model__script_delay=0.001)
    wrong: list[Any] = []

    def client(number: int) -> None:
        with httpx.Client(base_url=server.url, timeout=20.0, trust_env=False) as http:
            for round_ in range(3):
                body = {'messages': [{'role': 'user', 'content': f'{number} {round_}'}]}
                if number % 8 == 7:
                    with http.stream('POST', PATH, json={**body, 'stream': True}) as response:
                        next(response.iter_lines())
                elif number % 2:
                    with http.stream('POST', PATH, json={**body, 'stream': True}) as response:
                        text = response.read().decode()
                    if not text.endswith('data: [DONE]\n\n'):
                        wrong.append(text)
                else:
                    answer = http.post(PATH, json=body).json()
                    content = answer.get('choices', [{}])[0].get('message', {}).get('content')
                    if content != 'one two three four':
                        wrong.append(answer)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not wrong
    stats = server.runtime.require_chat().stats
    assert wait_until(lambda: (stats().running, stats().waiting) == (0, 0))
