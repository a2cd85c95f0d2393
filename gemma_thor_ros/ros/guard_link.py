# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The node's end of the line to goal_guard: its state, its age, and one child goal at a time.

ROS callbacks only store and hand on; the thread that runs a tool call reads `ChildLink.items`.
Knows nothing of policies.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from action_msgs.msg import GoalInfo
from action_msgs.srv import CancelGoal
from rclpy.action.server import RCLError
from rclpy.callback_groups import CallbackGroup, MutuallyExclusiveCallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.task import Future
from unique_identifier_msgs.msg import UUID

from gemma_thor_ros.action import RunChild
from gemma_thor_ros.goal_client import GoalClient
from gemma_thor_ros.msg import GuardState
from gemma_thor_ros.ros.targets import forbidden_target
from gemma_thor_ros.ros.twins import Twins

MAX_STATE_AGE_S = 0.5            # older: no new goal
START_S = 5.0                    # after this, who has not been found is not there
LOST_AFTER_S = 1.0               # older: the goals on their way are lost
DIRECT_CANCEL_S = 1.0            # to find the server, and again for its answer
DIRECT_PUBLISHES = 3             # of a stop message
CANCEL_SERVICE = '_action/cancel_goal'

_NOT_RUNNING = (CancelGoal.Response.ERROR_UNKNOWN_GOAL_ID,
                CancelGoal.Response.ERROR_GOAL_TERMINATED)


