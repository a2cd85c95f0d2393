# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""goal_guard: the process that holds every goal the language model node has sent.

It cancels them when the node dies or hangs, on a stop and on time limits, and says on
motion_inhibit when the robot must not move. Small on purpose: rclpy and the messages, one thread,
no engine, no arrays. This is not a safety-rated stop (docs/safety.md).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from rclpy.action.client import ActionClient
from rclpy.action.server import ActionServer, CancelResponse, ServerGoalHandle
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.exceptions import NameValidationException
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from rclpy.task import Future
from std_msgs.msg import Bool
from unique_identifier_msgs.msg import UUID

from gemma_thor_ros.action import RunChild
from gemma_thor_ros.msg import ChildGoal as ChildGoalMsg
from gemma_thor_ros.msg import GuardState, Heartbeat, StopSource
from gemma_thor_ros.ros.child_goal import ChildEnd, ChildGoal, Limits, Order
from gemma_thor_ros.ros.child_topic import Stream, TopicChild
from gemma_thor_ros.ros.guard_parameters import GuardParameters, declare_parameters
from gemma_thor_ros.ros.interfaces import InterfaceError, load_type
from gemma_thor_ros.ros.machine import run_ahead, runs_ahead
from gemma_thor_ros.ros.spinning import Spinner, run_node
from gemma_thor_ros.ros.stop_latch import LatchFile, Stops, state_path
from gemma_thor_ros.ros.targets import forbidden_target
from gemma_thor_ros.ros.twins import TWINS_S, Twins
from gemma_thor_ros.srv import ReleaseStop

TICK_S = 0.02
PUBLISH_PERIOD_S = 0.1
LAST_CANCELS_S = 1.0             # at the end of the process
MAX_CHILDREN = 64                # goals at a time; more would be a fault of the node
MAX_STREAM_S = 86400.0           # of a publish; policies set lower limits
TWO_NODES = 'two nodes of this name are running'

LATEST_QOS = QoSProfile(depth=1)
INHIBIT_QOS = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
# Reliable: a lost `true` would wait for the next one. A best-effort publisher is not heard, which
# counts as a stop.
STOP_QOS = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
EVENTS_QOS = QoSProfile(depth=100)


class NodeWatch:
    """What the guard knows of the language model node. Seconds on the steady clock."""

    def __init__(self, max_age_s: float) -> None:
        self.instance_id = ''
        self.active = False
        self._max_age_s = max_age_s
        self._received: float | None = None
        self.twins = Twins()

    def on_beat(self, beat: Heartbeat, now: float) -> None:
        """Take a heartbeat."""
        self.twins.hear(beat.instance_id, now)
        self.instance_id, self.active, self._received = beat.instance_id, beat.active, now

    def age_s(self, now: float) -> float:
        """Return the age of the last heartbeat; -1 when there is none yet."""
        return -1.0 if self._received is None else now - self._received

    def fault(self, now: float) -> str:
        """Return why the node may have no goals, or ''."""
        if self._received is None:
            return 'the node has not been heard yet'
        if now - self._received > self._max_age_s:
            return f'the heartbeat of the node is older than {self._max_age_s:g} s'
        if self.twins.seen(now):
            return TWO_NODES
        return '' if self.active else 'the node is not active'


