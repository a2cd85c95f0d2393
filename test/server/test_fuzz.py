# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Broken requests and clients that misbehave: no 5xx, no hang, no growing memory, and others are
served meanwhile.
"""

from __future__ import annotations

import gc
import json
import random
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import HTTP, Server, StartServer, wait_until

USER: Any = [{'role': 'user', 'content': 'hi'}]
PATHS = ('/v1/chat/completions', '/v1/completions', '/v1/responses', '/tokenize', '/detokenize',
         '/render-prompt')
BODIES: list[Any] = [
    {'messages': USER, 'temperature': 0.5, 'stop': ['a'], 'logit_bias': {'5': 1.0}, 'n': 2},
    {'messages': [*USER, {'role': 'assistant', 'content': None, 'tool_calls': [
        {'id': 'a', 'type': 'function', 'function': {'name': 'f', 'arguments': '{"x": [1]}'}}]},
        {'role': 'tool', 'tool_call_id': 'a', 'content': 'ok'}],
     'tools': [{'type': 'function', 'function': {'name': 'f', 'parameters': {
         'type': 'object',
         'properties': {'x': {'type': 'array', 'items': {'type': 'integer'}}}}}}],
     'stream': True, 'stream_options': {'include_usage': True}},
    {'prompt': ['a', 'b'], 'logprobs': 2, 'echo': False, 'max_tokens': 4},
    {'input': [{'role': 'user', 'content': [{'type': 'input_text', 'text': 'x'}]},
               {'type': 'function_call', 'call_id': 'a', 'name': 'f', 'arguments': '{}'},
               {'type': 'function_call_output', 'call_id': 'a', 'output': '1'}],
     'tools': [{'type': 'function', 'name': 'f', 'parameters': {'type': 'object'}}],
     'metadata': {'a': 'b'}, 'reasoning': {'effort': 'low'}},
    {'tokens': [300, 301]}]
ODD: list[Any] = [None, True, -1, 0, 1e308, 2 ** 63, 2 ** 70, '', 'x', '\ud800', '\x00', [], {},
                  [None], {'a': {}}, [[[[]]]], 'x' * 5000, {'type': 'text'}, {'role': 'user'}]


def broken(rng: random.Random, value: Any) -> Any:
    """A copy of a JSON value with one thing in it replaced, removed or doubled."""
    if rng.random() < 0.25 or not isinstance(value, (dict, list)) or not value:
        return rng.choice(ODD)
    if isinstance(value, list):
        index = rng.randrange(len(value))
        changed = [broken(rng, value[index])] if rng.random() < 0.8 else [value[index]] * 2
        return [*value[:index], *changed, *value[index + 1:]]
    key = rng.choice(list(value))
    if rng.random() < 0.1:
        return {name: item for name, item in value.items() if name != key}
    return {**value, key: broken(rng, value[key])}


def test_broken_fields_are_no_5xx(plain_server: Server) -> None:
    rng = random.Random(7)
    statuses = set()
    for _ in range(400):
        body = broken(rng, rng.choice(BODIES))
        path = rng.choice(PATHS)
        answer = HTTP.post(plain_server.url + path, content=json.dumps(body).encode(),
                           headers={'Content-Type': 'application/json'})
        assert answer.status_code < 500, (path, body, answer.text)
        if answer.status_code >= 400:
            assert answer.json()['error']['message'], (path, body)
        statuses.add(answer.status_code)
    assert {200, 400} <= statuses


def test_broken_bytes_are_no_5xx(plain_server: Server) -> None:
    rng = random.Random(8)
    for _ in range(300):
        raw = bytearray(json.dumps(rng.choice(BODIES), ensure_ascii=False).encode())
        for _ in range(rng.randint(1, 4)):
            position = rng.randrange(len(raw))
            kind = rng.randrange(4)
            if kind == 0:
                raw[position] = rng.randrange(256)
            elif kind == 1:
                del raw[position:position + rng.randint(1, 20)]
                raw = raw or bytearray(b'{')
            elif kind == 2:
                raw[position:position] = rng.choice((b'\xff', b'\xed\xa0\x80', b'\x00', b'{', b'"',
                                                     b'\\u', b'1e999', b'NaN', b'\xf0\x9f'))
            else:
                raw[position:position] = raw[:position]
        answer = HTTP.post(plain_server.url + rng.choice(PATHS), content=bytes(raw),
                           headers={'Content-Type': 'application/json'})
        assert answer.status_code < 500, (bytes(raw), answer.text)


@pytest.mark.parametrize('body', [
    {'messages': [{'role': 'user', 'content': 'x' * 3_000_000}]},
    {'messages': USER * 1001}, {'messages': [{'role': 'user', 'content': 'a b ' * 200_000}]},
    {'messages': USER, 'stop': ['x' * 1_000_000]}, {'messages': USER, 'stop': ['x'] * 100_000},
    {'messages': USER, 'model': 'm' * 1_000_000},
    {'messages': USER, 'tools': [{'type': 'function', 'function': {'name': f'f{i}'}}
                                 for i in range(129)]},
    {'messages': USER, 'tools': [{'type': 'function', 'function': {
        'name': 'f', 'parameters': {'type': 'object', 'properties': {
            'x' * 100_000: {'type': 'string'}}}}}]},
    {'messages': USER, 'logit_bias': {str(i): 1.0 for i in range(100_000)}}],
    ids=lambda body: '-'.join(body))
def test_huge_requests_are_answered_soon(plain_server: Server, body: Any) -> None:
    begin = time.monotonic()
    answer = plain_server.post(body)
    assert answer.status_code in (200, 400, 404), answer.text[:300]
    assert len(answer.content) < 10_000
    assert time.monotonic() - begin < 10.0


def raw_request(server: Server, body: Any, path: str = '/v1/chat/completions') -> bytes:
    data = json.dumps(body).encode()
    return (f'POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
            f'Content-Length: {len(data)}\r\n\r\n').encode() + data


def connect(server: Server) -> socket.socket:
    return socket.create_connection(('127.0.0.1', int(server.url.rsplit(':', 1)[1])), 10.0)


def read_all(connection: socket.socket) -> bytes:
    data = b''
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionError:
        pass
    return data


def test_broken_http_is_no_5xx(plain_server: Server) -> None:
    rng = random.Random(9)
    whole = raw_request(plain_server, {'messages': USER})
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            position = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[position] = rng.randrange(256)
            else:
                del data[position:position + rng.randint(1, 30)]
                data = data or bytearray(b'\r\n')
        with connect(plain_server) as connection:
            connection.sendall(bytes(data[:rng.randrange(len(data)) + 1]))
            connection.shutdown(socket.SHUT_WR)
            answer = read_all(connection)
        assert not answer.startswith(b'HTTP/1.1 5'), (bytes(data), answer)


@pytest.mark.parametrize('stream', [True, False])
def test_clients_that_leave_end_their_request(start_server: StartServer, stream: bool) -> None:
    """Closed, half closed or reset: the sequence is gone within a few steps, and figures and
    audit hear of its end though nobody reads it.
    """
    server = start_server('word ' * 400 + '<turn|>', model__script_delay=0.01)
    stats = server.runtime.require_chat().stats
    ends: list[str] = []
    server.runtime.require_chat().on_result(
        lambda request, result: ends.append(str(result.finish_reason)))
    for number, leave in enumerate((
            lambda c: c.close(), lambda c: c.shutdown(socket.SHUT_WR),
            lambda c: (c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0'),
                       c.close()))):
        connection = connect(server)
        connection.sendall(raw_request(server, {'messages': USER, 'stream': stream, 'n': 2}))
        assert wait_until(lambda: stats().running == 2)
        steps = stats().steps
        leave(connection)
        assert wait_until(lambda: stats().running == 0, 1.0)
        assert stats().steps - steps < 30
        assert stats().requests_cancelled == 2 * (number + 1)
        assert wait_until(lambda: len(ends) == stats().requests_cancelled), ends
        connection.close()
    assert set(ends) == {'cancelled'}


def test_a_reader_that_takes_nothing_is_dropped(start_server: StartServer) -> None:
    server = start_server('word ' * 3000 + '<turn|>', model__script_delay=0.0,
                          engine__context_length=4096, http__write_timeout=0.5)
    stats = server.runtime.require_chat().stats
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(('127.0.0.1', int(server.url.rsplit(':', 1)[1])))
    body = {'messages': USER, 'stream': True, 'max_tokens': 3000, 'n': 8, 'logprobs': True,
            'top_logprobs': 20}
    connection.sendall(raw_request(server, body))
    assert wait_until(lambda: stats().running == 8)
    assert server.post({'messages': USER, 'max_tokens': 3}).status_code == 200
    assert wait_until(lambda: stats().running == 0, 5.0)
    assert stats().requests_cancelled > 0
    connection.close()


def test_slow_heads_and_bodies_are_dropped(start_server: StartServer) -> None:
    server = start_server('x<turn|>', http__read_timeout=0.3)
    whole = raw_request(server, {'messages': USER})
    head = whole.index(b'\r\n\r\n') + 4
    for sent, expected in ((0, b''), (10, b''), (head + 3, b'HTTP/1.1 408')):
        with connect(server) as connection:
            connection.sendall(whole[:sent])
            begin = time.monotonic()
            assert read_all(connection)[:12] == expected
            assert 0.2 < time.monotonic() - begin < 9.0
    with connect(server) as connection:           # the second head on a kept connection
        connection.sendall(whole)
        assert connection.recv(12) == b'HTTP/1.1 200'
        connection.sendall(b'GET ')
        begin = time.monotonic()
        read_all(connection)
        assert time.monotonic() - begin < 3.0
    assert server.post({'messages': USER}).status_code == 200


def resident_bytes() -> int:
    return int(Path('/proc/self/statm').read_text().split()[1]) * 4096


def test_memory_stays_flat(plain_server: Server) -> None:
    """Bad bodies, large bodies, streams that are left and stored answers: nothing piles up."""
    def round_of(count: int) -> None:
        for number in range(count):
            large = {'input': 'x' * 20_000, 'metadata': {'n': number}, 'max_output_tokens': 1}
            plain_server.post(large, '/v1/responses')
            HTTP.post(f'{plain_server.url}/v1/chat/completions', content=b'[' * 50_000,
                      headers={'Content-Type': 'application/json'})
            with connect(plain_server) as connection:
                connection.sendall(raw_request(plain_server, {'messages': USER, 'stream': True}))
                connection.recv(10)
        gc.collect()

    round_of(40)
    before = resident_bytes()
    round_of(120)
    assert resident_bytes() - before < 24 << 20
