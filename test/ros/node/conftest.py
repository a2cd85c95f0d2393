# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The node in a process of its own, and an rclpy node of this process that talks to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import rclpy
import yaml
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.action.client import ActionClient
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile

from gemma_thor_ros.action import Chat
from gemma_thor_ros.msg import ChatMessage, EngineState

NAME = 'llm_node'
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
START_S = 20.0  # a loaded machine imports slowly


class NoAnswerError(AssertionError):
    pass


class NodeProcess:
    """`python -m gemma_thor_ros.ros.node` with the scripted model unless told otherwise."""

    def __init__(self, folder, settings, program=('-m', 'gemma_thor_ros.ros.node')):
        self.settings = {'model.path': 'scripted', 'http.enabled': False, **settings}
        params = folder / 'params.yaml'
        params.write_text(yaml.safe_dump({'/**': {'ros__parameters': self.settings}}))
        self.log_path = folder / 'node.log'
        with self.log_path.open('wb') as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, '--ros-args', '--params-file', str(params)],
                cwd=folder, stdout=log, stderr=subprocess.STDOUT,
            )

    @property
    def log(self):
        return self.log_path.read_text()

    def signal_and_wait(self, number, limit_s):
        """Return (exit code, seconds that the end took)."""
        start = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(limit_s), time.monotonic() - start

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Peer:
    """This process's side: one spun node, blocking helpers with time limits."""

    def __init__(self):
        self.context = rclpy.Context()
        self.context.init(args=[])
        self.node = Node('peer', context=self.context, use_global_arguments=False)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.thread = threading.Thread(target=self._spin, daemon=True)
        self.thread.start()
        self._clients = {}
        self._actions = {}

    def _spin(self):
        with contextlib.suppress(ExternalShutdownException):
            self.executor.spin()

    def make(self, function):
        """Run `function` in the spinning thread: entities made beside it have broken its wait."""
        return self.wait(self.executor.create_task(function))

    def wait(self, future, limit_s=10.0):
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        if not done.wait(limit_s):
            raise NoAnswerError(f'no answer within {limit_s} s')
        return future.result()

    def call(self, kind, name, /, limit_s=10.0, **fields):
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = self.make(
                lambda: self.node.create_client(kind, f'/{NAME}/{name}')
            )
        assert client.wait_for_service(START_S), f'/{NAME}/{name} is not there'
        return self.wait(client.call_async(kind.Request(**fields)), limit_s)

    def state(self):
        """Return the lifecycle state; asked again when a node that just started lost the call."""
        for _ in range(20):
            client = self.make(
                lambda: self.node.create_client(GetState, f'/{NAME}/get_state')
            )
            try:
                assert client.wait_for_service(START_S), f'/{NAME}/get_state is not there'
                future = client.call_async(GetState.Request())
                return self.wait(future, 0.5).current_state.label
            except NoAnswerError:
                continue
            finally:
                self.make(lambda client=client: self.node.destroy_client(client))
        raise NoAnswerError('get_state does not answer')

    def change_state(self, transition, limit_s=10.0):
        request = ChangeState.Request()
        request.transition.id = transition
        client = self._clients.get('change_state')
        if client is None:
            client = self._clients['change_state'] = self.make(
                lambda: self.node.create_client(ChangeState, f'/{NAME}/change_state')
            )
        assert client.wait_for_service(START_S)
        return self.wait(client.call_async(request), limit_s).success

    def send_goal(self, text='hi', feedback=None, **fields):
        action = self._actions.get(NAME)
        if action is None:
            action = self._actions[NAME] = self.make(
                lambda: ActionClient(self.node, Chat, f'/{NAME}/chat')
            )
        assert action.wait_for_server(START_S)
        fields.setdefault('messages', [ChatMessage(role='user', content=text)])
        goal = Chat.Goal(**fields)
        sent = action.send_goal_async(goal, feedback_callback=feedback)
        return self.wait(sent)

    def run_goal(self, text='hi', limit_s=20.0, **fields):
        """Return (status, result)."""
        handle = self.send_goal(text, **fields)
        assert handle.accepted
        answer = self.wait(handle.get_result_async(), limit_s)
        return answer.status, answer.result

    def collect(self, kind, name, qos):
        """Subscribe and return the list that fills, once the publisher is matched."""
        got = []
        subscription = self.node.create_subscription(kind, name, got.append, qos)
        self.until(lambda: self.node.count_publishers(subscription.topic_name) > 0)
        return got

    def until(self, condition, limit_s=START_S):
        limit = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < limit, f'not within {limit_s} s'
            time.sleep(0.005)

    def wait_active(self, process, limit_s=START_S):
        limit = time.monotonic() + limit_s
        while self.state() != 'active':
            assert process.process.poll() is None, process.log
            assert time.monotonic() < limit, process.log
            time.sleep(0.02)

    def wait_engine(self, states, number, limit_s=START_S):
        self.until(lambda: states and states[-1].state == number, limit_s)
        return states[-1]

    def engine_states(self):
        got = []
        self.node.create_subscription(EngineState, f'/{NAME}/engine_state', got.append, LATCHED)
        return got

    def close(self):
        self.executor.shutdown()
        self.thread.join(5.0)
        self.node.destroy_node()
        self.context.try_shutdown()


@pytest.fixture(scope='session', autouse=True)
def own_domain(tmp_path_factory):
    """Keep the tests among themselves also when they are run without scripts/ros_sandbox.sh."""
    defaults = {
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
        'ROS_DOMAIN_ID': str(1 + os.getpid() % 101),
        'ROS_LOG_DIR': str(tmp_path_factory.mktemp('log')),
    }
    added = {key: value for key, value in defaults.items() if key not in os.environ}
    os.environ.update(added)
    yield
    for key in added:
        del os.environ[key]


@pytest.fixture
def fresh_peer(ros_env):
    """A participant in the domain of the test."""
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(scope='module')
def peer(own_domain):
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(scope='module')
def module_peer(module_ros_env):
    """A participant in the domain of the module's own processes."""
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(scope='module')
def start_module_node(tmp_path_factory):
    """Start nodes that live as long as the test module."""
    started = []

    def start(**settings):
        process = NodeProcess(tmp_path_factory.mktemp('node'), settings)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()


@pytest.fixture
def start_node(ros_env, tmp_path_factory):
    """Start nodes that live as long as the test."""
    started = []

    def start(settings, **options):
        process = NodeProcess(tmp_path_factory.mktemp('node'), settings, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()
