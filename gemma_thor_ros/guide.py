# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Guides of chat answers: what may follow what, token by token, for one request.

An answer is text, thoughts, calls or one JSON text in the order that the request allows; grammars
of text/grammar.py say what may stand in a call and in the JSON. Made by chat.py, then used by the
engine's thread alone, which sees schema.Guide. Knows no engine, no arrays and no messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.schema import ChatRequest
from gemma_thor_ros.text.grammar import (
    MAX_ROLLBACK,
    Grammar,
    GrammarError,
    Grammars,
    Matcher,
    Tool,
)
from gemma_thor_ros.text.prompt import PromptState


@dataclass(frozen=True)
class Contents:
    """What an answer may hold.

    calls: the calls that it may make. content: the JSON text that it may be. must_call: it is
    calls and nothing else. single: one call ends it. may_think: a thought may come before content
    or calls that must come. in_thought: the prompt ends inside one.
    """

    calls: Grammar | None = None
    content: Grammar | None = None
    must_call: bool = False
    single: bool = False
    may_think: bool = False
    in_thought: bool = False

    @property
    def free(self) -> bool:
        """Whether text and thoughts are the model's own and only calls are held to a grammar."""
        return self.content is None and not self.must_call


class _Phase(Enum):
    START = 'start'                    # nothing of it yet, or a thought alone
    TEXT = 'text'                      # free text, and what may interrupt it
    THOUGHT = 'thought'
    CALL = 'call'
    CALLED = 'called'                  # behind a call
    CONTENT = 'content'                # in the JSON text
    END = 'end'


class _State(NamedTuple):
    phase: _Phase
    matcher: Matcher | None = None     # of the call or of the JSON text
    thought: bool = False              # there was one


