# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Who may talk to the endpoint: Host, Origin, content type, API key, body size and pace.

Gives each answer its X-Request-Id too. A pure ASGI layer in front of the app, so that nothing of a
refused request is read or parsed.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import re
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.server.errors import plain_error

_LOOPBACK_NAMES = ('localhost', '127.0.0.1', '::1')
# The pages and the description hold no secret; what the pages call needs the key.
_OPEN_PATHS = ('/', '/docs', '/openapi.json', '/health')
_REQUEST_ID = re.compile(r'[A-Za-z0-9._:-]{1,64}')
_BODIES_AT_ONCE = 8  # of the largest size; more memory is not given to bodies


def request_id(scope: Scope, prefix: str) -> str:
    """Return the id of a request: the client's X-Request-Id, or a new one with this prefix."""
    state = scope['state']
    if not state.get('request_id'):
        state['request_id'] = f'{prefix}-{uuid.uuid4().hex}'
    return str(state['request_id'])


def is_loopback(host: str) -> bool:
    """Tell whether an address to bind is reachable from this machine alone."""
    if host == 'localhost':
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_api_key(path: str) -> str:
    """Read the API key: one line, in a file that only its owner may read.

    Raises:
        ConfigError: the file can't be read, is empty, or others may read it.
    """
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        key = Path(path).read_text(encoding='utf-8').strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f'http.api_key_file {path}: {error}') from error
    if mode & 0o077:
        raise ConfigError(f'http.api_key_file {path} has mode {mode:04o}, it must be 0600')
    if not key:
        raise ConfigError(f'http.api_key_file {path} is empty')
    return key


def check_binding(config: EngineConfig) -> str:
    """Return the API key ('' = none); refuse to serve beyond loopback without one.

    Raises:
        ConfigError: no key for an address beyond loopback, or an unfit key file.
    """
    key = read_api_key(config['http.api_key_file']) if config['http.api_key_file'] else ''
    if not key and not is_loopback(config['http.host']):
        raise ConfigError(
            f'http.host {config["http.host"]} is reachable from other machines: '
            'http.api_key_file is required'
        )
    return key


