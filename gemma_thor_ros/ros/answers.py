# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the engine answers, as ROS messages and back: results, calls, counts, durations, errors.

Pure functions in pairs `x_from_ros` / `x_to_ros`, like conversions.py, which has the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unique_identifier_msgs.msg import UUID

import gemma_thor_ros.msg as msg
from gemma_thor_ros.ros.conversions import arguments_from_ros, json_text, ros_text
from gemma_thor_ros.ros.verdict import CallEvent, Outcome, Step, Verdict
from gemma_thor_ros.schema import (
    ChatResult,
    ErrorCode,
    FinishReason,
    RequestError,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)


def tool_call_to_ros(call: ToolCall) -> msg.ToolCall:
    """Return the ROS message of a complete call."""
    return msg.ToolCall(
        call_id=call.call_id,
        name=ros_text(call.name),
        arguments_json=ros_text(arguments_json(call)),
        repaired=call.repaired,
    )


def tool_call_from_ros(call: msg.ToolCall, where: str = 'tool_call') -> ToolCall:
    """Return a complete call; its arguments must be a JSON object."""
    text, arguments = arguments_from_ros(call.arguments_json, f'{where}.arguments_json')
    return ToolCall(call.call_id, call.name, arguments, call.repaired, text)


def tool_call_delta_to_ros(delta: ToolCallDelta) -> msg.ToolCallDelta:
    """Return the ROS message of a piece of a call."""
    return msg.ToolCallDelta(
        index=delta.index,
        call_id=delta.call_id,
        name=ros_text(delta.name),
        arguments=ros_text(delta.arguments),
    )


def tool_call_delta_from_ros(delta: msg.ToolCallDelta) -> ToolCallDelta:
    """Return a piece of a call."""
    return ToolCallDelta(delta.index, delta.call_id, delta.name, delta.arguments)


def usage_to_ros(usage: Usage) -> msg.Usage:
    """Return the ROS message of token counts."""
    return msg.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cached_tokens=usage.cached_tokens,
        draft_rounds=usage.rounds,
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
        accepted_by_position=usage.accepted_by_position,
    )


def usage_from_ros(usage: msg.Usage) -> Usage:
    """Return token counts."""
    return Usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.reasoning_tokens,
        usage.cached_tokens,
        usage.draft_rounds,
        usage.drafted_tokens,
        usage.accepted_tokens,
        tuple(int(count) for count in usage.accepted_by_position),
    )


def timings_to_ros(timings: Timings) -> msg.Timings:
    """Return the ROS message of durations (milliseconds on both sides)."""
    return msg.Timings(**{name: float(value) for name, value in vars(timings).items()})


def timings_from_ros(timings: msg.Timings) -> Timings:
    """Return durations in milliseconds."""
    return Timings(**{name: getattr(timings, name) for name in Timings.__dataclass_fields__})


def chat_result_to_ros(
    result: ChatResult, answer: Any, logprobs: Sequence[TokenLogprob] = ()
) -> Any:
    """Fill a Chat action result or service response from `result` and return it."""
    answer.error_code = int(result.code)
    answer.error_msg = ros_text(result.message)
    answer.request_id = result.request_id
    answer.text = ros_text(result.text)
    answer.reasoning = ros_text(result.reasoning)
    answer.tool_calls = [tool_call_to_ros(call) for call in result.tool_calls]
    answer.finish_reason = str(result.finish_reason)
    answer.malformed = result.malformed
    answer.usage = usage_to_ros(result.usage)
    answer.timings = timings_to_ros(result.timings)
    answer.token_ids = list(result.token_ids)
    answer.token_logprobs = [entry.logprob for entry in logprobs]
    return answer


def chat_result_from_ros(answer: Any) -> ChatResult:
    """Return the plain result of a Chat action result or service response."""
    return ChatResult(
        request_id=answer.request_id,
        text=answer.text,
        reasoning=answer.reasoning,
        tool_calls=tuple(tool_call_from_ros(call) for call in answer.tool_calls),
        finish_reason=FinishReason(answer.finish_reason or FinishReason.ERROR),
        usage=usage_from_ros(answer.usage),
        timings=timings_from_ros(answer.timings),
        token_ids=tuple(answer.token_ids),
        malformed=answer.malformed,
        code=ErrorCode(answer.error_code),
        message=answer.error_msg,
    )


def error_to_ros(error: RequestError, answer: Any) -> Any:
    """Set error_code and error_msg of any answer of ours, and return it."""
    answer.error_code = int(error.code)
    answer.error_msg = ros_text(error.message)
    if hasattr(answer, 'finish_reason'):
        answer.finish_reason = str(FinishReason.ERROR)
    return answer


def arguments_json(call: ToolCall) -> str:
    """Return the JSON text of a call's arguments: what was streamed, if it was."""
    return call.arguments_json or json_text(call.arguments)


def verdict_to_ros(verdict: Verdict) -> msg.ToolVerdict:
    """Return the ROS message of what became of a call."""
    return msg.ToolVerdict(
        call_id=verdict.call_id,
        name=ros_text(verdict.name),
        arguments_json=ros_text(verdict.arguments_json),
        repaired=verdict.repaired,
        motion=verdict.motion,
        outcome=int(verdict.outcome),
        status=verdict.status,
        reason=ros_text(verdict.reason),
        result_json=ros_text(verdict.result_json),
        target=verdict.target,
        goal_id=goal_id_to_ros(verdict.goal_id),
        duration_ms=float(verdict.duration_ms),
    )


def verdict_from_ros(verdict: msg.ToolVerdict) -> Verdict:
    """Return what became of a call."""
    return Verdict(
        verdict.call_id,
        verdict.name,
        verdict.arguments_json,
        verdict.repaired,
        verdict.motion,
        Outcome(verdict.outcome),
        verdict.status,
        verdict.reason,
        verdict.result_json,
        verdict.target,
        goal_id_from_ros(verdict.goal_id),
        verdict.duration_ms,
    )


def tool_event_to_ros(event: CallEvent) -> msg.ToolEvent:
    """Return the ROS message of a step of a call; its request and time are the caller's to add."""
    return msg.ToolEvent(
        event=int(event.step),
        call_id=event.call_id,
        name=ros_text(event.name),
        arguments_json=ros_text(event.arguments_json),
        motion=event.motion,
        target=event.target,
        goal_id=goal_id_to_ros(event.goal_id),
        status=event.status,
        detail=ros_text(event.detail),
    )


def tool_event_from_ros(event: msg.ToolEvent) -> CallEvent:
    """Return one step of a call."""
    return CallEvent(
        Step(event.event),
        event.call_id,
        event.name,
        event.arguments_json,
        event.motion,
        event.target,
        goal_id_from_ros(event.goal_id),
        event.status,
        event.detail,
    )


def goal_id_to_ros(goal_id: bytes) -> UUID:
    """Return a UUID message; b'' (no goal) is all zero."""
    return UUID(uuid=list(goal_id or bytes(16)))


def goal_id_from_ros(goal_id: UUID) -> bytes:
    """Return the 16 bytes of a goal's id; b'' for the all-zero one."""
    data = bytes(goal_id.uuid)
    return data if any(data) else b''
