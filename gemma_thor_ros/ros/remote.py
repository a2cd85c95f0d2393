# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A running node from outside, for command-line tools: calls its services, waits with a limit.

Makes one rclpy node in a context of its own. Prints nothing; robot nodes use client.py instead.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.executors import (
    ExternalShutdownException,
    ShutdownException,
    SingleThreadedExecutor,
)
from rclpy.node import Node

import gemma_thor_ros.srv as srv
from gemma_thor_ros.client import ChatClient
from gemma_thor_ros.msg import SamplingParams
from gemma_thor_ros.ros.conversions import time_from_ros
from gemma_thor_ros.schema import ConfigError, ErrorCode, RequestError

DEFAULT_NODE = '/llm_node'
DISCOVERY_S = 5.0


@contextlib.contextmanager
def remote(name: str = DEFAULT_NODE, ros_args: Sequence[str] = ()) -> Iterator[Remote]:
    """Give a connection to the language model node of a name; `ros_args` as on any ROS program."""
    context = Context()
    rclpy.init(args=list(ros_args), context=context)
    node = Node('gemma_thor_cli', context=context, start_parameter_services=False)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    ending = threading.Event()
    thread = threading.Thread(target=_spin, args=(executor, ending), daemon=True)
    thread.start()
    try:
        yield Remote(node, name)
    finally:
        ending.set()
        thread.join(2.0)
        executor.shutdown()
        node.destroy_node()
        context.try_shutdown()


def _spin(executor: SingleThreadedExecutor, ending: threading.Event) -> None:
    while not ending.is_set():
        try:
            executor.spin_once(0.1)
        except (ExternalShutdownException, ShutdownException):
            return
        except Exception:  # noqa: BLE001 (a client that is being made at the moment)
            time.sleep(0.01)


@dataclass(frozen=True)
class Timing:
    """One request of a benchmark, seen from the client."""

    first_token_s: float
    total_s: float
    num_tokens: int


class Remote:
    """Calls one node; used by one thread."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self._name = '/' + name.strip('/')

    def call(self, kind: Any, service: str, timeout_s: float = 30.0, **fields: Any) -> Any:
        """Call a service of the node and return its answer.

        Raises:
            ConfigError: the node is not there, or does not answer in time.
            RequestError: it answered with an error.
        """
        name = f'{self._name}/{service}'
        client: Any = self.node.create_client(kind, name)
        try:
            if not client.wait_for_service(DISCOVERY_S):
                raise ConfigError(f'no node offers {name}: is the language model node running?')
            future = client.call_async(kind.Request(**fields))
            done = threading.Event()
            future.add_done_callback(lambda _: done.set())
            if not done.wait(timeout_s):
                raise ConfigError(f'{name} has not answered in {timeout_s:g} s')
            answer: Any = future.result()
        finally:
            self.node.destroy_client(client)
        if answer.error_code:
            raise RequestError(ErrorCode(answer.error_code), answer.error_msg)
        return answer

    def chat(self) -> ChatClient:
        """Return a chat client of the node.

        Raises:
            ConfigError: the node is not there.
        """
        client = ChatClient(self.node, self._name)
        if not client.wait_for_node(DISCOVERY_S):
            raise ConfigError(f'no node offers {self._name}/chat: is it running and active?')
        return client

    def info(self) -> dict[str, Any]:
        """Return what is loaded and what the engine does."""
        answer = self.call(srv.GetModelInfo, 'get_model_info')
        state = answer.state
        names = (
            'model_name', 'family', 'weights_format', 'num_parameters', 'context_length',
            'max_context_length', 'kv_dtype', 'max_sequences', 'engine_version',
        )  # fmt: skip
        return {
            **{name: getattr(answer, name) for name in names},
            'policy_tools': list(answer.policy_tools),
            'device': state.device,
            'running': state.running,
            'waiting': state.waiting,
            'pages_used': state.pages_used,
            'pages_total': state.pages_total,
            'tokens_per_s': state.tokens_per_s,
        }

    def sessions(self) -> list[dict[str, Any]]:
        """Return the conversations on the robot, the latest used first."""
        return [
            {
                'session_id': session.session_id,
                'owner': session.owner,
                'messages': session.num_messages,
                'tokens': session.num_tokens,
                'last_used': time_from_ros(session.last_used),
                'busy': session.busy,
            }
            for session in self.call(srv.ListSessions, 'list_sessions').sessions
        ]

    def reset_session(self, session_id: str) -> int:
        """Forget a conversation ('*' = all); return how many."""
        answer = self.call(srv.ResetSession, 'reset_session', session_id=session_id, remove=True)
        return int(answer.num_reset)

    def save_session(
        self, session_id: str, name: str = '', with_cache: bool = False
    ) -> tuple[str, str]:
        """Write a conversation to the robot's session folder, with_cache: its KV pages too.

        Return the file's name, and what could not be saved, or ''.
        """
        answer = self.call(
            srv.SaveSession, 'save_session', session_id=session_id, name=name,
            with_cache=with_cache,
        )  # fmt: skip
        return str(answer.name), str(answer.error_msg)

    def restore_session(
        self, name: str, session_id: str = '', replace: bool = False
    ) -> tuple[str, str]:
        """Read a saved conversation back.

        Return the session's id, and what of it could not be used, or ''.
        """
        answer = self.call(
            srv.RestoreSession, 'restore_session', name=name, session_id=session_id,
            replace=replace,
        )  # fmt: skip
        return str(answer.session.session_id), str(answer.error_msg)

    def time_requests(self, prompt: str, count: int, max_tokens: int) -> Iterator[Timing]:
        """Ask `count` times, one after the other, and yield how long each took."""
        client = self.chat()
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        for _ in range(count):
            started, first = time.monotonic(), 0.0
            call = client.start(prompt, sampling=sampling)
            for chunk in call:
                if chunk.token_ids and not first:
                    first = time.monotonic() - started
            result = call.result()
            yield Timing(
                first, time.monotonic() - started, int(result.usage.completion_tokens)
            )