class _Gate(MutuallyExclusiveCallbackGroup):
    """A callback group that no executor may touch before it is open.

    rclpy's ActionClient joins the node before it is complete; an executor that spins in another
    thread would meet it half made. One callback at a time keeps the steps of a goal in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False

    def can_execute(self, entity: Any) -> bool:
        return self.is_open and super().can_execute(entity)


class GuardLink:
    """What the guard says, and the way to it. Safe to use from any thread.

    Args:
        node: the language model node.
        guard: full name of the guard.
        instance_id: of the node's heartbeat.
        group: callback group of everything made here; its callbacks are short and never wait.
            None: a group of its own, safe to make while the node spins in another thread.
    """

    def __init__(self, node: Node, guard: str, instance_id: str,
                 group: CallbackGroup | None) -> None:
        self.instance_id = instance_id
        self._node = node
        self._guard = guard
        self._opened_at = time.monotonic()
        gate = _Gate()
        self._group = group = gate if group is None else group
        self._lock = threading.Lock()
        self._latest: tuple[GuardState, float] | None = None
        self._stop_listeners: list[Callable[[str], None]] = []
        self._was_stopped = False
        self._closed = False
        self._cancel_clients: dict[str, Any] = {}
        self._publishers: dict[str, Any] = {}
        self._topics: dict[str, Any] = {}        # what tools publish on -> message class
        self._topic_faults: dict[str, str] = {}
        self._stop_topics: frozenset[str] | None = None
        self._guards = Twins()
        self._subscription = node.create_subscription(
            GuardState, f'{guard}/state', self._on_state, QoSProfile(depth=1),
            callback_group=group)
        self._run_child = GoalClient(
            node, RunChild, f'{guard}/run_child', callback_group=group,
            feedback_sub_qos_profile=QoSProfile(depth=100))
        gate.is_open = True
        if node.executor is not None:
            node.executor.wake()

    def watch_target(self, target: str) -> None:
        """Prepare the direct way to cancel goals on `target`, for when the guard is gone."""
        if target not in self._cancel_clients:
            self._cancel_clients[target] = self._node.create_client(
                CancelGoal, f'{target}/{CANCEL_SERVICE}', callback_group=self._group)

    def watch_topic(self, target: str, message_class: Any) -> None:
        """Prepare the direct way to stop a publish on `target`.

        Its publisher is made once the guard has said which topics are stop topics: on one of those
        it would be a second publisher, which stops the robot.
        """
        self._topics[target] = message_class

    def target_fault(self, target: str) -> str:
        """Return why no tool may use a target after all, or ''."""
        return self._topic_faults.get(target, '')

    def publish_directly(self, target: str, message: Any) -> bool:
        """Publish a message ourselves, a few times; True when somebody listens."""
        publisher = self._publishers.get(target)
        if publisher is None:
            return False
        for _ in range(DIRECT_PUBLISHES):
            publisher.publish(message)
            time.sleep(0.02)
        return bool(publisher.get_subscription_count())

    def add_stop_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener(reason)` in a ROS thread whenever the robot becomes stopped."""
        self._stop_listeners.append(listener)

    @property
    def state(self) -> GuardState | None:
        """The guard's last word, however old."""
        with self._lock:
            return None if self._latest is None else self._latest[0]

    def state_age_s(self) -> float:
        """Return the age of the guard's last word on the steady clock; infinite without one."""
        with self._lock:
            return float('inf') if self._latest is None else time.monotonic() - self._latest[1]

    def fault(self) -> str:
        """Return why the guard can take no goal of ours, or ''."""
        if self._closed:
            return 'the tools of the node were closed'
        state = self.state
        if state is None:
            return f'the goal guard {self._guard} has not been heard'
        if self.state_age_s() > MAX_STATE_AGE_S:
            return f'the goal guard {self._guard} has been silent for {self.state_age_s():.1f} s'
        if self._guards.seen(time.monotonic()):
            return f'two goal guards named {self._guard} are running'
        if state.node_instance_id != self.instance_id:
            why = f': {state.reason}' if state.reason else ''
            return f'the goal guard does not hear this node{why}'
        if not 0.0 <= state.heartbeat_age_s <= MAX_STATE_AGE_S:
            return 'the goal guard has not heard this node for too long'
        if not self._run_child.server_is_ready():
            return 'the goal guard takes no goals'
        return ''

    def motion_fault(self) -> str:
        """Return why motion is not allowed now, or ''."""
        state = self.state
        if state is None or not (state.stopped or state.motion_inhibit):
            return ''
        return state.reason or 'stopped'

    def motion_fault_in_short(self) -> str:
        """Return motion_fault in a few words for the model: names of topics only confuse it."""
        state = self.state
        if state is None or not state.stopped:
            return 'the robot may not move now' if self.motion_fault() else ''
        if state.latched:
            return 'the robot was stopped; a person has to release it'
        return 'the robot is stopped'

    def stop_reason(self) -> str:
        """Return why the robot is stopped by a stop topic or the latch, or ''."""
        state = self.state
        return (state.reason or 'stopped') if state is not None and state.stopped else ''

    def starting(self) -> bool:
        """Whether waiting a moment may help: guard and node are still finding each other."""
        state = self.state
        unknown = state is None or (self.state_age_s() <= MAX_STATE_AGE_S
                                    and state.node_instance_id != self.instance_id)
        return unknown and time.monotonic() - self._opened_at < START_S

    def send(self, goal: RunChild.Goal) -> ChildLink:
        """Hand a child goal to the guard."""
        state = self.state
        link = ChildLink(bytes(goal.goal_id.uuid), '' if state is None else state.instance_id)
        future = self._run_child.send_goal_async(
            goal, feedback_callback=link.on_feedback, goal_uuid=goal.goal_id)
        future.add_done_callback(link.on_acknowledged)
        return link

    def lost(self, link: ChildLink) -> str:
        """Return why the guard no longer holds the goal, or ''."""
        if self._closed:
            return 'the tools of the node were closed'
        state = self.state
        if state is not None and state.instance_id != link.guard_instance_id:
            return (f'two goal guards named {self._guard} are running'
                    if self._guards.seen(time.monotonic()) else 'the goal guard was started anew')
        age = self.state_age_s()
        return f'the goal guard has been silent for {age:.1f} s' if age > LOST_AFTER_S else ''

    def can_cancel(self, target: str) -> bool:
        """Whether the server of `target` is there to be asked without the guard."""
        client = self._cancel_clients.get(target)
        return client is not None and bool(client.service_is_ready())

    def cancel_directly(self, target: str, goal_id: bytes) -> bool:
        """Ask the server itself to cancel one goal; True when it does or has no such goal."""
        deadline = time.monotonic() + DIRECT_CANCEL_S
        while not self._closed and not self.can_cancel(target):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        client = self._cancel_clients.get(target)
        if client is None:
            return False
        answered = threading.Event()
        info = GoalInfo(goal_id=UUID(uuid=list(goal_id)))
        future = client.call_async(CancelGoal.Request(goal_info=info))
        future.add_done_callback(lambda _: answered.set())
        if not answered.wait(DIRECT_CANCEL_S):
            return False
        answer = future.result()
        return answer.return_code in _NOT_RUNNING or any(
            bytes(info.goal_id.uuid) == goal_id for info in answer.goals_canceling)

    def close(self) -> None:
        """Destroy what was made on the node; calls that still run end as lost."""
        self._closed = True
        self._node.destroy_subscription(self._subscription)
        self._run_child.destroy()
        for client in self._cancel_clients.values():
            self._node.destroy_client(client)
        with self._lock:
            for publisher in self._publishers.values():
                self._node.destroy_publisher(publisher)
            self._publishers.clear()
        self._cancel_clients.clear()

    def _on_state(self, state: GuardState) -> None:
        if self._guards.hear(state.instance_id, time.monotonic()):
            self._node.get_logger().error(
                f'two goal guards named {self._guard} are running: end one; until then nothing is '
                'sent', throttle_duration_sec=10.0)
        with self._lock:
            self._open_topics(frozenset(source.topic for source in state.sources))
            # A guard that is heard for the first time may still wait for its stop topics.
            news = self._latest is not None or state.latched
            self._latest = (state, time.monotonic())
            tell = state.stopped and not self._was_stopped and news
            self._was_stopped = state.stopped
        if tell:
            for listener in self._stop_listeners:
                listener(state.reason)

    def _open_topics(self, stop_topics: frozenset[str]) -> None:
        """Publish on what tools publish on, but never on a stop topic."""
        if self._closed or (stop_topics == self._stop_topics
                            and self._topics.keys() == self._publishers.keys()
                            | self._topic_faults.keys()):
            return
        self._stop_topics = stop_topics
        for target, message_class in self._topics.items():
            fault = forbidden_target(target, (), stop_topics)
            if fault and target not in self._topic_faults:
                self._node.get_logger().error(f'a tool publishes on {target}: {fault}; it is '
                                              'refused, take it out of the policy')
            if fault:
                self._topic_faults[target] = fault
                publisher = self._publishers.pop(target, None)
                if publisher is not None:
                    self._node.destroy_publisher(publisher)
                continue
            self._topic_faults.pop(target, None)
            if target not in self._publishers:
                self._publishers[target] = self._node.create_publisher(
                    message_class, target, QoSProfile(depth=1))


