# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What a tool policy is once it has been read: plain, frozen data.

policy.py makes it, binding.py holds it against ROS types, checks.py holds calls against it. Knows
no file, no ROS and no model.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gemma_thor_ros.ros.areas import Area
from gemma_thor_ros.ros.frames import StaticFrame
from gemma_thor_ros.ros.policy_file import PolicyFile

Scalar = str | int | float | bool
Value = Scalar | list[Scalar]      # what one field of a message takes

DEFAULT_TIMEOUT_S = 5.0          # of what takes no time
DEFAULT_SERVER_TIMEOUT_S = 2.0
DEFAULT_CONFIRM_TIMEOUT_S = 30.0
DEFAULT_FRAME_AGE_S = 1.0
DEFAULT_REFERENCE = 'map'
DEFAULT_MAX_LENGTH = 1000        # characters of a string argument
DEFAULT_RESULT_LENGTH = 400      # characters of a result text that the model is told
DEFAULT_RESULT_DIGITS = 3        # digits after the point of a result number


@dataclass(frozen=True)
class Argument:
    """One argument of a tool.

    `minimum` and `maximum` hold for the converted value: metres or radians where there is a unit,
    else the plain number. `sign` and `values` are tables by enum value. Of an array, all of it
    holds for each element, which is of type `items`.
    """

    name: str
    type: str
    description: str = ''
    enum: tuple[Scalar, ...] = ()
    required: bool = True
    default: Scalar | None = None
    field: str = ''
    unit: str = ''
    unit_arg: str = ''
    sign_arg: str = ''
    sign: dict[str, int] = dataclasses.field(default_factory=dict)
    values: dict[str, Scalar] = dataclasses.field(default_factory=dict)
    minimum: float | None = None
    maximum: float | None = None
    max_length: int = DEFAULT_MAX_LENGTH
    convert: str = ''                # yaw_to_quaternion
    items: str = ''                  # type of an array's elements
    min_items: int = 0
    max_items: int = 0

    @property
    def has_unit(self) -> bool:
        """Whether the value is a length or an angle."""
        return bool(self.unit or self.unit_arg)

    @property
    def element(self) -> Argument:
        """Return what an array's elements are, as an argument of its own."""
        return dataclasses.replace(self, type=self.items, items='', description='')

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of this argument as the model sees it."""
        if self.items:
            array: dict[str, Any] = {'type': 'array', 'items': self.element.schema(),
                                     'minItems': self.min_items, 'maxItems': self.max_items}
            return {**array, **({'description': self.description} if self.description else {})}
        schema: dict[str, Any] = {'type': self.type}
        if self.enum:
            schema['enum'] = list(self.enum)
        if self.description:
            schema['description'] = self.description
        if not self.has_unit:  # limits in SI would mislead where the model writes another unit
            if self.minimum is not None:
                schema['minimum'] = self.minimum
            if self.maximum is not None:
                schema['maximum'] = self.maximum
        if self.default is not None:
            schema['default'] = self.default
        return schema


@dataclass(frozen=True)
class ResultField:
    """One value of a result that the model is told under `name`."""

    name: str
    field: str
    unit: str = ''
    digits: int = DEFAULT_RESULT_DIGITS
    max_length: int = DEFAULT_RESULT_LENGTH


@dataclass(frozen=True)
class Target:
    """What a tool stands for. `name` is a ROS name as in the file; of a parameter, its node's.

    A publish with a rate goes on for `duration_arg` (an argument in seconds) or `max_duration_s`,
    and ends with the stop message; one without is a single message.
    """

    kind: str                        # action, service, publish, read, parameter
    name: str
    type: str = ''                   # package/action/Name, srv or msg; none of a parameter
    rate_hz: float = 0.0
    max_duration_s: float = 0.0
    duration_arg: str = ''
    stop_message: dict[str, Value] | None = None
    success: str = ''                # service: the field that says whether it worked
    max_age_s: float = 0.0           # read: 0 = any
    latched: bool = False            # read: the publisher keeps its last message
    parameter: str = ''

    @property
    def guarded(self) -> bool:
        """Whether goal_guard sends it."""
        return self.kind in ('action', 'publish')


@dataclass(frozen=True)
class PosePolicy:
    """Which fields of a goal say where the robot would go.

    `field` is a stamped pose or point; without it, `x`, `y` and `z` are fields in metres (absent:
    0) in `frame`, or in the frame that `frame_field` holds.
    """

    field: str = ''
    frame: str = ''
    frame_field: str = ''
    x: str = ''
    y: str = ''
    z: str = ''


@dataclass(frozen=True)
class Frames:
    """Where coordinate frames come from. A goal's frame must be known in the frame `reference`."""

    source: str = 'auto'             # auto, tf, static
    reference: str = DEFAULT_REFERENCE
    max_age_s: float = DEFAULT_FRAME_AGE_S
    static: tuple[StaticFrame, ...] = ()