class Gate:
    """ASGI middleware that lets a request through or answers it with an error."""

    def __init__(
        self,
        app: ASGIApp,
        config: EngineConfig,
        api_key: str,
        count_response: Callable[[str, int], None],
    ) -> None:
        self._app = app
        self._count_response = count_response
        self._api_key = api_key.encode()
        self._max_body = config['http.max_body'] << 20
        self._read_timeout_s = config['http.read_timeout']
        self._held_bytes = 0  # of all bodies that are being read or answered
        self._hosts = {
            *_LOOPBACK_NAMES,
            config['http.host'].lower(),
            *(name.lower() for name in config['http.allowed_hosts']),
        }
        self._any_address = not is_loopback(config['http.host'])
        self._origins = {origin.rstrip('/').lower() for origin in config['http.allowed_origins']}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope['type'] != 'http':
            await self._app(scope, receive, send)
            return
        headers = dict(scope['headers'])
        state = scope.setdefault('state', {})
        given = headers.get(b'x-request-id', b'').decode('latin-1')

        async def send_with_id(message: Message) -> None:
            if message['type'] == 'http.response.start':
                name = (b'x-request-id', request_id(scope, 'req').encode())
                message = {**message, 'headers': [*message['headers'], name]}
                self._count_response(_label(scope), message['status'])
            await send(message)

        if not given or _REQUEST_ID.fullmatch(given):
            state['request_id'] = given
            refusal = self._check(scope, headers)
        else:
            refusal = plain_error(
                400,
                'X-Request-Id may have 1 to 64 letters, digits, ".", "_", ":" or "-"',
                'invalid_request_error',
                'invalid_value',
                'X-Request-Id',
            )
        if refusal is not None:
            await refusal(scope, receive, send_with_id)
        elif scope['method'] == 'POST':
            await self._buffered(scope, receive, send_with_id)
        else:
            await self._app(scope, receive, send_with_id)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> JSONResponse | None:
        """Return the refusal, or None."""
        host = headers.get(b'host', b'').decode('latin-1').lower()
        if not self._host_allowed(host):
            return plain_error(
                403,
                f'host {host[:100]!r} is not in http.allowed_hosts',
                'permission_error',
                'host_not_allowed',
            )
        origin = headers.get(b'origin', b'').decode('latin-1').rstrip('/').lower()
        if (
            origin
            and origin not in self._origins
            and origin not in (f'http://{host}', f'https://{host}')
        ):
            return plain_error(
                403,
                f'origin {origin[:100]!r} is not in http.allowed_origins',
                'permission_error',
                'origin_not_allowed',
            )
        if scope['path'] not in _OPEN_PATHS and scope['method'] != 'OPTIONS' and self._api_key:
            scheme, _, given = headers.get(b'authorization', b'').partition(b' ')
            if scheme.lower() != b'bearer' or not hmac.compare_digest(
                given.strip(), self._api_key
            ):
                return plain_error(
                    401,
                    'a valid API key is required: Authorization: Bearer <key>',
                    'authentication_error',
                    'invalid_api_key',
                )
        if scope['method'] == 'POST':
            kind = (
                headers.get(b'content-type', b'')
                .decode('latin-1')
                .partition(';')[0]
                .strip()
                .lower()
            )
            if kind != 'application/json':
                return plain_error(
                    415,
                    f'content type {kind[:100]!r} is not accepted, send application/json',
                    'invalid_request_error',
                    'unsupported_media_type',
                )
        length = headers.get(b'content-length', b'0')
        if not length.isdigit() or int(length) > self._max_body:
            return self._too_large()
        return None

    def _host_allowed(self, host: str) -> bool:
        try:
            name = urlsplit(f'//{host}').hostname
        except ValueError:
            return False
        if not name:
            return False
        if name in self._hosts:
            return True
        if not self._any_address:
            return False
        try:  # a rebound name is never an address literal
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _too_large(self) -> JSONResponse:
        return _closing(
            plain_error(
                413,
                f'the body is larger than http.max_body, {self._max_body >> 20} MiB',
                'invalid_request_error',
                'body_too_large',
            )
        )

    async def _buffered(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body, then run the app on it."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._read_timeout_s):
                refusal = await self._read(receive, parts)
        except TimeoutError:
            refusal = _too_slow(self._read_timeout_s)
        try:
            if refusal is not None:
                await refusal(scope, receive, send)
            elif parts:
                await self._app(scope, _replay(b''.join(parts), receive), send)
        finally:
            self._held_bytes -= sum(map(len, parts))

    async def _read(self, receive: Receive, parts: list[bytes]) -> JSONResponse | None:
        """Read the body into `parts`, which stays empty when the client goes away; return the
        refusal, if any.
        """
        size = 0
        while True:
            message = await receive()
            if message['type'] == 'http.disconnect':
                self._held_bytes -= size
                parts.clear()
                return None
            part = message.get('body', b'')
            parts.append(part)
            size += len(part)
            self._held_bytes += len(part)
            if size > self._max_body:
                return self._too_large()
            if self._held_bytes > _BODIES_AT_ONCE * self._max_body:
                return _busy()
            if not message.get('more_body', False):
                return None


def _label(scope: Scope) -> str:
    """Return the route's path for the metrics; what has no route must not make labels."""
    route = scope.get('route')
    return str(getattr(route, 'path', 'none'))


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive that gives the whole body first."""
    pending: list[Message] = [{'type': 'http.request', 'body': body, 'more_body': False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _too_slow(limit_s: float) -> JSONResponse:
    return _closing(
        plain_error(
            408,
            f'the body did not arrive within http.read_timeout, {limit_s:g} s',
            'invalid_request_error',
            'body_too_slow',
        )
    )


def _closing(answer: JSONResponse) -> JSONResponse:
    """Have the connection closed: the rest of the body is not wanted."""
    answer.headers['Connection'] = 'close'
    return answer


def _busy() -> JSONResponse:
    answer = plain_error(429, 'too many large requests at once', 'rate_limit_error', 'busy')
    answer.headers['Retry-After'] = '1'
    return answer