class GoalGuard(Node):
    """The guard's node. All callbacks run in one thread and none of them waits."""

    def __init__(self, **options: Any) -> None:
        super().__init__('goal_guard', **options)
        self.parameters: GuardParameters = declare_parameters(self)
        self.instance_id = uuid.uuid4().hex
        self._watch = NodeWatch(self.parameters.heartbeat_max_age)
        self._limits = Limits(self.parameters.cancel_ack_timeout,
                              self.parameters.cancel_end_timeout)
        self._children: dict[bytes, ChildGoal | TopicChild] = {}
        self._owners: dict[bytes, str] = {}      # goal id -> instance of the node
        self._action_clients: dict[tuple[str, str], ActionClient[Any, Any, Any]] = {}
        self._stream_publishers: dict[tuple[str, str], Publisher[Any]] = {}
        self._group = ReentrantCallbackGroup()
        self._llm_node = self.resolve_topic_name(self.parameters.node)
        self._stop_topics = [self.resolve_topic_name(name) for name in self.parameters.stop_topics]
        latch_file = LatchFile(
            state_path(self.parameters.state_file, self.get_fully_qualified_name()))
        fault = latch_file.prove()
        if fault:
            raise ValueError(fault)
        self._stops = Stops(self._stop_topics, self.parameters.stop_max_age, latch_file)
        self._ending = ''
        self._last_reason: str | None = None
        self._published_at = -1e9
        self._other_guard_at = -1e9
        self._state_publisher = self.create_publisher(GuardState, '~/state', LATEST_QOS)
        inhibit = f'{self._llm_node}/motion_inhibit'
        self._inhibit_publisher = self.create_publisher(Bool, inhibit, INHIBIT_QOS)
        for topic in self._stop_topics:
            self._subscribe_to_stop(topic)
        self.create_subscription(Heartbeat, f'{self._llm_node}/heartbeat', self._on_heartbeat,
                                 LATEST_QOS)
        self.create_subscription(GuardState, '~/state', self._on_state, LATEST_QOS)
        self.create_service(ReleaseStop, f'{self._llm_node}/release_stop', self._on_release)
        self._server = ActionServer(
            self, RunChild, '~/run_child', self._run_child, cancel_callback=self._on_cancel,
            callback_group=self._group, feedback_pub_qos_profile=EVENTS_QOS)
        self.create_timer(TICK_S, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._forbidden = [*self._stop_topics, inhibit]
        if not self._stop_topics:
            self.get_logger().warning('no stop topic is configured (parameter stop_topics)')
        if not runs_ahead():
            self.get_logger().warning('this user may not raise priorities: on a busy machine a '
                                      'stop may be late (docs/safety.md)')
        self._tick()

    @property
    def idle(self) -> bool:
        """Whether no goal is left to own."""
        return not self._children

    def end(self) -> None:
        """Cancel everything, take nothing more and inhibit motion: the process ends."""
        self._ending = 'the guard is shutting down'
        for child in self._children.values():
            child.cancel('canceled', self._ending)
        self._tick()

    # Stops

    def _subscribe_to_stop(self, topic: str) -> None:
        def on_message(message: Bool) -> None:
            self._stops.on_message(topic, message.data, time.monotonic())
            if message.data:
                self._tick()

        def on_incompatible(_: Any) -> None:
            self._stops.on_incompatible(topic)
            self._tick()

        self.create_subscription(
            Bool, topic, on_message, STOP_QOS,
            event_callbacks=SubscriptionEventCallbacks(incompatible_qos=on_incompatible))

    def _on_release(self, request: ReleaseStop.Request,
                    response: ReleaseStop.Response) -> ReleaseStop.Response:
        now = time.monotonic()
        fault = self._stops.release(request.operator_name, request.reason, now)
        response.released, response.error_msg = not fault, fault
        response.active_sources = self._sources(now, only_active=True)
        if not fault:
            self.get_logger().warning(
                f'stop released by {request.operator_name}: {request.reason}')
            for child in list(self._children.values()):
                if child.escalated:
                    child.abandon()
            self._tick()
        return response

    # Heartbeat and time

    def _on_heartbeat(self, beat: Heartbeat) -> None:
        now = time.monotonic()
        self._watch.on_beat(beat, now)
        twins = self._watch.twins.seen(now)
        if twins:
            self.get_logger().error(f'two nodes named {self._llm_node} are running: end one; '
                                    'until then no goal is taken', throttle_duration_sec=10.0)
        for goal_id, child in list(self._children.items()):
            if self._owners[goal_id] != beat.instance_id:
                child.cancel('canceled', TWO_NODES if twins else 'the node was started anew')
        if not beat.active:
            self._tick()

    def _tick(self) -> None:
        now = time.monotonic()
        fault = self._watch.fault(now)
        for topic, source in self._stops.inputs.items():
            source.num_publishers = self.count_publishers(topic)
        self._stops.tick(now)
        reason = self._stops.reason(now)
        for child in list(self._children.values()):
            if fault:
                child.cancel('canceled', fault)
            if reason and child.order.motion:
                child.cancel('stopped', reason)
            child.tick(now)
        for goal_id in [key for key, child in self._children.items() if child.ended]:
            del self._children[goal_id], self._owners[goal_id]
        if self._stops.fault:
            self.get_logger().error(self._stops.fault, throttle_duration_sec=10.0)
        inhibit = self._ending or reason or self._twins(now) or self._escalations()
        if inhibit != self._last_reason or now - self._published_at >= PUBLISH_PERIOD_S:
            self._publish(now, reason, inhibit)

    def _on_state(self, state: GuardState) -> None:
        """Notice another guard of this name: the two would contradict each other."""
        if state.instance_id != self.instance_id:
            self._other_guard_at = time.monotonic()
            self.get_logger().error('another guard of this name is running: end one; until then '
                                    'motion is inhibited', throttle_duration_sec=10.0)

    def _twins(self, now: float) -> str:
        if now - self._other_guard_at < TWINS_S:
            return 'another guard of this name is running'
        return TWO_NODES if self._watch.twins.seen(now) else ''

    def _escalations(self) -> str:
        return '; '.join(f'{child.order.target}: {child.escalated}'
                         for child in self._children.values()
                         if child.escalated and child.order.motion)

    def _publish(self, now: float, reason: str, inhibit: str) -> None:
        if inhibit != self._last_reason:
            self.get_logger().info(f'motion is inhibited: {inhibit}' if inhibit
                                   else 'motion is allowed')
        self._last_reason, self._published_at = inhibit, now
        self._inhibit_publisher.publish(Bool(data=bool(inhibit)))
        self._state_publisher.publish(GuardState(
            stamp=self.get_clock().now().to_msg(), instance_id=self.instance_id,
            node_instance_id=self._watch.instance_id, heartbeat_age_s=self._watch.age_s(now),
            stopped=bool(reason), latched=self._stops.latched, reason=inhibit,
            sources=self._sources(now), child_goals=self._child_messages(now),
            motion_inhibit=bool(inhibit)))

    def _sources(self, now: float, only_active: bool = False) -> list[StopSource]:
        chosen = self._stops.active(now) if only_active else self._stops.inputs.values()
        return [StopSource(topic=source.topic, stopped=bool(source.reason(now)),
                           reason=source.reason(now), age_s=source.age_s(now),
                           num_publishers=source.num_publishers) for source in chosen]

    def _child_messages(self, now: float) -> list[ChildGoalMsg]:
        return [ChildGoalMsg(
            goal_id=UUID(uuid=list(child.order.goal_id)), request_id=child.order.request_id,
            call_id=child.order.call_id, tool_name=child.order.tool_name,
            target=child.order.target, motion=child.order.motion, status=child.status,
            age_s=now - child.started) for child in self._children.values()]

    # Child goals

    def _on_cancel(self, handle: ServerGoalHandle[Any, Any, Any]) -> CancelResponse:
        child = self._children.get(bytes(handle.request.goal_id.uuid))
        if child is not None:
            child.cancel('canceled', 'canceled by the node')
        return CancelResponse.ACCEPT

    async def _run_child(self, handle: ServerGoalHandle[Any, Any, Any]) -> RunChild.Result:
        """Hold one child goal; ends when the node is to be told of its end."""
        request: RunChild.Goal = handle.request
        end: Future[ChildEnd] = Future()

        def feedback(status: str, payload: bytes) -> None:
            if handle.is_active:
                handle.publish_feedback(RunChild.Feedback(status=status, payload=payload))

        fault = self._admission_fault(request)
        if fault:
            end.set_result(ChildEnd('refused', fault))
        else:
            self._start_child(request, end, feedback)
            if handle.is_cancel_requested:
                self._on_cancel(handle)
        told = await end
        assert told is not None, 'a child goal reports an end'
        if handle.is_cancel_requested:
            handle.canceled()
        elif told.status == 'succeeded':
            handle.succeed()
        else:
            handle.abort()
        return RunChild.Result(status=told.status, reason=told.reason, payload=told.payload)

    def _admission_fault(self, request: RunChild.Goal) -> str:
        """Return why a goal may not be sent now, or ''."""
        now = time.monotonic()
        fault = self._ending or self._watch.fault(now)
        if fault:
            return fault
        if request.node_instance_id != self._watch.instance_id:
            return 'the goal is of another start of the node'
        if bytes(request.goal_id.uuid) in self._children:
            return 'a goal of that id is running'
        if len(self._children) >= MAX_CHILDREN:
            return f'{MAX_CHILDREN} goals are on their way'
        if request.kind not in (RunChild.Goal.KIND_ACTION, RunChild.Goal.KIND_TOPIC):
            return f'kind {request.kind} is not known'
        if request.kind == RunChild.Goal.KIND_TOPIC and (
                fault := _stream_fault(request) or self._topic_fault(request.target)):
            return fault
        own = (self.get_fully_qualified_name(), self._llm_node)
        return (forbidden_target(request.target, own, self._forbidden)
                or self._motion_fault(request))

    def _motion_fault(self, request: RunChild.Goal) -> str:
        if not request.motion:
            return ''
        now = time.monotonic()
        reason = self._stops.reason(now) or self._twins(now) or self._escalations()
        return f'motion is stopped: {reason}' if reason else ''

    def _topic_fault(self, target: str) -> str:
        """Two publishes on one topic would take turns at the robot's wheels."""
        for child in self._children.values():
            if (isinstance(child, TopicChild) and child.order.target == target
                    and not child.make_way()):
                return f'a publish on {target} is going on'
        return ''

    def _start_child(self, request: RunChild.Goal, end: Future[ChildEnd], feedback: Any) -> None:
        start = (self._start_goal if request.kind == RunChild.Goal.KIND_ACTION
                 else self._start_stream)
        try:
            child = start(request, end, feedback)
        except (InterfaceError, NameValidationException, AttributeError, ValueError,
                RuntimeError) as error:
            end.set_result(ChildEnd('refused', f'{request.type}: {error}'))
            return
        self._owners[child.order.goal_id] = request.node_instance_id
        self._children[child.order.goal_id] = child
        child.tick(time.monotonic())

    def _start_goal(self, request: RunChild.Goal, end: Future[ChildEnd],
                    feedback: Any) -> ChildGoal:
        goal_class = load_type(request.type).Goal
        client = self._client(request.type, request.target)
        goal = deserialize_message(bytes(request.payload), goal_class)
        return ChildGoal(
            _order(request, goal), client, self._limits, time.monotonic(),
            check=lambda: self._sending_fault(request), report=end.set_result, feedback=feedback,
            log=self.get_logger().error, clock=time.monotonic,
            servers=lambda: self._servers(request.target))

    def _servers(self, target: str) -> frozenset[bytes]:
        """Return the ids of an action's servers: those of their status publishers."""
        found = self.get_publishers_info_by_topic(f'{target}/_action/status')
        return frozenset(bytes(info.endpoint_gid) for info in found)

    def _start_stream(self, request: RunChild.Goal, end: Future[ChildEnd],
                      feedback: Any) -> TopicChild:
        message_class = load_type(request.type)
        stop = None
        if request.stop_message:
            stop = deserialize_message(bytes(request.stop_message), message_class)
        stream = Stream(deserialize_message(bytes(request.payload), message_class), stop,
                        request.rate_hz if request.duration_s else 0.0, request.duration_s)
        key = (request.type, request.target)
        if key not in self._stream_publishers:
            self._stream_publishers[key] = self.create_publisher(
                message_class, request.target, QoSProfile(depth=1))
        return TopicChild(
            _order(request, None), stream, self._stream_publishers[key], time.monotonic(),
            check=lambda: self._sending_fault(request), report=end.set_result, feedback=feedback,
            stamp=lambda: self.get_clock().now().to_msg(), clock=time.monotonic)

    def _sending_fault(self, request: RunChild.Goal) -> str:
        return self._watch.fault(time.monotonic()) or self._motion_fault(request)

    def _client(self, type_name: str, target: str) -> ActionClient[Any, Any, Any]:
        key = (type_name, target)
        if key not in self._action_clients:
            self._action_clients[key] = ActionClient(self, load_type(type_name), target,
                                              callback_group=self._group)
        return self._action_clients[key]


def _order(request: RunChild.Goal, goal: Any) -> Order:
    return Order(
        bytes(request.goal_id.uuid), request.request_id, request.call_id, request.tool_name,
        request.target, request.motion, goal, _seconds(request.server_timeout),
        _seconds(request.timeout))


def _stream_fault(request: RunChild.Goal) -> str:
    """Return why a publish can't be taken: what moves a robot has to end by itself."""
    if request.motion and not (request.stop_message and request.duration_s):
        return 'a publish that moves the robot needs a duration and a stop message'
    if request.duration_s and not (0.0 < request.duration_s <= MAX_STREAM_S
                                   and 0.0 < request.rate_hz <= 1.0 / TICK_S):
        return (f'{request.rate_hz:g} Hz for {request.duration_s:g} s: a publish takes up to '
                f'{1.0 / TICK_S:g} Hz and {MAX_STREAM_S:g} s')
    return ''


def _seconds(duration: Any) -> float:
    return float(duration.sec + duration.nanosec * 1e-9)


def main(args: Sequence[str] | None = None) -> int:
    """Run the guard until SIGINT or SIGTERM; cancels what it holds; exit code 0."""
    run_ahead()                      # before rclpy starts threads, which inherit it
    return run_node(GoalGuard, args, _end)


def _end(guard: GoalGuard, spinner: Spinner) -> None:
    guard.end()
    spinner.spin_until(lambda: guard.idle, LAST_CANCELS_S)


if __name__ == '__main__':
    raise SystemExit(main())
