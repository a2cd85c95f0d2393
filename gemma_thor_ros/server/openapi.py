# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the OpenAPI page says beyond the models: which errors a route may answer, that answers may
be streamed, and that a key may be needed. The page has to be true; a test runs schemathesis on it.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gemma_thor_ros.server.openai_types import ErrorOut

Responses = dict[int | str, dict[str, Any]]

_MEANINGS = {
    400: 'a field is wrong, or not served',
    401: 'no valid API key',
    403: 'host or origin not allowed, or a priority above the limit',
    404: 'no such model, response or path',
    408: 'the body came too slowly',
    409: 'a stop is active',
    413: 'the body is too large',
    415: 'not application/json',
    429: 'the queue is full: try again',
    500: 'our fault; the log has the reason',
    503: 'the model is loading, or has failed: see /health',
    504: 'a time limit or deadline passed',
}
_EVENT = {
    'type': 'object',
    'properties': {
        'event': {'type': 'string'},
        'data': {'type': 'string', 'description': 'a chunk as JSON; [DONE] at the end of chats'},
    },
    'required': ['data'],
}
_ALWAYS = (400, 401, 403, 503)  # 400: an X-Request-Id that is none
_WITH_BODY = (408, 413, 415, 429)
_GENERATING = (404, 409, 500, 504)


def problems(*more: int) -> Responses:
    """Return the errors of a route: those that every route has, and `more`."""
    statuses = sorted({*_ALWAYS, *more, *(_WITH_BODY if 400 in more else ())})
    return {
        status: {'model': ErrorOut, 'description': _MEANINGS[status]} for status in statuses
    }


def streamed() -> Responses:
    """Return the answers of a route that generates, whole or streamed."""
    events = {'text/event-stream': {'schema': _EVENT}}
    return {
        200: {'description': 'the answer, or with stream: true its events', 'content': events},
        **problems(400, *_GENERATING),
    }


def install(app: FastAPI, with_key: bool) -> None:
    """Make the app's page: no answers that never come, and the key where one is needed."""

    def page() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            for path in schema['paths'].values():
                for operation in path.values():
                    operation['responses'].pop('422', None)  # ours are 400, in OpenAI's form
            for name in ('HTTPValidationError', 'ValidationError'):
                schema.get('components', {}).get('schemas', {}).pop(name, None)
            if with_key:
                scheme = {'type': 'http', 'scheme': 'bearer'}
                schema['components']['securitySchemes'] = {'key': scheme}
                schema['security'] = [{'key': []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = page  # type: ignore[method-assign]
