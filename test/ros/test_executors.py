# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The two executors of a node: what blocks holds up nothing else, and threads are few."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import rclpy
from rclpy.action import ActionClient, ActionServer
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.context import Context
from rclpy.executors import MultiThreadedExecutor
from rclpy.node import Node
from std_srvs.srv import Trigger

from gemma_thor_ros.action import Drive
from gemma_thor_ros.ros.executors import SERVICES_QOS, NodeExecutors

THREADS = 8


class Served:
    """A node with a service and an action that may block, a timer of each other kind."""

    def __init__(self) -> None:
        self.context = Context()
        rclpy.init(context=self.context)
        self.node = Node('served', context=self.context)
        self.control, self.data = MutuallyExclusiveCallbackGroup(), ReentrantCallbackGroup()
        self.release = threading.Event()
        self.busy = 0
        self.ticks: dict[str, int] = {'control': 0, 'data': 0}
        self._lock = threading.Lock()
        self.node.create_service(Trigger, 'block', self.block, callback_group=self.data,
                                 qos_profile=SERVICES_QOS)
        self.node.create_service(Trigger, 'quick', lambda request, response: response,
                                 callback_group=self.data, qos_profile=SERVICES_QOS)
        ActionServer(self.node, Drive, 'drive', self.drive, callback_group=self.control)
        self.node.create_timer(0.01, lambda: self.tick('control'), callback_group=self.control)
        self.node.create_timer(0.01, lambda: self.tick('data'),
                               callback_group=MutuallyExclusiveCallbackGroup())

    def tick(self, name: str) -> None:
        self.ticks[name] += 1

    def block(self, request: Any, response: Trigger.Response) -> Trigger.Response:
        with self._lock:
            self.busy += 1
        response.success = self.release.wait(20.0)
        return response

    def drive(self, handle: Any) -> Drive.Result:
        self.block(None, Trigger.Response())
        handle.succeed()
        return Drive.Result()

    def executors(self) -> NodeExecutors:
        executors = NodeExecutors(
            self.node, (self.node.default_callback_group, self.control), (self.data,), THREADS)
        executors.start()
        return executors


@pytest.fixture
def served(ros_env: dict[str, str]) -> Iterator[Served]:
    made = Served()
    yield made
    made.release.set()
    made.node.destroy_node()
    rclpy.try_shutdown(context=made.context)


def send(client: Any, name: str, count: int) -> list[Any]:
    """Send requests to a service all at once."""
    caller = client.node.create_client(Trigger, name, qos_profile=SERVICES_QOS)
    assert caller.wait_for_service(10.0)
    return [caller.call_async(Trigger.Request()) for _ in range(count)]


class SlowPool(ThreadPoolExecutor):
    """A pool of a busy machine: a callback begins some time after it was handed over."""

    def __init__(self) -> None:
        super().__init__(64)
        self.tasks: list[Any] = []

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        def late() -> None:
            time.sleep(0.02)
            function(*args, **kwargs)

        self.tasks.append(args[-1] if args else function)
        return super().submit(late)


def most_offers(client: Any, pool: SlowPool) -> int:
    """Return how often the same callback was handed to the pool, at most, over 20 requests."""
    for future in send(client, 'quick', 20):
        client.wait(future)
    return max(Counter(id(task) for task in pool.tasks).values())


def test_each_callback_is_handed_over_once_and_idle_threads_are_used_again(
        client: Any, served: Served) -> None:
    executors = served.executors()
    before = threading.active_count()
    for future in send(client, 'quick', 200):
        client.wait(future)
    assert threading.active_count() - before <= 2
    executors._data._pool = pool = SlowPool()
    assert most_offers(client, pool) == 1
    assert executors.stop(2.0)


def test_the_executor_of_rclpy_hands_them_over_again_and_again(
        client: Any, served: Served) -> None:
    """What the test above catches; when this fails, rclpy has been mended."""
    executor = MultiThreadedExecutor(64, context=served.context)
    executor.add_node(served.node)
    executor._executor = pool = SlowPool()
    spinning = threading.Thread(target=executor.spin, daemon=True)
    spinning.start()
    assert most_offers(client, pool) > 1
    executor.shutdown()
    spinning.join(5.0)


def test_requests_that_fill_the_pool_hold_up_nothing_else(client: Any, served: Served) -> None:
    executors = served.executors()
    drive = client.do(lambda: ActionClient(client.node, Drive, 'drive'))
    assert drive.wait_for_server(10.0)
    futures = send(client, 'block', THREADS)
    client.wait_until(lambda: served.busy == THREADS)
    goal = client.wait(drive.send_goal_async(Drive.Goal()))
    assert goal.accepted                         # the control thread answers
    result = goal.get_result_async()
    before = dict(served.ticks)
    client.wait_until(lambda: all(served.ticks[name] > before[name] + 5 for name in before), 5.0)
    assert served.busy == THREADS and not result.done()      # the goal waits for a thread
    served.release.set()
    assert all(client.wait(future).success for future in futures)
    client.wait(result)
    assert executors.stop(2.0)


def test_a_callback_that_raises_is_logged_and_ends_nothing(
        client: Any, served: Served, caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Any, response: Any) -> Any:
        raise RuntimeError('planted')

    served.node.create_service(Trigger, 'fail', fail, callback_group=served.data)
    executors = served.executors()
    with caplog.at_level(logging.ERROR):
        send(client, 'fail', 1)
        client.wait_until(lambda: 'RuntimeError: planted' in caplog.text, 5.0)
    for future in send(client, 'quick', 3):
        client.wait(future)
    assert executors.stop(2.0)


def test_an_end_does_not_wait_for_a_callback_that_blocks(client: Any, served: Served) -> None:
    executors = served.executors()
    send(client, 'block', THREADS + 2)
    client.wait_until(lambda: served.busy == THREADS)
    started = time.monotonic()
    assert executors.stop(2.0) and time.monotonic() - started < 1.0
    served.release.set()
