# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Conversations kept on the robot: history by session id, owner, age, trimming at turn borders.

Holds messages in the OpenAI form. Knows no model and no front end; chat.py is its only user.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gemma_thor_ros.schema import ErrorCode, RequestError

Message = dict[str, Any]
MAX_SESSION_ID = 128


@dataclass
class Session:
    """One conversation.

    `busy` holds the id of its running request, `holder` that of the request whose rounds run in it
    one after the other. `turn` is the request that came last; its messages begin at `turn_start`.
    `prompt` is what the last answer was given to, as the engine knows it: opaque here.
    """

    session_id: str
    owner: str
    messages: list[Message] = field(default_factory=list)
    num_tokens: int = 0
    created: float = field(default_factory=time.time)  # wall clock, seconds
    last_used: float = field(default_factory=time.time)
    busy: str = ''
    holder: str = ''
    turn: str = ''
    turn_start: int = 0
    prompt: Any = None

    @property
    def user(self) -> str:
        """The request that has the session for itself; '' = none."""
        return self.holder or self.busy


@dataclass(frozen=True)
class SessionView:
    """What others may see of a session."""

    session_id: str
    owner: str
    num_messages: int
    num_tokens: int
    created: float
    last_used: float
    busy: bool


class SessionStore:
    """All sessions of a node; safe to use from any thread."""

    def __init__(
        self, ttl_s: float, max_sessions: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._ttl_s = ttl_s
        self._max_sessions = max_sessions
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def begin(
        self, session_id: str, owner: str, request_id: str, holder: str = ''
    ) -> list[Message]:
        """Reserve a session for a request and return a copy of its history.

        `holder` is the request that holds the session, of which this one is a round.

        Raises:
            RequestError: BUSY while another request has the session, or when all sessions are
                busy; UNKNOWN_SESSION when `holder` has lost it; INVALID_REQUEST for an id that is
                too long.
        """
        _check_id(session_id)
        with self._lock:
            if holder:
                session = self._sessions.get(session_id)
                if session is None or session.holder != holder or session.busy:
                    raise _unknown(session_id)
            else:
                session = self._take(session_id, owner, request_id)
            session.busy = request_id
            session.last_used = self._clock()
            return list(session.messages)

    def hold(self, session_id: str, owner: str, holder: str) -> None:
        """Keep a session for the rounds of one request, until `release`.

        Raises:
            RequestError: as `begin`.
        """
        _check_id(session_id)
        with self._lock:
            self._take(session_id, owner, holder).holder = holder

    def release(self, session_id: str, holder: str) -> None:
        """End a hold; a session without history is removed."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is not None and session.holder == holder:
                session.holder = ''
                self._remove_empty(session)

    def cut(self, session_id: str, turn: str, num_characters: int) -> None:
        """Cut the answer of the session's last request to its first characters.

        Answers of all its rounds count as one text. Calls and results stay; a turn of which
        nothing is left is forgotten, question included. A session that is gone needs no cut.

        Raises:
            RequestError: UNKNOWN_REQUEST when `turn` was not the last one, BUSY while it runs.
        """
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                return
            if session.user:
                raise _busy(session)
            if session.turn != turn:
                raise RequestError(
                    ErrorCode.UNKNOWN_REQUEST,
                    f'request {turn!r} is not the last one of session {session_id!r}',
                    'request_id',
                )
            start = session.turn_start
            session.messages[start:] = _cut_turn(session.messages[start:], num_characters)
            self._remove_empty(session)

    def last_turn(self, session_id: str) -> str:
        """Return the id of the session's last request.

        Raises:
            RequestError: UNKNOWN_SESSION.
        """
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                raise _unknown(session_id)
            return session.turn

    def commit(
        self,
        session_id: str,
        request_id: str,
        messages: Sequence[Message],
        num_tokens: int,
        prompt: Any = None,
    ) -> None:
        """Append a request's messages and its answer, and free the session.

        A leading system message takes the place of the session's. prompt: what was answered.
        """
        with self._lock:
            session = self._sessions.get(session_id)
            if session is not None and session.busy == request_id:
                if leading_system(session.messages) and leading_system(messages):
                    session.messages[0] = messages[0]
                    messages = messages[1:]
                session.messages.extend(messages)
                session.num_tokens = num_tokens
                session.prompt = prompt
                session.busy = ''
                session.last_used = self._clock()

    def trim(self, session_id: str, request_id: str, num_messages: int) -> None:
        """Drop the first `num_messages` messages after a leading system message."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is not None and session.busy == request_id:
                first = leading_system(session.messages)
                del session.messages[first : first + num_messages]
                session.turn_start = max(first, session.turn_start - num_messages)

    def abandon(self, session_id: str, request_id: str) -> None:
        """Free a session and leave its history as it was; a session without history is removed."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is not None and session.busy == request_id:
                session.busy = ''
                self._remove_empty(session)

    def reset(self, session_id: str, remove: bool = False) -> list[str]:
        """Forget the history of a session ('*' = of all); return the ids of their running
        requests.

        Raises:
            RequestError: UNKNOWN_SESSION.
        """
        with self._lock:
            self._expire()
            if session_id != '*' and session_id not in self._sessions:
                raise _unknown(session_id)
            names = list(self._sessions) if session_id == '*' else [session_id]
            running = [self._sessions[name].busy for name in names if self._sessions[name].busy]
            for name in names:
                if remove:
                    del self._sessions[name]
                else:
                    # A fresh object: what the running request still commits is dropped with the
                    # old one.
                    old = self._sessions[name]
                    self._sessions[name] = Session(
                        name, old.owner, created=old.created, last_used=self._clock()
                    )
            return running

    def views(self) -> list[SessionView]:
        """Return all sessions, the latest used first."""
        with self._lock:
            self._expire()
            return sorted(
                map(_view, self._sessions.values()), key=lambda view: -view.last_used
            )

    def history(self, session_id: str) -> list[Message]:
        """Return a copy of a session's messages.

        Raises:
            RequestError: UNKNOWN_SESSION.
        """
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                raise _unknown(session_id)
            return list(session.messages)

    def get(self, session_id: str) -> Session:
        """Return a copy of a session, as it was after its last answer.

        Raises:
            RequestError: UNKNOWN_SESSION.
        """
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                raise _unknown(session_id)
            return replace(session, messages=list(session.messages))

    def restore(
        self,
        session_id: str,
        owner: str,
        messages: Sequence[Message],
        num_tokens: int,
        overwrite: bool,
        prompt: Any = None,
    ) -> SessionView:
        """Bring a conversation back under an id.

        Raises:
            RequestError: INVALID_REQUEST when the id is taken and `overwrite` is False, or too
                long; BUSY when a request of that session runs, or all sessions are busy.
        """
        _check_id(session_id)
        with self._lock:
            self._expire()
            old = self._sessions.get(session_id)
            if old is not None and not overwrite:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST,
                    f'there is a session {session_id!r} with {len(old.messages)} messages already',
                    'session_id',
                )
            if old is not None and old.user:
                raise _busy(old)
            if old is None:
                self._make_room()
            now = self._clock()
            session = Session(session_id, owner, list(messages), num_tokens, now, now)
            session.prompt = prompt
            self._sessions[session_id] = session
            return _view(session)

    def _take(self, session_id: str, owner: str, turn: str) -> Session:
        """Return a session that nothing uses, for a new turn."""
        self._expire()
        session = self._sessions.get(session_id)
        if session is None:
            self._make_room()
            session = self._sessions[session_id] = Session(
                session_id, owner, created=self._clock()
            )
        if session.user:
            raise _busy(session)
        session.turn, session.turn_start = turn, len(session.messages)
        session.last_used = self._clock()
        return session

    def _remove_empty(self, session: Session) -> None:
        if not session.messages and not session.user:
            del self._sessions[session.session_id]

    def _expire(self) -> None:
        if self._ttl_s > 0:
            limit = self._clock() - self._ttl_s
            for name in [
                n for n, s in self._sessions.items() if not s.user and s.last_used < limit
            ]:
                del self._sessions[name]

    def _make_room(self) -> None:
        if len(self._sessions) < self._max_sessions:
            return
        idle = [s for s in self._sessions.values() if not s.user]
        if not idle:
            raise RequestError(
                ErrorCode.BUSY, f'all {self._max_sessions} sessions are busy', 'session_id'
            )
        del self._sessions[min(idle, key=lambda s: s.last_used).session_id]


def _cut_turn(messages: Sequence[Message], num_characters: int) -> list[Message]:
    """Return a turn whose answers say `num_characters` together; [] when nothing is left of it."""
    kept: list[Message] = []
    left = num_characters
    for message in messages:
        if message.get('role') == 'assistant':
            text = message.get('content') or ''
            cut = text if len(text) <= left else text[:left].rstrip()
            left = max(0, left - len(text))
            if not cut and not message.get('tool_calls'):
                continue
            message = {**message, 'content': cut}
        kept.append(message)
    if any(message.get('role') == 'assistant' for message in kept):
        return kept
    return [message for message in kept if message.get('role') == 'tool']  # of calls before it


def _view(session: Session) -> SessionView:
    return SessionView(
        session.session_id,
        session.owner,
        len(session.messages),
        session.num_tokens,
        session.created,
        session.last_used,
        bool(session.user),
    )


def _check_id(session_id: str) -> None:
    if len(session_id) > MAX_SESSION_ID:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f'session_id has {len(session_id)} characters, at most {MAX_SESSION_ID} are allowed',
            'session_id',
        )


def _busy(session: Session) -> RequestError:
    return RequestError(
        ErrorCode.BUSY,
        f'session {session.session_id!r} is busy with request {session.user}',
        'session_id',
    )


def _unknown(session_id: str) -> RequestError:
    return RequestError(
        ErrorCode.UNKNOWN_SESSION, f'there is no session {session_id!r}', 'session_id'
    )


def joined(history: Sequence[Message], messages: Sequence[Message]) -> list[Message]:
    """Return history and new messages; a new leading system message replaces the old one."""
    if leading_system(history) and leading_system(messages):
        return [messages[0], *history[1:], *messages[1:]]
    return [*history, *messages]


def leading_system(messages: Sequence[Message]) -> int:
    """Return 1 when the first message is the system's, else 0."""
    return int(bool(messages) and messages[0].get('role') in ('system', 'developer'))


def first_turn_size(messages: Sequence[Message]) -> int:
    """Return how many messages, after a leading system message, make up the oldest turn.

    A turn is a user message with everything up to the next user message, so that a call is never
    parted from its result. 0 when there is no later turn to keep.
    """
    first = leading_system(messages)
    for index in range(first + 1, len(messages)):
        if messages[index].get('role') == 'user':
            return index - first
    return 0
