# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Plain data that crosses the borders between front ends, chat and engine.

Knows no ROS, no HTTP, no arrays. Front ends convert their own messages to and from these classes;
`chat.py` and `engine/` exchange them through queues. Everything here is immutable or owned by one
side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from itertools import zip_longest
from typing import Any, Protocol


class ErrorCode(IntEnum):
    """Why a request failed; the same numbers stand in the ROS interfaces (uint16 error_code)."""

    NONE = 0
    INVALID_REQUEST = 1  # a field is wrong; the message names it and its limits
    CONTEXT_LENGTH = 2  # prompt (or prompt + max_tokens) does not fit; both numbers in the message
    BUSY = 3  # the waiting queue is full
    NOT_READY = 4  # the engine is loading, stopped or failed
    CANCELLED = 5  # cancelled by the client, by an operator or by a shutdown
    TIMEOUT = 6  # a time limit of the request ran out
    DEADLINE = 7  # refused or ended because its deadline can't be met
    UNSUPPORTED = 8  # valid, but this model or build can't do it
    MEMORY = 9  # can't fit the memory budget; both numbers in the message
    ENGINE = 10  # our fault: the step that carried this request failed
    DEVICE = 11  # sticky device error: the process ends after answering
    UNKNOWN_SESSION = 12
    UNKNOWN_REQUEST = 13
    FORBIDDEN = 14  # not allowed for this front end (priority, tool execution)
    STOPPED = 15  # a stop topic or the motion latch is active


class RequestError(Exception):
    """A request can't be served. `code`, a full sentence with the numbers, and the field's
    name.
    """

    def __init__(self, code: ErrorCode, message: str, param: str = '') -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class DeviceError(Exception):
    """The device is lost: no later step can run in this process. Raised by models and ops."""


class ConfigError(Exception):
    """A checkpoint, parameter or policy file is unfit. The message names the file and the item."""


class FinishReason(str, Enum):
    """How a generation ended, in the words of the OpenAI API plus our own two."""

    STOP = 'stop'
    LENGTH = 'length'
    TOOL_CALLS = 'tool_calls'
    CANCELLED = 'cancelled'
    ERROR = 'error'

    def __str__(self) -> str:
        return self.value


class Priority(IntEnum):
    """Scheduling classes, shared by all front ends; higher runs first."""

    BACKGROUND = 0
    AGENT = 1
    DIALOGUE = 2
    OPERATOR = 3


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Resolved: no sentinels, every field in range.

    temperature 0.0 is greedy. top_k 0, top_p 1.0 and min_p 0.0 switch the filter off. `seed` is a
    64-bit value; a random one is drawn by chat.py when the client gave none.
    """

    temperature: float = 1.0
    top_k: int = 64
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 1024
    min_tokens: int = 0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_ids: tuple[int, ...] = ()  # in addition to the model's own {1, 106, 50}
    ignore_eos: bool = False  # benchmarks only
    logprobs: int = -1  # -1 off, 0 the chosen token only, n <= 20 alternatives


class Guide(Protocol):
    """Which token may come next in one answer; it belongs to one request, then to the engine.

    The engine asks before each token and tells which one it took; what it only tries, such as
    drafts, it takes back. An exception ends the request.
    """

    @property
    def banned(self) -> tuple[int, ...]:
        """Ids that may not come next where `allowed` gives None."""

    @property
    def finished(self) -> bool:
        """Whether the answer is over."""

    def allowed(self) -> bytes | None:
        """Bits of the ids that may come next, id % 8 of byte id // 8; None: all but `banned`."""

    def accept(self, token_id: int) -> None:
        """Go on behind a token."""

    def rollback(self, num_tokens: int) -> None:
        """Go back before the last tokens, as many as a step may try."""


@dataclass(frozen=True, eq=False)
class PromptImage:
    """The soft tokens of one image in a prompt: positions start .. start + num_tokens - 1.

    `patches` and `columns` are what the model's vision part reads, opaque to everybody between.
    `digest` names them: equal digests mean equal soft tokens.
    """

    start: int
    num_tokens: int
    digest: bytes
    patches: Any
    columns: int

    @property
    def stop(self) -> int:
        """The position behind its last soft token."""
        return self.start + self.num_tokens


