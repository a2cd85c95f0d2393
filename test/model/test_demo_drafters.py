# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo model's drafters in our engine: the same answers, in fewer steps.

A retrained demo model needs its drafters trained anew (demo_model/train_drafters.py): here it
shows when that was forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import DEMO_FOLDER, Runtime
from gemma_thor_ros.models.dflash import DFlash
from gemma_thor_ros.schema import ChatRequest

FEWEST = {'dflash': 4.0, 'mtp': 2.0}     # tokens a round, the target's own included
DRAFTS = {'dflash': 7, 'mtp': 3}
LIMIT_BYTES = 16 << 20
TOOLS = [
    {'type': 'function', 'function': {
        'name': 'drive', 'description': 'Drive straight ahead or back.', 'parameters': {
            'type': 'object', 'required': ['distance', 'unit', 'direction'], 'properties': {
                'distance': {'type': 'number', 'description': 'How far, a positive number'},
                'unit': {'type': 'string', 'enum': ['m', 'cm', 'mm', 'ft', 'in'],
                         'description': 'Unit of distance'},
                'direction': {'type': 'string', 'enum': ['forward', 'backward']}}}}},
    {'type': 'function', 'function': {
        'name': 'turn', 'description': 'Turn on the spot.', 'parameters': {
            'type': 'object', 'required': ['angle', 'unit', 'direction'], 'properties': {
                'angle': {'type': 'number', 'description': 'How far, a positive number'},
                'unit': {'type': 'string', 'enum': ['deg', 'rad'], 'description': 'Unit of angle'},
                'direction': {'type': 'string', 'enum': ['left', 'right']}}}}},
]
WORDS = ('drive two metres forward', 'turn left by 45 degrees',
         'move ahead half a metre and then turn right by 90 degrees')

PRESENT = [kind for kind in DRAFTS if (DEMO_FOLDER / kind).is_dir()]


def answers(**settings: Any) -> tuple[list[tuple[int, ...]], float]:
    """Greedy answers, and tokens a round where there were rounds."""
    runtime = Runtime(EngineConfig.from_mapping(
        {f'speculation.{name}': value for name, value in settings.items()}))
    runtime.start()
    try:
        assert runtime.wait_ready(120.0), runtime.error
        results = [runtime.require_chat().submit(ChatRequest(
            [{'role': 'user', 'content': words}], TOOLS, enable_thinking=False,
            sampling={'temperature': 0.0, 'max_tokens': 80})).result(60.0) for words in WORDS]
    finally:
        runtime.stop()
    rounds = sum(result.usage.rounds for result in results)
    accepted = sum(result.usage.accepted_tokens for result in results)
    return ([tuple(result.token_ids) for result in results],
            1 + accepted / rounds if rounds else 0.0)


@pytest.fixture(scope='module')
def plain() -> Iterator[list[tuple[int, ...]]]:
    found, rate = answers(drafter='none')
    assert rate == 0.0 and min(map(len, found)) > 10
    yield found


def test_all_files_together_are_small() -> None:
    files = list(DEMO_FOLDER.rglob('*.safetensors'))
    assert len(files) == 1 + len(PRESENT) > 1
    assert sum(Path(file).stat().st_size for file in files) < LIMIT_BYTES


@pytest.mark.parametrize('kind', PRESENT)
def test_same_answers_in_fewer_steps(kind: str, plain: list[tuple[int, ...]]) -> None:
    found, rate = answers(drafter=kind, num_drafts=DRAFTS[kind])
    assert found == plain
    assert rate >= FEWEST[kind]


def test_a_wrong_drafter_costs_steps_and_no_token(plain: list[tuple[int, ...]],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    right = DFlash.absorb
    monkeypatch.setattr(DFlash, 'absorb', lambda self, batch, hidden, cache: right(
        self, batch, hidden[::-1], cache))
    found, rate = answers(drafter='dflash', num_drafts=DRAFTS['dflash'])
    assert found == plain
    assert 1.0 <= rate < FEWEST['dflash']
