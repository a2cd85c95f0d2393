# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The FastAPI application: routes, request ids, readiness. Knows no ROS."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from gemma_thor_ros import __version__
from gemma_thor_ros.chat import Chat
from gemma_thor_ros.chat_stream import ChatStream
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime, State
from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.server import errors
from gemma_thor_ros.server.chat_completions import LogprobText, events, to_chat_request, whole
from gemma_thor_ros.server.openai_types import (
    ChatCompletion,
    ChatCompletionRequest,
    ErrorOut,
    Health,
    ModelCard,
    ModelList,
)
from gemma_thor_ros.server.security import Gate
from gemma_thor_ros.server.stream import AsyncStream, EventStream, race

_REQUEST_ID = re.compile(r'[A-Za-z0-9._:-]{1,64}')


def create_app(runtime: Runtime, config: EngineConfig, api_key: str = '') -> ASGIApp:
    """Return the application on a runtime, which may still be loading."""
    app = FastAPI(
        title='gemma_thor_ros',
        version=__version__,
        description="Gemma 4 on the robot, in OpenAI's words.",
    )
    started = int(time.time())
    errors.install(app)
    problems: dict[int | str, dict[str, Any]] = {
        status: {'model': ErrorOut} for status in (400, 401, 403, 413, 415, 429, 500, 503)
    }

    @app.get('/health', responses={503: {'model': Health}})
    async def health() -> Response:
        """Tell whether requests are served; 503 with the reason while they are not."""
        state = runtime.state
        body = Health(
            status='ok' if state is State.READY else state.value,
            progress=runtime.progress,
            stage=runtime.stage,
            error=runtime.error or None,
        )
        return JSONResponse(body.model_dump(), 200 if state is State.READY else 503)

    @app.get('/v1/models', responses=problems)
    async def models() -> ModelList:
        """List the model that is loaded."""
        info = _chat(runtime).model_info()
        return ModelList(
            data=[ModelCard(id=info.name, created=started, max_model_len=info.context_length)]
        )

    @app.post('/v1/chat/completions', response_model=ChatCompletion, responses=problems)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        chat = _chat(runtime)
        info = chat.model_info()
        if body.model and body.model != info.name:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f'model {body.model[:100]!r} is not served here, {info.name!r} is',
                'model',
            )
        request_id = _request_id(request)
        asked = to_chat_request(body, request_id)
        stream = await asyncio.to_thread(chat.submit, asked)
        pieces = LogprobText(chat.token_bytes) if body.logprobs else None
        headers = {'X-Request-Id': request_id}
        if body.stream:
            include_usage = body.stream_options is not None and body.stream_options.include_usage
            source = events(
                AsyncStream(stream), info.name, include_usage, config['http.keep_alive'], pieces
            )
            return EventStream(source, stream.cancel, headers)
        answer = await race(
            _whole(AsyncStream(stream), stream, info.name, pieces), request.receive, stream.cancel
        )
        if answer is None:  # nobody is there to read it
            return Response(status_code=499)
        return JSONResponse(answer.model_dump(exclude_none=False), headers=headers)

    if config['http.allowed_origins']:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config['http.allowed_origins'],
            allow_methods=['GET', 'POST'],
            allow_headers=['*'],
        )
    return Gate(app, config, api_key)


async def _whole(
    waiter: AsyncStream, stream: ChatStream, model: str, pieces: LogprobText | None
) -> ChatCompletion:
    created = int(time.time())
    content = []
    while not stream.done:
        for delta in await waiter.next(60.0):
            if pieces is not None and delta.logprobs:
                content.extend(pieces.of(delta)['content'])
    for delta in stream.poll():
        if pieces is not None and delta.logprobs:
            content.extend(pieces.of(delta)['content'])
    return whole(stream.result(0.0), model, created, {'content': content} if pieces else None)


def _chat(runtime: Runtime) -> Chat:
    """Return the chat, or raise NOT_READY with the reason."""
    return runtime.require_chat()


def _request_id(request: Request) -> str:
    """Return the client's X-Request-Id, or a new id."""
    given = request.headers.get('x-request-id', '')
    if given and not _REQUEST_ID.fullmatch(given):
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            'X-Request-Id may have 1 to 64 letters, digits, ".", "_", ":" or "-"',
            'X-Request-Id',
        )
    return given or f'chatcmpl-{uuid.uuid4().hex}'