class AnswerGuide:
    """The guide of one answer; see schema.Guide. Raises GrammarError for a wrong token."""

    def __init__(self, grammars: Grammars, contents: Contents) -> None:
        self._contents = contents
        self._controls = controls = grammars.controls
        self._stop_ids = frozenset(grammars.stop_ids)
        stops = _bits(grammars.stop_ids)
        self._after_call = stops if contents.single else _bits((*grammars.stop_ids, controls.call))
        self._text_banned: tuple[int, ...] = ()
        self._thought_banned: tuple[int, ...] = ()
        if contents.free and contents.calls:
            # A call within a thought could never act, and a closer alone only mends a broken one.
            self._text_banned = (controls.call_end,)
            self._thought_banned = (controls.call, controls.call_end)
        elif not contents.free:
            self._thought_banned = tuple(sorted(grammars.control_ids - {controls.channel_end}))
        self._json = contents.content.matcher() if contents.content else None
        # The states before the last tokens, each with the matcher that took the token.
        self._past: deque[tuple[_State, Matcher | None]] = deque(maxlen=MAX_ROLLBACK)
        first = _Phase.TEXT if contents.free else _Phase.START
        self._state = _State(_Phase.THOUGHT if contents.in_thought else first,
                             thought=contents.in_thought)

    @property
    def finished(self) -> bool:
        """Whether a stop id has come."""
        return self._state.phase is _Phase.END

    @property
    def banned(self) -> tuple[int, ...]:
        """Ids that may not come next where `allowed` gives None."""
        return self._thought_banned if self._state.phase is _Phase.THOUGHT else self._text_banned

    def allowed(self) -> bytes | None:
        """Bits of the ids that may come next, or None: all but `banned`."""
        phase, matcher, _ = self._state
        if phase in (_Phase.TEXT, _Phase.THOUGHT):
            return None
        if phase is _Phase.CALLED:
            return self._after_call
        if phase is _Phase.START:
            return self._first()
        return matcher.mask() if matcher is not None else b'\0'

    def accept(self, token_id: int) -> None:
        """Go on behind a token."""
        before = self._state
        after, matched = self._after(before, token_id)
        if matched is not None:
            matched.accept(token_id)
        self._state = after
        self._past.append((before, matched))

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens, at most MAX_ROLLBACK."""
        if num_tokens > len(self._past):
            raise GrammarError(f'{num_tokens} tokens can not be taken back, '
                               f'{len(self._past)} are known')
        for _ in range(num_tokens):
            self._state, matched = self._past.pop()
            if matched is not None:
                matched.rollback(1)

    def _first(self) -> bytes:
        """What an answer that is not free may begin with."""
        contents, controls = self._contents, self._controls
        ids = [controls.call] if contents.calls else []
        if self._may_think:
            ids.append(controls.channel)
        return _bits(ids, self._json.mask() if self._json else b'')

    def _after(self, state: _State, token_id: int) -> tuple[_State, Matcher | None]:
        """The next state, and the matcher that has to take the token."""
        phase, matcher, thought = state
        controls, contents = self._controls, self._contents
        if phase is _Phase.END:
            raise GrammarError(f'token {token_id} comes behind the end of the answer')
        if phase is _Phase.CALL:
            if token_id != controls.call_end:
                return state, matcher
            free = contents.free and not contents.single
            return _State(_Phase.TEXT if free else _Phase.CALLED, None, thought), matcher
        if token_id in self._stop_ids:
            if phase is _Phase.START or (phase is _Phase.CONTENT and not self._complete):
                raise GrammarError(f'the answer can not end with token {token_id} here')
            return _State(_Phase.END), None
        if phase is _Phase.CONTENT:
            return state, matcher
        if token_id == controls.channel_end and phase is _Phase.THOUGHT:
            return _State(_Phase.TEXT if contents.free else _Phase.START, None, thought), None
        if phase is _Phase.THOUGHT:
            return state, None
        if token_id == controls.call and contents.calls:
            return _State(_Phase.CALL, contents.calls.matcher(), thought), None
        if token_id == controls.channel and (phase is _Phase.TEXT or self._may_think):
            return _State(_Phase.THOUGHT, None, True), None
        if phase is _Phase.START and self._json:
            return _State(_Phase.CONTENT, self._json, thought), self._json
        if phase is not _Phase.TEXT:
            raise GrammarError(f'token {token_id} is not allowed here')
        return state, None

    @property
    def _may_think(self) -> bool:
        state = self._state
        return state.phase is _Phase.START and self._contents.may_think and not state.thought

    @property
    def _complete(self) -> bool:
        return self._json is not None and self._json.complete


def _bits(ids: Iterable[int], given: bytes = b'') -> bytes:
    """Bits of some ids, besides the given ones."""
    wanted = list(ids)
    bits = bytearray(given.ljust(max(wanted, default=-1) // 8 + 1, b'\0'))
    for token_id in wanted:
        bits[token_id >> 3] |= 1 << (token_id & 7)
    return bytes(bits)


class Guides:
    """Makes the guides of a model's answers; use it from any thread."""

    def __init__(self, grammars: Grammars, config: EngineConfig) -> None:
        self._grammars = grammars
        self._config = config

    def make(self, request: ChatRequest, prompt: PromptState, thinks: bool) -> AnswerGuide | None:
        """The guide of an answer, or None where the model is free. `thinks`: thinking is on.

        Raises RequestError, UNSUPPORTED with the JSON pointer, for a schema that can't be kept:
        that of the answer, of a tool that must be called, or of one that is declared as strict.
        """
        contents = self._contents(request, prompt, thinks)
        return None if contents is None else AnswerGuide(self._grammars, contents)

    def _contents(self, request: ChatRequest, prompt: PromptState,
                  thinks: bool) -> Contents | None:
        must_call = request.tool_choice == 'required'
        calls = content = None
        if request.tools and request.tool_choice != 'none' and self._holds_calls(request):
            calls = self._grammars.calls(_tools(request))
        if request.response_schema is not None and not must_call:
            content = self._grammars.answer(request.response_schema, request.response_schema_at)
        if calls is None and content is None:
            return None
        named = must_call and len(request.tool_names) == 1
        return Contents(calls, content, must_call, named or not request.parallel_tool_calls,
                        thinks, in_thought=prompt.channel_text is not None)

    def _holds_calls(self, request: ChatRequest) -> bool:
        """Whether calls are held to the declared tools."""
        if request.sampling.get('ignore_eos'):           # a benchmark, which has no end
            return False
        asked = (request.tool_choice == 'required' or request.tool_names
                 or not request.parallel_tool_calls or request.response_schema is not None)
        return bool(asked or self._config['tools.constrain_calls'])


def _tools(request: ChatRequest) -> list[Tool]:
    """The tools that may be called."""
    tools = []
    for index, tool in enumerate(request.tools):
        function = tool['function']
        if request.tool_names and function['name'] not in request.tool_names:
            continue
        strict = request.tool_choice == 'required' or function.get('strict') is True
        tools.append(Tool(function['name'], function.get('parameters'),
                          f'tools[{index}].function.parameters', strict))
    return tools
