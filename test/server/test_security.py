# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Who may talk to the endpoint, and bad input: the right error, and the server lives on."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.server.run import Sidecar

from .conftest import HTTP, Server, StartServer

USER: Any = [{'role': 'user', 'content': 'hi'}]
PATH = '/v1/chat/completions'


def key_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / 'key'
    path.write_text(text)
    os.chmod(path, mode)
    return str(path)


def test_key_is_checked(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server('x<turn|>', http__api_key_file=key_file(tmp_path, 'secret\n'))
    assert server.post({'messages': USER}).status_code == 401
    for header in ('Bearer wrong', 'Basic secret', 'secret', 'Bearer secret2'):
        answer = server.post({'messages': USER}, headers={'Authorization': header})
        assert answer.status_code == 401
        assert answer.json()['error']['code'] == 'invalid_api_key'
    good = server.post({'messages': USER}, headers={'Authorization': 'Bearer secret'})
    assert good.status_code == 200
    assert HTTP.get(f'{server.url}/health').status_code == 200


@pytest.mark.parametrize(('text', 'mode', 'words'), [
    ('secret', 0o644, 'has mode 0644, it must be 0600'), ('\n', 0o600, 'is empty')])
def test_unfit_key_files(tmp_path: Path, text: str, mode: int, words: str) -> None:
    config = EngineConfig.from_mapping({'http.api_key_file': key_file(tmp_path, text, mode),
                                        'http.port': 0})
    with pytest.raises(ConfigError, match=words):
        Sidecar(Runtime(config), config).start()


def test_beyond_loopback_needs_a_key() -> None:
    config = EngineConfig.from_mapping({'http.host': '0.0.0.0', 'http.port': 0})
    with pytest.raises(ConfigError, match='api_key_file is required'):
        Sidecar(Runtime(config), config).start()


def test_port_in_use_names_host_and_port() -> None:
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = EngineConfig.from_mapping({'http.port': port})
        with pytest.raises(ConfigError, match=f'127.0.0.1, http.port {port}'):
            Sidecar(Runtime(config), config).start()


@pytest.mark.parametrize('headers', [
    {'Host': 'evil.example'}, {'Host': 'evil.example:8000'}, {'Host': '[::bad'},
    {'Host': '127.0.0.1.evil.example'}, {'Origin': 'http://evil.example'}, {'Origin': 'null'}])
def test_other_pages_and_rebound_names_start_nothing(plain_server: Server,
                                                     headers: dict[str, str]) -> None:
    before = plain_server.runtime.require_chat().stats().requests_finished
    assert plain_server.post({'messages': USER}, headers=headers).status_code == 403
    assert plain_server.runtime.require_chat().stats().requests_finished == before


def test_allowed_origin_gets_cors_headers(start_server: StartServer) -> None:
    server = start_server('x<turn|>', http__allowed_origins=['http://ui.robot:3000'])
    answer = server.post({'messages': USER}, headers={'Origin': 'http://ui.robot:3000'})
    assert answer.status_code == 200
    assert answer.headers['access-control-allow-origin'] == 'http://ui.robot:3000'


@pytest.mark.parametrize('kind', ['text/plain', 'application/x-www-form-urlencoded',
                                  'multipart/form-data; boundary=x', ''])
def test_form_posts_start_nothing(plain_server: Server, kind: str) -> None:
    answer = HTTP.post(plain_server.url + PATH, content=b'{"messages":[]}',
                        headers={'Content-Type': kind})
    assert answer.status_code == 415


def test_body_limit_with_and_without_length(start_server: StartServer) -> None:
    server = start_server('x<turn|>', http__max_body=1)
    large = b'{"messages":"' + b'x' * (1 << 20) + b'"}'
    headers = {'Content-Type': 'application/json'}
    assert HTTP.post(server.url + PATH, content=large, headers=headers).status_code == 413
    chunks = (large[i:i + 65536] for i in range(0, len(large), 65536))
    assert HTTP.post(server.url + PATH, content=chunks, headers=headers).status_code == 413
    assert server.post({'messages': USER}).status_code == 200


@pytest.mark.parametrize('content', [
    b'', b'{', b'[]', b'null', b'"x"', b'{"messages": 1}', b'{"messages": []}', b'\xff\xfe',
    b'{"a":NaN}',
    b'[' * 100_000, b'{"messages":' + b'[' * 50_000 + b']' * 50_000 + b'}',
    b'{"messages":[{"role":"user","content":"\\ud800"}],"temperature":"x"}',
    b'{"messages":[{"role":"user","content":"x"}],"tools":' + b'[{"a":' * 5000 + b'1'
    + b'}]' * 5000 + b'}',
    b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1e400}',
    b'{"messages":[{"role":"user","content":"x"}],"seed":123456789012345678901234567890}',
    b'{"messages":[{"role":"user","content":"x"}],"n":0}',
    b'{"messages":[{"role":"user","content":"x"}],"tool_choice":"required"}',
    b'{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json"}}',
    b'{"messages":[{"role":"user","content":"x"}],"model":"gpt-9"}',
    b'{"messages":[{"role":"user","content":"x"}],"priority":"operator"}'])
def test_bad_bodies_are_4xx_and_the_server_lives(plain_server: Server,
                                                 content: bytes) -> None:
    answer = HTTP.post(plain_server.url + PATH, content=content,
                        headers={'Content-Type': 'application/json'})
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()['error']['message']
    assert 'Traceback' not in answer.text
    assert plain_server.post({'messages': USER}).status_code == 200


def test_prompt_longer_than_the_context_gives_both_numbers(start_server: StartServer) -> None:
    server = start_server('x<turn|>', engine__context_length=256)
    answer = server.post({'messages': [{'role': 'user', 'content': 'word ' * 1000}]})
    assert answer.status_code == 400
    error = answer.json()['error']
    assert error['code'] == 'context_length_exceeded'
    assert '256' in error['message']
    assert any(part.replace(',', '').isdigit() and int(part.replace(',', '')) > 1000
               for part in error['message'].split())


def test_unknown_paths_and_methods(plain_server: Server) -> None:
    assert plain_server.get('/v2/nothing').status_code == 404
    assert plain_server.get(PATH).status_code == 405
    assert plain_server.get('/v2/nothing').json()['error']['code'] == 'not_found'


@pytest.mark.parametrize('path', ['/', '/docs', '/health'])
def test_head_is_get_without_a_body(plain_server: Server, path: str) -> None:
    head = HTTP.head(plain_server.url + path)
    assert (head.status_code, head.content) == (200, b'')
    assert head.headers['content-length'] == plain_server.get(path).headers['content-length']


def test_request_id_comes_back_and_is_checked(plain_server: Server) -> None:
    answer = plain_server.post({'messages': USER}, headers={'X-Request-Id': 'robot-7'})
    assert answer.headers['x-request-id'] == 'robot-7'
    assert answer.json()['id'] == 'robot-7'
    answer = plain_server.post({'messages': USER}, headers={'X-Request-Id': 'x' * 65})
    assert answer.status_code == 400
