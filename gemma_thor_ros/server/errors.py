# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Errors in OpenAI's form: one table from our codes to HTTP status, type and code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.server.openai_types import ErrorBody, ErrorOut

# code -> (HTTP status, OpenAI type, OpenAI code)
_TABLE: dict[ErrorCode, tuple[int, str, str]] = {
    ErrorCode.INVALID_REQUEST: (400, 'invalid_request_error', 'invalid_value'),
    ErrorCode.CONTEXT_LENGTH: (400, 'invalid_request_error', 'context_length_exceeded'),
    ErrorCode.UNSUPPORTED: (400, 'invalid_request_error', 'unsupported_parameter'),
    ErrorCode.MEMORY: (400, 'invalid_request_error', 'memory_exceeded'),
    ErrorCode.UNKNOWN_SESSION: (404, 'invalid_request_error', 'unknown_session'),
    ErrorCode.UNKNOWN_REQUEST: (404, 'invalid_request_error', 'unknown_request'),
    ErrorCode.FORBIDDEN: (403, 'permission_error', 'forbidden'),
    ErrorCode.STOPPED: (409, 'conflict_error', 'stopped'),
    ErrorCode.BUSY: (429, 'rate_limit_error', 'busy'),
    ErrorCode.CANCELLED: (499, 'cancelled_error', 'cancelled'),
    ErrorCode.TIMEOUT: (504, 'timeout_error', 'timeout'),
    ErrorCode.DEADLINE: (504, 'timeout_error', 'deadline'),
    ErrorCode.NOT_READY: (503, 'service_unavailable_error', 'not_ready'),
    ErrorCode.DEVICE: (503, 'service_unavailable_error', 'device_error'),
    ErrorCode.ENGINE: (500, 'server_error', 'engine_error'),
}


# What these say may hold a checkpoint's path; the others speak of the request.
_OF_THE_MACHINE = (ErrorCode.NOT_READY, ErrorCode.MEMORY, ErrorCode.ENGINE, ErrorCode.DEVICE)
_TYPE = re.compile(r'(str|int|float|bool|list|dict)(\[.*\])?')
# What a request of /v1/responses calls otherwise; the items of its input are not our messages.
_IN_RESPONSES = (
    (re.compile(r'^messages(\[\d+\])?'), 'input'),
    (re.compile(r'^max_tokens\b'), 'max_output_tokens'),
)
_IN_HTTP = {'deadline': 'deadline_ms'}  # fields that a ROS goal has by other names
_FOLDERS = re.compile(r'(?<![\w/:.])~?/(?:[^\s/\'",;:()]+/)+')


def without_folders(text: str) -> str:
    """Return a text of the machine with file names in place of whole paths."""
    return _FOLDERS.sub('', text)


class ModelNotFound(Exception):
    """The request names a model that is not served."""

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(f'model {asked[:100]!r} is not served here, {served!r} is')


class ResponseNotFound(Exception):
    """The request names an answer that is not stored."""

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f'response {response_id[:100]!r} is not stored: it was never kept, or has made room '
            'for later ones (http.max_stored)'
        )


def error_body(code: ErrorCode, message: str, param: str = '') -> ErrorOut:
    """Return the body of an error of ours."""
    _, kind, name = _TABLE.get(code, (500, 'server_error', 'internal_error'))
    if code in _OF_THE_MACHINE:
        message = without_folders(message)
    param = _IN_HTTP.get(param, param)
    return ErrorOut(error=ErrorBody(message=message, type=kind, param=param or None, code=name))


def error_response(code: ErrorCode, message: str, param: str = '') -> JSONResponse:
    """Return the answer of an error of ours."""
    status = _TABLE.get(code, (500, '', ''))[0]
    headers = {'Retry-After': '1'} if status in (429, 503) else None
    return JSONResponse(error_body(code, message, param).model_dump(), status, headers)


def plain_error(
    status: int, message: str, kind: str, name: str, param: str | None = None
) -> JSONResponse:
    """Return an error that has no code of ours (routing, security, body)."""
    body = ErrorOut(error=ErrorBody(message=message, type=kind, param=param, code=name))
    return JSONResponse(body.model_dump(), status)


def _field(path: Sequence[int | str]) -> str:
    """Return a field's name: what pydantic found at fault, without its names of types."""
    return '.'.join(str(item) for item in path[1:] if not _TYPE.fullmatch(str(item)))


def install(app: FastAPI) -> None:
    """Make every error of the app an OpenAI-style body."""

    @app.exception_handler(RequestError)
    async def _request_error(request: Request, error: RequestError) -> JSONResponse:
        message, param = error.message, error.param
        if request.url.path.endswith('/responses'):
            for ours, theirs in _IN_RESPONSES:
                message, param = ours.sub(theirs, message), ours.sub(theirs, param)
        return error_response(error.code, message, param)

    @app.exception_handler(ModelNotFound)
    async def _model_not_found(_: Request, error: ModelNotFound) -> JSONResponse:
        return plain_error(404, str(error), 'invalid_request_error', 'model_not_found', 'model')

    @app.exception_handler(ResponseNotFound)
    async def _response_not_found(_: Request, error: ResponseNotFound) -> JSONResponse:
        return plain_error(
            404,
            str(error),
            'invalid_request_error',
            'response_not_found',
            'previous_response_id',
        )

    @app.exception_handler(Exception)
    async def _bug(_: Request, error: Exception) -> JSONResponse:
        # Ours: the server logs it with its traceback, the client learns nothing of the inside.
        return plain_error(500, 'internal error, see the log', 'server_error', 'internal_error')

    @app.exception_handler(RequestValidationError)
    async def _validation(_: Request, error: RequestValidationError) -> JSONResponse:
        errors = error.errors()
        first = errors[0]
        param = _field(first['loc'])
        if first['type'] == 'json_invalid':
            detail = first.get('ctx', {}).get('error', '')
            return error_response(ErrorCode.INVALID_REQUEST, f'the body is not JSON: {detail}')
        # A field of several forms has an error for each of them.
        words = ' or: '.join(dict.fromkeys(e['msg'] for e in errors if _field(e['loc']) == param))
        return error_response(
            ErrorCode.INVALID_REQUEST, f'{param or "body"}: {words}'[:500], param
        )

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        names = {404: 'not_found', 405: 'method_not_allowed'}
        answer = plain_error(
            error.status_code,
            str(error.detail),
            'invalid_request_error',
            names.get(error.status_code, 'bad_request'),
        )
        answer.headers.update(error.headers or {})  # Allow, with 405
        return answer