@dataclass(frozen=True)
class Request:
    """What the engine runs: token ids in, token ids out.

    `choice` keys the noise of the n choices of one call. `prompt_ids` must not be empty. Times are
    steady-clock seconds, 0 = none; `first_token_s` runs from submission, `token_gap_s` from the
    token before. `checkpoints` are prompt positions at which later prompts are likely to part from
    this one (end of the system block, turn borders). `identity` keeps prompts apart whose equal
    token ids do not mean the same K and V. `images` stand in the order of their positions.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: Priority = Priority.DIALOGUE
    choice: int = 0
    deadline_s: float = 0.0  # steady-clock seconds from submission; 0 = none
    front_end: str = 'local'  # 'ros', 'http', 'cli', 'local'
    first_token_s: float = 0.0
    token_gap_s: float = 0.0
    checkpoints: tuple[int, ...] = ()
    identity: str = ''
    guide: Guide | None = None
    images: tuple[PromptImage, ...] = ()


@dataclass(frozen=True)
class QueuePosition:
    """Where a request stands that waits for its turn, or for its turn again after a preemption.

    The wait is an estimate from measured speeds and the usual length of answers; 0 = not known.
    """

    position: int  # 1 = next
    expected_wait_s: float = 0.0


@dataclass(frozen=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    rounds: int = 0  # draft-verify rounds
    drafted_tokens: int = 0
    accepted_tokens: int = 0  # without the bonus token of each round
    accepted_by_position: tuple[int, ...] = ()  # drafts kept at position 1, 2, ...

    def __add__(self, other: Usage) -> Usage:
        """Return the counts of two requests together."""
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__dataclass_fields__
            if name != 'accepted_by_position'
        }
        pairs = zip_longest(self.accepted_by_position, other.accepted_by_position, fillvalue=0)
        return Usage(**sums, accepted_by_position=tuple(map(sum, pairs)))


@dataclass(frozen=True)
class Timings:
    """Steady-clock durations of one request in milliseconds."""

    queued_ms: float = 0.0
    prefill_ms: float = 0.0
    time_to_first_token_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0
    tokens_per_s: float = 0.0  # decode rate: (completion - 1) / decode time


@dataclass(frozen=True)
class TokenLogprob:
    """One chosen token and, if asked for, its best alternatives (token id, natural logarithm)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TokenEvent:
    """Engine -> outbox: the tokens that one step committed for one request."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class FinishEvent:
    """Engine -> outbox: the last event of every request, exactly one."""

    reason: FinishReason  # STOP (a stop id), LENGTH, CANCELLED or ERROR
    usage: Usage = Usage()
    timings: Timings = Timings()
    stop_id: int = -1  # the stop id that ended it; it is the last token id too
    code: ErrorCode = ErrorCode.NONE
    message: str = ''


@dataclass(frozen=True)
class ToolCall:
    """One complete call of the model. `repaired` calls are shown but never executed."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    repaired: bool = False
    arguments_json: str = ''  # what the streamed argument deltas join to


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call: the first one of an index carries call_id and name."""

    index: int
    call_id: str = ''
    name: str = ''
    arguments: str = ''  # JSON text to append


@dataclass(frozen=True)
class ChatDelta:
    """What one poll of a stream adds. Text never holds markup, half code points or U+FFFD of
    ours.
    """

    sequence: int  # 0, 1, 2, ... within the request
    text: str = ''
    reasoning: str = ''
    tool_calls: tuple[ToolCallDelta, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class ChatResult:
    """The whole answer; joined deltas equal it byte for byte."""

    request_id: str
    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    token_ids: tuple[int, ...] = ()
    malformed: bool = False  # markup that could not be read was dropped
    code: ErrorCode = ErrorCode.NONE
    message: str = ''


@dataclass(frozen=True)
class ChatRequest:
    """What every front end asks of chat.py.

    `messages` and `tools` are in the OpenAI form (dicts), already JSON-decoded. None in `sampling`
    values means the node's default. `session_id` '' means: no history is kept. `prompt` goes to
    the model as it is (text gets a bos in front) in place of messages, and the answer is plain
    text: nothing in it is read as a thought or a call. `parent_id` is the request that this one is
    a round of; it holds the session (Chat.hold_session).
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    sampling: dict[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    enable_thinking: bool | None = None
    thinking_budget: int | None = None  # tokens of thought at most; 0 = no thinking
    session_id: str = ''
    request_id: str = ''
    priority: Priority | None = None
    deadline_s: float = 0.0
    timeout_s: float = 0.0  # 0 = the node's limit
    front_end: str = 'local'
    choice: int = 0
    continue_final_message: bool = False
    prompt: str | tuple[int, ...] | None = None
    tool_choice: str = 'auto'
    tool_names: tuple[str, ...] = ()
    parallel_tool_calls: bool = True  # False: one call ends the answer
    response_schema: dict[str, Any] | bool | None = None
    response_schema_at: str = 'response_schema'
    parent_id: str = ''
    client: str = ''  # who asked, as far as known; for the audit alone
