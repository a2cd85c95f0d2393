# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""GET / and /docs: web pages, self-contained documents that ask for nothing from elsewhere.

Their parts lie in web/. The content security policy names the hashes of a page's one style and its
one script, so that nothing else can run, whatever a model writes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter, Response

_FOLDER = Path(__file__).parent / 'web'


def page_router() -> APIRouter:
    """Return the routes; the pages are put together once."""
    router = APIRouter()
    pages = {
        '/': _document('page.html', 'markdown.js', 'images.js', 'chat.js'),
        '/docs': _document('api.html', 'api.js'),
    }
    for path, (content, headers) in pages.items():
        router.add_api_route(
            path, _sender(content, headers), methods=['GET', 'HEAD'], include_in_schema=False
        )
    return router


def _sender(content: bytes, headers: dict[str, str]) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, headers=headers)

    return send


def _document(page: str, *scripts: str) -> tuple[bytes, dict[str, str]]:
    """Return a page with its style and scripts in it, and its headers."""
    style = _read('page.css')
    script = '\n'.join(_read(name) for name in scripts)
    content = _read(page).replace('/*STYLE*/', style).replace('/*SCRIPT*/', script)
    headers = {
        'Content-Type': 'text/html; charset=utf-8',
        'Content-Security-Policy': policy(style, script),
        'X-Content-Type-Options': 'nosniff',
        'X-Frame-Options': 'DENY',
        'Referrer-Policy': 'no-referrer',
        'Cache-Control': 'no-cache',
    }
    return content.encode(), headers


def policy(style: str, script: str) -> str:
    """Return the content security policy of a page with one inline style and one script."""
    return '; '.join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "connect-src 'self'",
            'img-src data:',
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hash(text: str) -> str:
    return f'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding='utf-8')