@dataclass(frozen=True)
class Precondition:
    """What must be true of a topic: a field's value, if there is a field, and its age in seconds.

    `stamp` holds the message's own stamp against the age too; `latched` topics may have no age.
    """

    name: str
    topic: str                       # as in the file
    type: str
    field: str = ''
    minimum: float | None = None
    maximum: float | None = None
    equals: Scalar | None = None
    max_age_s: float = 0.0           # 0 = any
    stamp: bool = False
    latched: bool = False
    otherwise: str = ''              # begins the reason when it does not hold


@dataclass(frozen=True)
class RateLimit:
    """At most `calls` in any `period_s` seconds."""

    calls: int
    period_s: float


@dataclass(frozen=True)
class ToolPolicy:
    """One tool and what it stands for. Times in seconds."""

    name: str
    description: str
    motion: bool
    target: Target
    args: tuple[Argument, ...]
    constants: dict[str, Value]
    timeout_s: float
    server_timeout_s: float
    result: tuple[ResultField, ...]
    reason_field: str
    confirm: str = 'never'           # never, once_per_session, always
    confirm_timeout_s: float = DEFAULT_CONFIRM_TIMEOUT_S
    pose: PosePolicy | None = None
    area: str = ''
    requires: tuple[str, ...] = ()   # preconditions
    rate: RateLimit | None = None
    after_reading: str = 'confirm'   # a motion after untrusted text: confirm, refuse, allow
    trusts: tuple[str, ...] = ()     # tools whose results are no untrusted text

    def argument(self, name: str) -> Argument | None:
        """Return the argument of that name, or None."""
        return next((arg for arg in self.args if arg.name == name), None)

    def openai_tool(self) -> dict[str, Any]:
        """Return the tool in the OpenAI form, as the model sees it."""
        parameters: dict[str, Any] = {
            'type': 'object', 'properties': {arg.name: arg.schema() for arg in self.args}}
        required = [arg.name for arg in self.args if arg.required]
        if required:
            parameters['required'] = required
        return {'type': 'function', 'function': {
            'name': self.name, 'description': self.description, 'parameters': parameters}}


@dataclass(frozen=True)
class Policy:
    """All tools of one policy file. What is not in it is denied."""

    source: PolicyFile
    tools: dict[str, ToolPolicy]
    frames: Frames = Frames()
    areas: dict[str, Area] = dataclasses.field(default_factory=dict)
    preconditions: dict[str, Precondition] = dataclasses.field(default_factory=dict)
    calls: str = 'in_order'          # several of one turn: in_order, together
    after_failure: str = 'refuse'    # motions after one that failed, in order: refuse, go_on

    def openai_tools(self) -> list[dict[str, Any]]:
        """Return the tools that are shown to the model, in the order of the file."""
        return [tool.openai_tool() for tool in self.tools.values()]
