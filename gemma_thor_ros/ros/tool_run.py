# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One tool call on its way through the bridge: who asked, what it is, its steps and its verdict.

Knows no ROS, and nothing of how a call is carried out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gemma_thor_ros.ros.verdict import CallEvent, Outcome, Step, Verdict, result_text
from gemma_thor_ros.schema import ToolCall

# What the model is told where its word differs from the verdict's.
_TOLD_STATUS = {'lost': 'unavailable', 'unknown': 'unavailable', 'denied': 'refused'}


class CancelFlag(Protocol):
    """A threading.Event, or anything like it."""

    def is_set(self) -> bool:
        """Whether the request was cancelled."""


@dataclass(frozen=True)
class ToolRun:
    """One call on its way. `goal_id` is 16 bytes; `started` on the steady clock in seconds."""

    call: ToolCall
    request_id: str
    on_event: Callable[[CallEvent], None]
    cancel: CancelFlag | None
    started: float
    goal_id: bytes
    motion: bool = False
    target: str = ''

    @property
    def canceled(self) -> bool:
        """Whether the request was cancelled."""
        return self.cancel is not None and self.cancel.is_set()

    @property
    def arguments_json(self) -> str:
        """Return the arguments as the parser read them, else as JSON, else '{}'."""
        try:
            return self.call.arguments_json or json.dumps(self.call.arguments, default=str)
        except (RecursionError, TypeError, ValueError):
            return '{}'

    def tell(self, step: Step, status: str = '', detail: str = '') -> None:
        """Tell the caller of a step."""
        self.on_event(CallEvent(step, self.call.call_id, self.call.name, self.arguments_json,
                                self.motion, self.target, self.goal_id, status, detail))

    def verdict(self, outcome: Outcome, status: str, reason: str = '',
                values: dict[str, Any] | None = None, for_model: str = '') -> Verdict:
        """Return the end of the call; `for_model` is a reason that the model gets instead."""
        text = told(status, for_model or reason, values)
        return Verdict(self.call.call_id, self.call.name, self.arguments_json, self.call.repaired,
                       self.motion, outcome, status, reason, text,
                       self.target, self.goal_id if outcome is Outcome.EXECUTED else b'',
                       (time.monotonic() - self.started) * 1e3)


def told(status: str, reason: str = '', values: dict[str, Any] | None = None) -> str:
    """Return what the model is told of a verdict."""
    return result_text(_TOLD_STATUS.get(status, status), reason, values)
