# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo model with its own drafters, through chat: case H12, temperatures, stops and guides."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import DEMO_FOLDER, Runtime
from gemma_thor_ros.schema import ChatRequest, ChatResult, FinishReason

sys.path.append(str(Path(__file__).resolve().parents[2]))     # demo_model/ isn't installed

from demo_model.tools import DEMO_TOOLS

KINDS = ('dflash', 'mtp')
COMMANDS = ('drive two metres forward', 'go to the kitchen', 'hello, who are you?')


@pytest.fixture(scope='module')
def demo() -> Iterator[Demo]:
    loaded = {}
    for kind in ('none', *KINDS):
        # a fixed number: whether drafts pay depends on what else the machine does
        loaded[kind] = Runtime(EngineConfig.from_mapping({
            'http.enabled': False, 'speculation.drafter': kind, 'engine.context_length': 1024,
            'speculation.num_drafts': {'none': 0, 'dflash': 7, 'mtp': 3}[kind]}))
        loaded[kind].start()
    for runtime in loaded.values():
        assert runtime.wait_ready(60.0), runtime.error
    yield Demo(loaded)
    for runtime in loaded.values():
        runtime.stop()


class Demo:
    """The model without drafts and with each drafter; plain answers are computed once."""

    def __init__(self, runtimes: dict[str, Runtime]) -> None:
        self.runtimes = runtimes
        self.plain: dict[str, ChatResult] = {}

    def ask(self, kind: str, text: str, *rest: Any, **sampling: Any) -> ChatResult:
        key = repr((text, rest, sampling))
        if kind != 'none':
            return ask(self.runtimes[kind], text, *rest, **sampling)
        if key not in self.plain:
            self.plain[key] = ask(self.runtimes['none'], text, *rest, **sampling)
        return self.plain[key]


def ask(runtime: Runtime, text: str, stop: tuple[str, ...] = (), constrain: bool = False,
        **sampling: Any) -> ChatResult:
    settings = {'max_tokens': 40, 'temperature': 0.0, 'seed': 7, **sampling}
    return runtime.require_chat().submit(ChatRequest(
        ({'role': 'user', 'content': text},), DEMO_TOOLS, settings, stop,
        tool_choice='required' if constrain else 'auto')).result(60.0)


def same(one: ChatResult, other: ChatResult) -> bool:
    return (one.token_ids, one.text, one.finish_reason, one.usage.completion_tokens) == (
        other.token_ids, other.text, other.finish_reason, other.usage.completion_tokens)


@pytest.mark.parametrize('kind', KINDS)
class TestDemoModel:

    def test_same_tokens_and_some_accepted(self, demo: Demo, kind: str, grid: bool) -> None:
        """Case H12 at temperature 0, and the same above it."""
        accepted = 0
        for text in COMMANDS:
            for temperature in (0.0, 0.7, 1.5) if grid else (0.0, 1.0):
                for seed in range(20 if grid else 1):
                    found = [demo.ask(name, text, temperature=temperature, seed=seed)
                             for name in ('none', kind)]
                    assert same(*found), (text, temperature, seed)
                    assert found[0].usage.rounds == 0
                    accepted += found[1].usage.accepted_tokens
        assert accepted > 20

    def test_calls_come_in_few_rounds(self, demo: Demo, kind: str) -> None:
        usage = demo.ask(kind, COMMANDS[0]).usage
        assert usage.rounds and 1 + usage.accepted_tokens / usage.rounds > 2.0, usage

    def test_stop_string_inside_a_round(self, demo: Demo, kind: str) -> None:
        whole = demo.ask('none', COMMANDS[2])
        middle = whole.text[len(whole.text) // 2:][:4]
        found = [demo.ask(name, COMMANDS[2], (middle,)) for name in ('none', kind)]
        assert same(*found) and found[0].finish_reason is FinishReason.STOP
        assert 0 < len(found[0].token_ids) < len(whole.token_ids)

    def test_guided_calls(self, demo: Demo, kind: str) -> None:
        found = [demo.ask(name, COMMANDS[1], (), True, temperature=1.5)
                 for name in ('none', kind)]
        calls = [[(call.name, call.arguments) for call in each.tool_calls] for each in found]
        assert same(*found) and calls[0] == calls[1] != []


def test_both_drafters_lie_beside_the_model() -> None:
    assert all((DEMO_FOLDER / kind / 'config.json').is_file() for kind in KINDS)
