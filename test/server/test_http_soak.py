# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""64 clients at once on the demo model: bench/http_soak.py for 15 seconds, and what it catches."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gemma_thor_ros.load import Runtime

sys.path.append(str(Path(__file__).resolve().parents[2] / 'bench'))

import http_soak

CLIENTS = 64


@pytest.fixture(scope='module')
def demo() -> Iterator[tuple[Runtime, str]]:
    runtime, sidecar, url = http_soak.serve(CLIENTS)
    yield runtime, url
    runtime.stop(5.0)
    sidecar.stop(5.0)


def test_every_request_of_64_clients_ends_right(demo: tuple[Runtime, str]) -> None:
    runtime, url = demo
    report = http_soak.soak(url, 15.0, CLIENTS)
    assert not report.problems + http_soak.leftovers(runtime)
    assert report.ends.total() >= CLIENTS and report.tokens > 10 * report.ends.total()
    ways = {end.split()[1] for end in report.ends}
    assert ways == {'whole', 'streamed', 'left'}


# a stream that is left, one that is read, a whole answer
@pytest.mark.parametrize('turn', [0, 1, 3])
def test_an_answer_of_another_request_is_noticed(demo: tuple[Runtime, str], turn: int) -> None:
    _, url = demo
    hello, drive = http_soak.cases()[0], http_soak.cases()[2]

    async def ask() -> http_soak.Report:
        report = http_soak.Report()
        async with httpx.AsyncClient(base_url=url, timeout=30.0, trust_env=False) as http:
            right = await http_soak._whole(http, hello)
            await http_soak._ask(http, hello, right, turn, report)
            assert not report.problems
            other = await http_soak._whole(http, drive)
            await http_soak._ask(http, hello, other, turn, report)
        return report

    report = asyncio.run(ask())
    assert len(report.problems) == 1 and 'hello' in report.problems[0]
