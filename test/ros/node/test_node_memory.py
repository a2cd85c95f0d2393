# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""After a cleanup nothing is left of engine and tools: a robot has no memory for two."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter

from gemma_thor_ros.load import State
from gemma_thor_ros.ros.llm_node import LlmNode
from gemma_thor_ros.schema import ChatRequest

SETTINGS = {'model.path': 'scripted', 'ros.autostart': False, 'http.enabled': False,
            'tools.policy_file': 'demo'}
SUCCESS = TransitionCallbackReturn.SUCCESS


@pytest.fixture
def node(ros_env: dict[str, str]) -> Iterator[LlmNode]:
    rclpy.init()
    made = LlmNode([Parameter(name, value=value) for name, value in SETTINGS.items()])
    yield made
    made.close(5.0)
    made.destroy_node()
    rclpy.try_shutdown()


def load(node: LlmNode) -> list[weakref.ref[Any]]:
    """Bring the node up and ask it something; return its chat, engine and bridge, weakly."""
    assert node.trigger_configure() is SUCCESS
    runtime = node._runtime
    assert runtime is not None
    limit = time.monotonic() + 20.0
    while runtime.state is not State.READY:
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert node.trigger_activate() is SUCCESS
    assert runtime.chat is not None
    words = ({'role': 'user', 'content': 'Hello'},)
    runtime.chat.submit(ChatRequest(messages=words)).result(10.0)
    return [weakref.ref(part) for part in (runtime.chat, runtime._engine, node._bridge)]


def clean_up(node: LlmNode) -> None:
    assert node.trigger_deactivate() is SUCCESS
    assert node.trigger_cleanup() is SUCCESS


def test_a_cleanup_frees_everything_at_once(node: LlmNode) -> None:
    for _ in range(2):
        parts = load(node)
        assert all(part() is not None for part in parts)
        clean_up(node)
        assert all(part() is None for part in parts)


def test_without_the_collection_they_stay(node: LlmNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above catches."""
    monkeypatch.setattr(gc, 'collect', lambda: 0)
    gc.disable()
    try:
        parts = load(node)
        clean_up(node)
        assert any(part() is not None for part in parts)
    finally:
        gc.enable()
