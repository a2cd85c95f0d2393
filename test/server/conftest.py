# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A sidecar on the scripted model, in this process, on a free port."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.server.run import Sidecar

# One for all tests: a client takes longer to make than most answers take.
HTTP = httpx.Client(timeout=20.0, trust_env=False)


@dataclass
class Server:
    """A running endpoint."""

    runtime: Runtime
    sidecar: Sidecar
    url: str

    def client(self, **options: Any) -> openai.OpenAI:
        settings = {'api_key': 'none', 'max_retries': 0, 'timeout': 20.0, **options}
        return openai.OpenAI(base_url=f'{self.url}/v1', **settings)

    def post(self, body: Any, path: str = '/v1/chat/completions',
             **options: Any) -> httpx.Response:
        return HTTP.post(self.url + path, json=body, **options)

    def get(self, path: str) -> httpx.Response:
        return HTTP.get(self.url + path)


StartServer = Callable[..., Server]
EndServer = Callable[[Server], None]


def wait_until(condition: Any, seconds: float = 3.0) -> bool:
    """Whether a condition becomes true within so many seconds."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


@pytest.fixture(scope='session')
def ends() -> Iterator[EndServer]:
    """Ends servers beside the tests: each takes a moment. What did not end shows at the end."""
    stopping: list[Future[bool]] = []
    with ThreadPoolExecutor(2) as pool:
        yield lambda server: stopping.append(pool.submit(_end, server))
    assert all(future.result() for future in stopping), 'a server did not end'


def _end(server: Server) -> bool:
    return server.runtime.stop(5.0) and server.sidecar.stop(5.0)


@pytest.fixture
def start_server(ends: EndServer) -> Iterator[StartServer]:
    """Start servers; all are stopped after the test."""
    yield from _starter(ends)


@pytest.fixture(scope='session')
def plain_server(ends: EndServer) -> Iterator[Server]:
    """One server that answers 'x', for tests that leave nothing behind."""
    for start in _starter(ends):
        yield start('x<turn|>')


def _starter(end: EndServer) -> Iterator[StartServer]:
    servers: list[Server] = []

    def start(*script: str, wait: bool = True, **settings: Any) -> Server:
        values = {'model.path': 'scripted', 'model.script': list(script), 'http.port': 0,
                  **{name.replace('__', '.'): value for name, value in settings.items()}}
        config = EngineConfig.from_mapping(values)
        runtime = Runtime(config)
        sidecar = Sidecar(runtime, config)
        runtime.start()
        port = sidecar.start()
        server = Server(runtime, sidecar, f'http://127.0.0.1:{port}')
        servers.append(server)
        if wait:
            assert runtime.wait_ready(20.0), runtime.error
        return server

    yield start
    for server in servers:
        end(server)
