# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""GET /: the web page, one self-contained document that asks for nothing from elsewhere.

Its parts lie in web/. The content security policy names the hashes of its one style and its one
script, so that nothing else can run, whatever a model writes.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from fastapi import APIRouter, Response

_FOLDER = Path(__file__).parent / 'web'


def page_router() -> APIRouter:
    """Return the route; the page is put together once."""
    router = APIRouter()
    style = _read('page.css')
    script = f'{_read("markdown.js")}\n{_read("chat.js")}'
    page = _read('page.html').replace('/*STYLE*/', style).replace('/*SCRIPT*/', script).encode()
    headers = {
        'Content-Type': 'text/html; charset=utf-8',
        'Content-Security-Policy': policy(style, script),
        'X-Content-Type-Options': 'nosniff',
        'X-Frame-Options': 'DENY',
        'Referrer-Policy': 'no-referrer',
        'Cache-Control': 'no-cache',
    }

    @router.get('/', include_in_schema=False)
    async def page_route() -> Response:
        return Response(page, headers=headers)

    return router


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
