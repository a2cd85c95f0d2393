# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The ROS side of bench/serving.py: the real node on an engine that is there, and a robot node.

    python bench/serving_ros.py

The robot node is a process of its own. It reads jobs from standard input, a line of JSON each:
{"content", "max_tokens"} runs a chat goal, {} asks what has come on ~/tokens so far.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Last, since an installed package has the interfaces too.
sys.path += [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import rclpy
import rclpy.node
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.parameter import Parameter
from robot_stack import own_domain

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.client import ChatClient
from gemma_thor_ros.engine.engine import Engine
from gemma_thor_ros.msg import SamplingParams, TokenChunk
from gemma_thor_ros.ros import llm_node
from gemma_thor_ros.ros.node_runtime import NodeRuntime
from gemma_thor_ros.ros.token_topic import TOKENS_QOS

READY_S = 20.0


class Node:
    """The language model node in this process, active, while a with block lasts.

    Its end stops the engine, as that of any node does.
    """

    def __init__(self, engine: Engine, chat: Chat) -> None:
        class Adopted(NodeRuntime):
            def start(self) -> None:
                self.adopt(engine, chat)

        own_domain()
        rclpy.init(signal_handler_options=rclpy.signals.SignalHandlerOptions.NO)
        settings = {'http.port': 0, 'ros.publish_http': True, 'ros.autostart': True,
                    'engine.max_sequences': chat.model_info().max_sequences}
        # No checkpoint holds this model, and the node makes its runtime itself.
        vars(llm_node)['NodeRuntime'] = Adopted
        self._node = llm_node.LlmNode([Parameter(name, value=value)
                                       for name, value in settings.items()])

    def __enter__(self) -> Node:
        self._node.start()
        limit = time.monotonic() + READY_S
        while not self._node._active:
            if time.monotonic() > limit:
                raise RuntimeError(f'the node did not become active: {self._node._fault}')
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        vars(llm_node)['NodeRuntime'] = NodeRuntime
        self._node.close(10.0)
        self._node.destroy_node()
        rclpy.try_shutdown()

    @property
    def port(self) -> int:
        """Where the node serves HTTP."""
        assert self._node._sidecar is not None
        return self._node._sidecar.port


class Goals:
    """The robot node's process, while a with block lasts. Thread-safe but for two jobs at once."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, str(Path(__file__).resolve())],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Goals:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20.0)

    def run(self, body: dict[str, Any]) -> float:
        """Run a chat completion as a goal; tokens a second on ~/tokens after the first message."""
        found = self._job({'content': body['messages'][0]['content'],
                           'max_tokens': body['max_tokens']})
        if found['tokens'] != body['max_tokens']:
            raise RuntimeError(f'{found["tokens"]} tokens came on ~/tokens: {found["error"]}')
        return float(found['rate'])

    def seen(self) -> tuple[int, int]:
        """Messages and tokens that have come on ~/tokens so far."""
        found = self._job({})
        return found['chunks'], found['tokens']

    def _job(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + '\n')
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError('the robot node has ended')
        found: dict[str, Any] = json.loads(line)
        return found


class Robot:
    """What the process does: a node that listens to ~/tokens and sends goals."""

    def __init__(self) -> None:
        rclpy.init()
        self._node = rclpy.node.Node('bench_robot')
        self._client = ChatClient(self._node)
        self._chunks: list[tuple[float, TokenChunk]] = []
        self._node.create_subscription(TokenChunk, 'llm_node/tokens', self._take, TOKENS_QOS)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self._node)
        self._spinning = threading.Thread(target=_spin, args=(self._executor,), daemon=True)
        self._spinning.start()

    def _take(self, chunk: TokenChunk) -> None:
        self._chunks.append((time.monotonic(), chunk))

    def do(self, job: dict[str, Any]) -> dict[str, Any]:
        """Do a job and give its answer."""
        if not job:
            return {'chunks': len(self._chunks), 'tokens': _tokens(self._chunks)}
        self._client.wait_for_node(READY_S)
        call = self._client.start(job['content'], sampling=SamplingParams(
            temperature=0.0, max_tokens=job['max_tokens'], ignore_eos=True))
        error = call.result().error_msg
        limit = time.monotonic() + 2.0                   # the result may overtake the last message
        mine: list[tuple[float, TokenChunk]] = []
        while time.monotonic() < limit and not (mine and mine[-1][1].last):
            time.sleep(0.01)
            mine = [each for each in list(self._chunks)
                    if each[1].request_id == call.request_id]
        rate = _tokens(mine[1:]) / (mine[-1][0] - mine[0][0]) if len(mine) > 1 else 0.0
        return {'rate': rate, 'tokens': _tokens(mine), 'error': error}

    def close(self) -> None:
        """Leave the graph in order."""
        self._executor.shutdown()
        self._spinning.join(5.0)
        self._node.destroy_node()
        rclpy.try_shutdown()


def _tokens(chunks: Sequence[tuple[float, TokenChunk]]) -> int:
    return sum(len(chunk.token_ids) for _, chunk in list(chunks))


def _spin(executor: SingleThreadedExecutor) -> None:
    try:
        executor.spin()
    except ExternalShutdownException:
        return


def main() -> None:
    robot = Robot()
    for line in sys.stdin:
        print(json.dumps(robot.do(json.loads(line))), flush=True)
    robot.close()


if __name__ == '__main__':
    main()
