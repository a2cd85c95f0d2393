# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Reads a model's answer: one state machine over token ids gives text, thoughts and tool calls.

Structure is decided by control ids alone; the same characters made of ordinary tokens are text.
A call comes out when it is complete, in two deltas: its name, then its arguments as JSON. Takes
any ids without raising, in time linear in their number. Knows no engine and no stop strings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from gemma_thor_ros.schema import FinishReason
from gemma_thor_ros.text.bare_call import BareCallWatch
from gemma_thor_ros.text.call_repair import read_tolerant
from gemma_thor_ros.text.call_syntax import DELIMITER, read_strict
from gemma_thor_ros.text.coerce import resolve
from gemma_thor_ros.text.detokenize import Detokenizer
from gemma_thor_ros.text.prompt import PromptState
from gemma_thor_ros.text.strip import StripStream
from gemma_thor_ros.text.tokenizer import Tokenizer

_LABEL = 'thought'


class ParserDelta(NamedTuple):
    """What one push adds: visible text, reasoning, or a piece of a call (call_index >= 0)."""

    text: str = ''
    reasoning: str = ''
    call_index: int = -1
    call_name: str = ''              # in the first delta of a call
    arguments: str = ''              # in the second: the whole arguments as JSON


@dataclass(frozen=True)
class ParsedCall:
    """One complete call. `repaired`: it broke the grammar somewhere and must never act."""

    name: str
    arguments: dict[str, Any]
    arguments_json: str
    repaired: bool


@dataclass(frozen=True)
class ParsedOutput:
    """The whole answer. Joined deltas, with `deltas` of the finish, equal it byte for byte.

    `malformed` holds the raw text of calls that could not be read and were dropped.
    """

    content: str
    reasoning: str
    tool_calls: tuple[ParsedCall, ...]
    finish_reason: FinishReason
    malformed: tuple[str, ...] = ()
    deltas: tuple[ParserDelta, ...] = field(default=(), compare=False)

    @property
    def repaired(self) -> bool:
        """Some call was repaired."""
        return any(call.repaired for call in self.tool_calls)


class _State(Enum):
    TEXT = 'text'                    # visible text
    LABEL = 'label'                  # behind a channel opener, its label unfinished
    THOUGHT = 'thought'
    CALL = 'call'
    HEADER = 'header'                # behind a turn opener, before its newline
    DONE = 'done'                    # behind a stop id


_THINKING = (_State.LABEL, _State.THOUGHT)


