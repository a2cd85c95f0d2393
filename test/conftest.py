# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Options and fixtures that all tiers share: the real vocabulary for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

VOCAB = Path(__file__).resolve().parent.parent / '.vocab' / 'gemma4-tokenizer.json'
_HINT = (f'{VOCAB.name} is missing: run scripts/build_test_vocab.py (make test does); tests with '
         'the real vocabulary')


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption('--require-vocab', action='store_true',
                     help='fail, instead of skip, where the real vocabulary is missing')
    parser.addoption('--grid', action='store_true',
                     help='run the full counts of the exactness gates, not a sample (make grid)')


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get('skipped', [])
               if _HINT in str(report.longrepr)]
    if skipped:
        terminalreporter.write_sep('!', f'{_HINT} did NOT run: {len(skipped)} skipped', red=True)


@pytest.fixture(scope='session')
def grid(request: pytest.FixtureRequest) -> bool:
    """Whether the full counts are wanted."""
    wanted: bool = request.config.getoption('--grid')
    return wanted


@pytest.fixture(scope='session')
def vocab_file(request: pytest.FixtureRequest) -> Path:
    """The real tokenizer.json, built by scripts/build_test_vocab.py."""
    if not VOCAB.is_file():
        if request.config.getoption('--require-vocab'):
            pytest.fail(f'{_HINT} can not run')
        pytest.skip(_HINT)
    return VOCAB
