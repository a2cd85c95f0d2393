# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A sidecar and a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.server.run import Sidecar

from .browser import Browser, Page, find_chromium

OpenPage = Callable[..., Page]


@pytest.fixture(scope='session')
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip('NO BROWSER: the page is not tested. scripts/install_web_test.sh installs '
                    'Chromium on Debian and Ubuntu')
    started = Browser(program, tmp_path_factory.mktemp('profile'))
    yield started
    started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Start a server with a script and open its page; all servers are stopped after the test."""
    ends: list[Callable[[], Any]] = []

    def start(*script: str, width: int = 1000, height: int = 760, path: str = '/',
              **settings: Any) -> Page:
        values = {'model.path': 'scripted', 'model.script': list(script), 'http.port': 0,
                  **{name.replace('__', '.'): value for name, value in settings.items()}}
        config = EngineConfig.from_mapping(values)
        runtime = Runtime(config)
        sidecar = Sidecar(runtime, config)
        runtime.start()
        port = sidecar.start()
        ends.extend((lambda: runtime.stop(5.0), lambda: sidecar.stop(5.0)))
        page = browser.open(f'http://127.0.0.1:{port}{path}', width, height)
        page.runtime = runtime                           # type: ignore[attr-defined]
        return page

    yield start
    for end in ends:
        end()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption('--screenshot', action='store_true', help='make docs/web_page.png anew')