class OutputParser:
    """One answer. `push` token ids as they come, then `finish` once.

    `tools` maps the names of the request's tools to their parameter schemas (tool_schemas() makes
    it); `prompt` says where the prompt left the model, `in_thought` is its short form.
    """

    def __init__(self, tokenizer: Tokenizer, tools: Mapping[str, Mapping[str, Any]] | None = None,
                 *, prompt: PromptState | None = None, in_thought: bool = False) -> None:
        self._tokenizer = tokenizer
        self._controls = tokenizer.controls
        self._control_ids = tokenizer.control_ids
        self._stop_ids = tokenizer.controls.stop_ids
        self._tools = tools or {}
        self._detokenizer = Detokenizer(tokenizer)
        self._state = _State.TEXT
        self._thought_open = False   # a channel opener has no closer yet
        self._label = ''             # text in LABEL or HEADER
        self._call_ids: list[int] = []
        self._calls: list[ParsedCall] = []
        self._malformed: list[str] = []
        self._content = StripStream()
        self._reasoning = StripStream(between='\n')
        self._deltas: list[ParserDelta] = []
        self._run: list[str] = []    # pieces of the delta in the making
        self._run_is_text = True
        self._output: ParsedOutput | None = None
        self.stop_id = -1            # the stop id that ended the answer
        self.num_tokens = 0          # up to the stop id, which counts
        self.reasoning_tokens = 0    # within thoughts, markers included
        self._watch = BareCallWatch(self._tools)
        prompt = prompt or PromptState()
        if in_thought or prompt.channel_text is not None:
            self._thought_open = True
            self._state = _State.THOUGHT
            label = (prompt.channel_text or '').lstrip()
            if not in_thought and _LABEL.startswith(label):
                self._state, self._label = _State.LABEL, label
        elif prompt.continues:
            self._content.keep_start()
            self._watch.begin(watch_thought=False)

    def push(self, token_ids: Iterable[int]) -> list[ParserDelta]:
        """Read more ids; returns what they complete. Ids behind a stop id are ignored."""
        for token_id in token_ids:
            state = self._state
            if state is _State.DONE:
                break
            self.num_tokens += 1
            if token_id in self._control_ids:
                self._control(token_id)
            elif state is _State.CALL:
                self._call_ids.append(token_id)
            else:
                text = self._detokenizer.push_one(token_id)
                if text:
                    self._text(text)
            if state in _THINKING or self._state in _THINKING:
                self.reasoning_tokens += 1
        self._end_run()
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self, reason: FinishReason | None = None) -> ParsedOutput:
        """End the answer. Without a reason: `length` when no stop id came.

        STOP closes a call that lacks only its closer, as a stop id does (servers strip the id).
        """
        if self._output is None:
            self._output = self._finish(reason)
        return self._output

    def _finish(self, reason: FinishReason | None) -> ParsedOutput:
        stopped = self._state is _State.DONE or reason in (FinishReason.STOP,
                                                           FinishReason.TOOL_CALLS)
        if self._state is not _State.DONE:
            if self._state is _State.CALL:
                self._end_call(closed=False, balanced_counts=stopped)
            self._detokenizer.flush()
            self._release()
            self._state = _State.DONE
        self._end_run()
        deltas, self._deltas = tuple(self._deltas), []
        final = FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP
        if reason is FinishReason.CANCELLED or reason is FinishReason.ERROR:
            final = reason
        elif not stopped:
            final = FinishReason.LENGTH
        return ParsedOutput(self._content.text(), self._reasoning.text(), tuple(self._calls),
                            final, tuple(self._malformed), deltas)

    def _control(self, token_id: int) -> None:
        controls = self._controls
        if self._state is _State.CALL:
            again = token_id == controls.call and not self._call_ids
            if token_id == controls.quote or again or self._is_junk(token_id):
                self._call_ids.append(token_id)
                return
            self._end_call(closed=token_id == controls.call_end)
            if token_id == controls.call_end:
                return
        self._detokenizer.flush()
        if token_id == controls.quote:
            self._watch.quote()
        elif token_id == controls.call_end:
            self._stray_call_end()
        elif token_id in self._stop_ids:
            self._release()
            self._state, self.stop_id = _State.DONE, token_id
        elif token_id == controls.call:
            self._release()
            self._state = _State.CALL
        elif token_id == controls.channel:
            self._release()
            self._thought_open = True
            self._state, self._label = _State.LABEL, ''
        elif token_id == controls.channel_end:
            self._channel_end()
        elif token_id == controls.turn:
            self._turn()

    def _is_junk(self, token_id: int) -> bool:
        """Control tokens that mean nothing in an answer; within a call they spoil it."""
        controls = self._controls
        return token_id not in (
            controls.call, controls.call_end, controls.channel, controls.channel_end,
            controls.turn, controls.tool, controls.tool_end, controls.response_end,
            controls.think) and token_id not in self._stop_ids

    def _text(self, text: str) -> None:
        if self._state is _State.TEXT:
            self._emit_text(self._watch.push(text))
        elif self._state is _State.THOUGHT:
            self._emit_reasoning(text)
        elif self._state is _State.LABEL:
            self._label = (self._label + text).lstrip()
            if _LABEL.startswith(self._label):
                return
            self._state = _State.THOUGHT
            rest = self._label[len(_LABEL):]
            labelled = self._label.startswith(_LABEL) and rest[:1].isspace()
            self._emit_reasoning(rest if labelled else self._label)
        elif self._state is _State.HEADER:
            role, newline, rest = (self._label + text).partition('\n')
            self._label = role[:16]
            if newline:
                if role.strip() != 'model':
                    self._state = _State.DONE
                    return
                self._begin_text()
                if rest:
                    self._text(rest)

    def _channel_end(self) -> None:
        if self._state is _State.TEXT:
            text, is_thought = self._watch.thought_closed()
            if is_thought:
                self._emit_reasoning(text)
            else:
                self._emit_text(text)
        self._reasoning.end_block()
        self._thought_open = False
        self._begin_text()

    def _stray_call_end(self) -> None:
        """A call's closer outside a call: it may close one that lacked its opener."""
        if self._state is not _State.TEXT:
            return
        body = self._watch.bare_call()
        if body is None:
            self._emit_text(self._watch.release())
        elif not self._call(body, strict=False):
            self._emit_text(body.replace(DELIMITER, ''))

    def _turn(self) -> None:
        """A turn opener: the model repeats its own header at the start, else it speaks for others
        and the answer is over.
        """
        self._release()
        fresh = not (self._calls or self._malformed or self._content or self._reasoning)
        if fresh and not self._thought_open:
            self._state, self._label = _State.HEADER, ''
        else:
            self._state = _State.DONE

    def _release(self) -> None:
        """Give out what was held back, as visible text, and close a thought's block."""
        if self._state is _State.TEXT:
            self._emit_text(self._watch.release())
        elif self._state is _State.THOUGHT:
            self._reasoning.end_block()

    def _begin_text(self) -> None:
        self._state = _State.TEXT
        self._watch.begin(after_open_thought=self._thought_open)

    def _end_call(self, closed: bool, balanced_counts: bool = True) -> None:
        """The call is over. Without its closer it counts if its brackets are closed, and never
        where the answer was cut off.
        """
        ids, self._call_ids = self._call_ids, []
        body, clean = self._body(ids)
        if not ids and not closed:
            pass
        elif not balanced_counts or not self._call(body, strict=clean, closed=closed):
            self._malformed.append(self._tokenizer.decode(self._known(ids)))
        self._begin_text()

    def _call(self, body: str, strict: bool, closed: bool = True) -> bool:
        """Read the body of a call and give it out; False when it can't be read."""
        raw = read_strict(body) if strict else None
        repaired = raw is None or not closed or self._thought_open
        if raw is None:
            raw = read_tolerant(body, self._tools)
        if raw is None:
            return False
        arguments, coerced = resolve(raw.arguments, self._tools.get(raw.name))
        call = ParsedCall(str(raw.name), arguments, json.dumps(arguments, ensure_ascii=False),
                          repaired or coerced)
        self._end_run()
        index = len(self._calls)
        self._calls.append(call)
        self._deltas += (ParserDelta(call_index=index, call_name=call.name),
                         ParserDelta(call_index=index, arguments=call.arguments_json))
        return True

    def _body(self, ids: list[int]) -> tuple[str, bool]:
        """The text of a call with delimiters marked; False when something in it is no text."""
        quote = self._controls.quote
        parts: list[str] = []
        run = bytearray()
        clean = True
        token_bytes = self._tokenizer.token_bytes
        for token_id in [*ids, quote]:
            if token_id != quote:
                piece = token_bytes(token_id)
                clean = clean and piece != b''
                run += piece
                continue
            text = run.decode('utf-8', 'ignore')
            clean = clean and len(text.encode('utf-8')) == len(run)
            parts.append(text)
            run.clear()
        return DELIMITER.join(parts), clean

    def _known(self, ids: list[int]) -> list[int]:
        size = self._tokenizer.vocab_size
        return [token_id for token_id in ids if 0 <= token_id < size]

    def _emit_text(self, text: str) -> None:
        text = self._content.push(text) if text else ''
        if text:
            self._append(text, True)

    def _emit_reasoning(self, text: str) -> None:
        text = self._reasoning.push(text)
        if text:
            self._append(text, False)

    def _append(self, text: str, is_text: bool) -> None:
        if is_text is not self._run_is_text:
            self._end_run()
            self._run_is_text = is_text
        self._run.append(text)

    def _end_run(self) -> None:
        if self._run:
            joined = ''.join(self._run)
            self._run.clear()
            self._deltas.append(ParserDelta(text=joined) if self._run_is_text
                                else ParserDelta(reasoning=joined))