class ChildLink:
    """One child goal on its way. `items` gets ('feedback', message), ('refused', None) and, last,
    ('result', message); a cancel before the acknowledgement is kept until it can be sent.
    """

    def __init__(self, goal_id: bytes, guard_instance_id: str) -> None:
        self.goal_id = goal_id
        self.guard_instance_id = guard_instance_id
        self.items: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.acknowledged = False
        self._lock = threading.Lock()
        self._handle: Any = None
        self._cancel_wanted = False

    def cancel(self) -> None:
        """Ask the guard to cancel; returns at once."""
        with self._lock:
            if self._cancel_wanted:
                return
            self._cancel_wanted = True
            handle = self._handle
        if handle is not None:
            _cancel(handle)

    def on_acknowledged(self, future: Future[Any]) -> None:
        """Take the guard's answer to the goal."""
        handle = future.result()
        self.acknowledged = True
        if handle is None or not handle.accepted:
            self.items.put(('refused', None))
            return
        with self._lock:
            self._handle = handle
            cancel = self._cancel_wanted
        if cancel:
            _cancel(handle)
        handle.get_result_async().add_done_callback(self._on_result)

    def on_feedback(self, message: Any) -> None:
        """Take a step of the goal."""
        self.items.put(('feedback', message.feedback))

    def _on_result(self, future: Future[Any]) -> None:
        response = future.result()
        self.items.put(('result', None if response is None else response.result))


def _cancel(handle: Any) -> None:
    """Ask for a cancel; when the link has been closed, the guard misses the heartbeat instead."""
    with contextlib.suppress(RCLError):
        handle.cancel_goal_async()


def new_goal_id() -> UUID:
    """Return a random goal id."""
    return UUID(uuid=list(uuid.uuid4().bytes))
