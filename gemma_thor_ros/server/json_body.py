# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Reading a request's JSON: strict UTF-8, finite numbers, bounded depth, whole characters.

Whatever passes can be echoed as JSON again and be walked without fear of the recursion limit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

MAX_DEPTH = 100
_SURROGATE = re.compile(rb'\\u[dD][89a-fA-F]')


def parse_json(body: bytes) -> Any:
    """Parse a body. Halves of a surrogate pair become U+FFFD, as JavaScript clients cut texts.

    Raises:
        json.JSONDecodeError: whatever is wrong, so that FastAPI takes it for a client's fault.
    """
    try:
        text = body.decode('utf-8')
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError('not UTF-8', '', error.start) from None
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except OverflowError as error:  # NaN, 1e400
        raise json.JSONDecodeError(str(error), '', 0) from None
    except ValueError:  # of int(): Python speaks of its own settings
        raise json.JSONDecodeError('an integer has too many digits', '', 0) from None
    if body.count(b'[') + body.count(b'{') > MAX_DEPTH:
        _check_depth(value)
    if _SURROGATE.search(body):
        mended = json.dumps(value, ensure_ascii=False).encode('utf-16-le', 'surrogatepass')
        value = json.loads(mended.decode('utf-16-le', 'replace'))
    return value


class JsonRoute(APIRoute):
    """A route whose body is read by parse_json."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handler


class _JsonRequest(Request):
    async def json(self) -> Any:
        return parse_json(await self.body())


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        nested: list[Any] = []
        for item in level:
            nested.extend(item.values() if isinstance(item, dict) else item)
        level = [item for item in nested if isinstance(item, (dict, list))]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> json.JSONDecodeError:
    return json.JSONDecodeError(f'nested deeper than {MAX_DEPTH} levels', '', 0)


def _no_constant(name: str) -> Any:
    raise OverflowError(f'{name} is no JSON number')


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise OverflowError(f'{text[:20]} is too large')
    return value
