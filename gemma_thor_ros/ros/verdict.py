# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What became of a tool call, as plain data: verdicts, steps, and the JSON text the model is told.

The numbers are those of ToolVerdict.msg and ToolEvent.msg. Knows no ROS.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

MAX_REASON = 300                 # characters of a reason


class Outcome(IntEnum):
    """ToolVerdict.outcome."""

    EXECUTED = 0
    REFUSED_UNKNOWN_TOOL = 1
    REFUSED_REPAIRED = 2
    REFUSED_SCHEMA = 3
    REFUSED_RANGE = 4
    REFUSED_FRAME = 5
    REFUSED_GEOFENCE = 6
    REFUSED_PRECONDITION = 7
    REFUSED_RATE = 8
    REFUSED_STOPPED = 9
    REFUSED_DUPLICATE = 10
    REFUSED_PROVENANCE = 11
    DENIED = 12
    DENIED_TIMEOUT = 13
    UNAVAILABLE = 14
    DRY_RUN = 15


class Step(IntEnum):
    """ToolEvent.event."""

    PROPOSED = 0
    REFUSED = 1
    CONFIRMATION_REQUESTED = 2
    CONFIRMED = 3
    DENIED = 4
    SENT = 5
    ACCEPTED = 6
    FEEDBACK = 7
    CANCEL_SENT = 8
    CANCEL_ACKNOWLEDGED = 9
    CANCEL_REJECTED = 10
    LATE_ACKNOWLEDGEMENT = 11
    TIMEOUT = 12
    FINISHED = 13
    DRY_RUN = 14
    STOPPED = 15


class CallRefusedError(Exception):
    """A call may not act. `outcome` says which rule, the message is a sentence for people.

    `told` is what the model is told instead, where that is too much for it; '' = the same.
    """

    def __init__(self, outcome: Outcome, reason: str, told: str = '') -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.told = told


@dataclass(frozen=True)
class Verdict:
    """The end of one call; the fields of ToolVerdict.msg. `goal_id` is 16 bytes, or none."""

    call_id: str
    name: str
    arguments_json: str
    repaired: bool
    motion: bool
    outcome: Outcome
    status: str
    reason: str = ''
    result_json: str = ''
    target: str = ''
    goal_id: bytes = b''
    duration_ms: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Whether the action ran and reached its goal."""
        return self.outcome is Outcome.EXECUTED and self.status == 'succeeded'


@dataclass(frozen=True)
class CallEvent:
    """One step of one call; the fields of ToolEvent.msg that the bridge knows."""

    step: Step
    call_id: str
    name: str
    arguments_json: str
    motion: bool = False
    target: str = ''
    goal_id: bytes = b''
    status: str = ''
    detail: str = ''


def result_text(status: str, reason: str = '', values: dict[str, Any] | None = None) -> str:
    """Return the JSON text that the model is told: the status first, then values or the reason."""
    data: dict[str, Any] = {'status': status}
    if reason:
        data['reason'] = cut(reason, MAX_REASON)
    data.update(values or {})
    return json.dumps(data, ensure_ascii=False, separators=(',', ':'), allow_nan=False)


def cut(text: str, limit: int) -> str:
    """Return `text`, or its beginning and a visible note of how much was left out."""
    if len(text) <= limit:
        return text
    return f'{text[:limit]}… ({len(text) - limit} more characters)'
