# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The verb `bench-http`: figures that fit what the server did, and failures that are counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemma_thor_ros.cli.main import main

from .conftest import Server, StartServer


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(['bench-http', *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err
    return run


def test_figures_fit_a_known_step(start_server: StartServer, bench: Any) -> None:
    """Steps of 10 ms: so many between tokens, and throughput grows with the concurrency."""
    server = start_server('a b c d ' * 100 + '<turn|>', model__script_delay=0.01)
    code, out, _ = bench('--url', f'{server.url}/v1', '--concurrency', '1,4', '--requests', '4',
                         '--max-tokens', '20', '--prompt-words', '5', '--json')
    assert code == 0
    result = json.loads(out)
    assert result['model'] == 'scripted'
    one, four = result['levels']
    assert (one['concurrency'], four['concurrency']) == (1, 4)
    for level in (one, four):
        assert (level['requests'], level['failed'], level['tokens']) == (4, 0, 80)
        assert 9.0 < level['between_ms_p50'] <= level['between_ms_p99']
        assert 10.0 < level['ttft_ms_p50'] <= level['ttft_ms_p99']
        assert level['request_ms_p50'] > 190.0
    assert one['between_ms_p50'] < 40.0
    assert 10.0 < one['tok_s'] <= 100.0
    assert four['tok_s'] > 1.5 * one['tok_s']


def test_table_and_failures(start_server: StartServer, bench: Any) -> None:
    server = start_server('a b c d ' * 100 + '<turn|>', engine__max_sequences=1,
                          engine__max_waiting=0, model__script_delay=0.002)
    code, out, _ = bench('--url', f'{server.url}/v1', '--concurrency', '3', '--max-tokens', '8',
                         '--prompt-words', '3', '--json')
    level = json.loads(out)['levels'][0]
    assert code == 1
    assert level['failed'] > 0
    assert 'requests' in level['error']
    code, out, _ = bench('--url', f'{server.url}/v1', '--concurrency', '1', '--requests', '1',
                         '--max-tokens', '8')
    assert code == 0
    assert 'tok/s' in out
    assert '…' not in out                        # all of it fits a terminal of 80 columns


def test_bad_usage(plain_server: Server, bench: Any) -> None:
    url = f'{plain_server.url}/v1'
    for arguments in (('--concurrency', 'x'), ('--concurrency', '0'), ('--max-tokens', '1')):
        assert bench('--url', url, *arguments)[0] == 2
    code, _, err = bench('--url', 'http://127.0.0.1:9/v1')
    assert (code, 'no server answers there' in err) == (1, True)
    code, _, err = bench('--url', url, '--model', 'gpt-9')
    assert (code, 'gpt-9' in err) == (1, True)
