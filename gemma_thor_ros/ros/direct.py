# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Calls that the node carries out itself, as they move nothing: services, parameters, reads.

Blocks the calling thread; every wait is bounded.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node

from gemma_thor_ros.ros.binding import BoundTool, told_value
from gemma_thor_ros.ros.policy_targets import PARAMETER_FIELD
from gemma_thor_ros.ros.policy_types import ResultField, Scalar
from gemma_thor_ros.ros.tool_run import ToolRun, told
from gemma_thor_ros.ros.topic_watch import TopicWatch, WatchedTopic
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome, Step, Verdict

POLL_S = 0.02                    # how late a cancel of the request may be noticed
READ_DIGITS = 1                  # of an age in seconds

_VALUE_FIELDS = {bool: ('bool_value', ParameterType.PARAMETER_BOOL),
                 int: ('integer_value', ParameterType.PARAMETER_INTEGER),
                 float: ('double_value', ParameterType.PARAMETER_DOUBLE),
                 str: ('string_value', ParameterType.PARAMETER_STRING)}
_FIELDS_BY_TYPE = {number: name for name, number in _VALUE_FIELDS.values()}


class DirectCalls:
    """The services, parameters and topics of a policy's tools.

    Args:
        node: calls and subscribes.
        tools: bound tools by name, with their resolved targets.
        topics: where the topics of reads are heard.
        group: of the clients; their callbacks never wait.
    """

    def __init__(self, node: Node, tools: dict[str, tuple[BoundTool, str]], topics: TopicWatch,
                 group: CallbackGroup) -> None:
        self._node = node
        self._topics = topics
        self._clients: dict[str, Any] = {}       # by tool
        self._watched: dict[str, WatchedTopic] = {}
        for name, (bound, target) in tools.items():
            kind = bound.tool.target.kind
            if kind == 'read':
                self._watched[name] = WatchedTopic(
                    target, bound.tool.target.type, bound.tool.target.latched)
                topics.add(self._watched[name])
            elif kind == 'service':
                self._clients[name] = node.create_client(
                    bound.interface, target, callback_group=group)
            elif kind == 'parameter':
                sets = bool(bound.tool.args)
                self._clients[name] = node.create_client(
                    SetParameters if sets else GetParameters,
                    f'{target}/{"set" if sets else "get"}_parameters', callback_group=group)

    def await_server(self, run: ToolRun, bound: BoundTool) -> None:
        """Wait until what a call needs is there (CallRefusedError otherwise)."""
        tool = bound.tool
        limit = time.monotonic() + tool.server_timeout_s
        client = self._clients.get(tool.name)
        while not run.canceled:
            if client is None:
                if self._topics.latest(self._watched[tool.name]) is not None:
                    return
                missing = f'nothing has been heard on {run.target}'
            else:
                if client.service_is_ready():
                    return
                missing = f'there is no {"node" if tool.target.parameter else "service"} ' \
                          f'{run.target}'
            if time.monotonic() > limit:
                raise CallRefusedError(Outcome.UNAVAILABLE, missing)
            time.sleep(POLL_S)

    def run(self, run: ToolRun, bound: BoundTool, fields: dict[str, Any],
            message: Any) -> Verdict:
        """Carry out a checked call and return its end."""
        kind = bound.tool.target.kind
        if kind == 'read':
            return self._read(run, bound)
        if kind == 'service':
            return self._call(run, bound, message)
        return self._parameter(run, bound, fields.get(PARAMETER_FIELD))

    def close(self) -> None:
        """Destroy what was made on the node."""
        for client in self._clients.values():
            self._node.destroy_client(client)
        self._clients.clear()

    def _read(self, run: ToolRun, bound: BoundTool) -> Verdict:
        found = self._topics.latest(self._watched[bound.tool.name])
        assert found is not None, 'await_server has seen a message'
        message, age_s = found
        limit_s = bound.tool.target.max_age_s
        if limit_s and age_s > limit_s:
            return _ended(run, 'aborted', f'the last message on {run.target} is {age_s:.1f} s '
                                          f'old, the limit is {limit_s:g} s')
        values = {**bound.result_values(message), 'age_s': round(age_s, READ_DIGITS)}
        return _ended(run, 'succeeded', '', values)

    def _call(self, run: ToolRun, bound: BoundTool, request: Any) -> Verdict:
        response, fault = self._answer(run, bound, request)
        if fault is not None:
            return fault
        if bound.success_field and not getattr(response, bound.success_field):
            return _ended(run, 'aborted', bound.reason(response))
        return _ended(run, 'succeeded', '', bound.result_values(response))

    def _parameter(self, run: ToolRun, bound: BoundTool, value: Scalar | None) -> Verdict:
        name = bound.tool.target.parameter
        if value is None:
            response, fault = self._answer(run, bound, GetParameters.Request(names=[name]))
            if fault is not None:
                return fault
            values = list(response.values)
            if not values or values[0].type == ParameterType.PARAMETER_NOT_SET:
                return _ended(run, 'aborted', f'{run.target} has no parameter {name}')
            return _ended(run, 'succeeded', '', {PARAMETER_FIELD: _value_from_ros(values[0])})
        field, number = _VALUE_FIELDS[type(value)]
        wanted = Parameter(name=name, value=ParameterValue(type=number, **{field: value}))
        response, fault = self._answer(run, bound, SetParameters.Request(parameters=[wanted]))
        if fault is not None:
            return fault
        if not response.results or not response.results[0].successful:
            reason = response.results[0].reason if response.results else 'no result'
            return _ended(run, 'aborted', reason)
        return _ended(run, 'succeeded', '')

    def _answer(self, run: ToolRun, bound: BoundTool,
                request: Any) -> tuple[Any, Verdict | None]:
        """Return a service's response, or the end of the call without one."""
        client = self._clients[bound.tool.name]
        answered = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        run.tell(Step.SENT, 'sending')
        limit = time.monotonic() + bound.tool.timeout_s
        while not answered.wait(POLL_S):
            if run.canceled:
                client.remove_pending_request(future)
                return None, _ended(run, 'canceled', 'the request was canceled; the service may '
                                                     'still act')
            if time.monotonic() > limit:
                client.remove_pending_request(future)
                run.tell(Step.TIMEOUT, 'timeout')
                return None, _ended(
                    run, 'unknown', f'{run.target} did not answer within '
                    f'{bound.tool.timeout_s:g} s; it may still act')
        return future.result(), None


def _ended(run: ToolRun, status: str, reason: str,
           values: dict[str, Any] | None = None) -> Verdict:
    run.tell(Step.FINISHED, status, told(status, reason, values))
    return run.verdict(Outcome.EXECUTED, status, reason, values)


def _value_from_ros(value: ParameterValue) -> Any:
    name = _FIELDS_BY_TYPE.get(value.type)
    if name is None:                     # an array
        name = next(field for field in value.get_fields_and_field_types()
                    if field.endswith('_array_value') and len(getattr(value, field)))
    return told_value(getattr(value, name), ResultField(PARAMETER_FIELD, name))
