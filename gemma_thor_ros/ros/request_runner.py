# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the chat action, ~/chat_once and ~/ask share: registering, running, counting a request.

Runs in the caller's thread and blocks until the answer is whole. Knows no goal handle and no
service.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from builtin_interfaces.msg import Time
from rclpy.publisher import Publisher

import gemma_thor_ros.msg as msg
from gemma_thor_ros.chat import Chat
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.ros.agent import Acting, Answer, Generation, Message, Queue, Tools
from gemma_thor_ros.ros.answers import tool_event_to_ros
from gemma_thor_ros.ros.audit import Recorder
from gemma_thor_ros.ros.diagnostics import RequestCounters
from gemma_thor_ros.ros.running import Running, RunningRequests
from gemma_thor_ros.ros.speech import SpeechWriter
from gemma_thor_ros.ros.token_topic import ChunkWriter
from gemma_thor_ros.ros.verdict import CallEvent, Verdict
from gemma_thor_ros.schema import (
    ChatRequest,
    ErrorCode,
    FinishReason,
    QueuePosition,
    RequestError,
)
from gemma_thor_ros.sessions import leading_system

_log = logging.getLogger(__name__)


class Host(Protocol):
    """What a runner needs of the node."""

    config: EngineConfig
    system_prompt: str  # of conversations that bring none

    def require_chat(self) -> Chat:
        """Return the chat, or raise RequestError NOT_READY with the reason."""

    def bridge(self) -> Tools | None:
        """Return the tool bridge, if there is a policy."""

    def stamp(self) -> Time:
        """Return the node's present time."""

    def image_parts(self, message: msg.ChatMessage, where: str) -> list[Message]:
        """Return the content parts of a message's images, or raise RequestError."""


@dataclasses.dataclass(frozen=True)
class Acts:
    """That a request may use the policy's tools, and how."""

    max_rounds: int = 0  # 0 = the node's limit
    dry_run: bool = False


@dataclasses.dataclass(frozen=True)
class Listener:
    """Who follows a request besides the topics; called from the thread that runs it."""

    on_begin: Callable[[Running], None] = lambda running: None
    on_chunk: Callable[[msg.TokenChunk], None] = lambda chunk: None
    on_tool_event: Callable[[msg.ToolEvent], None] = lambda event: None
    on_queued: Callable[[QueuePosition], None] | None = None


class RequestRunner:
    """Runs ROS requests on the node's chat and publishes what they produce."""

    def __init__(
        self,
        host: Host,
        requests: RunningRequests,
        counters: RequestCounters,
        tokens: Publisher[Any],
        tool_events: Publisher[Any],
        speech: SpeechWriter,
        recorder: Recorder,
    ) -> None:
        self._host = host
        self._requests = requests
        self._counters = counters
        self._tokens = tokens
        self._tool_events = tool_events
        self._speech = speech
        self._recorder = recorder
        self._untold = UntoldResults()

    def image_parts(self, message: msg.ChatMessage, where: str) -> list[Message]:
        """Return the content parts of a message's images, or raise RequestError."""
        return self._host.image_parts(message, where)

    def forget_session(self, session_id: str) -> None:
        """Drop what is kept for a session ('*' = for all): its history has been reset."""
        self._untold.forget(session_id)
        bridge = self._host.bridge()
        if bridge is not None:
            bridge.forget_session(session_id)

    def stop(self, reason: str) -> None:
        """End the requests that may move the robot, and say so on ~/tool_events."""
        for running in self._requests.stop(f'the robot was stopped: {reason}'):
            self._tool_events.publish(
                msg.ToolEvent(
                    stamp=self._host.stamp(),
                    request_id=running.request_id,
                    session_id=running.session_id,
                    event=msg.ToolEvent.STOPPED,
                    status='stopped',
                    detail=reason,
                )
            )
            _log.warning('request %s ended: the robot was stopped: %s', running.request_id, reason)

    def with_system_prompt(self, request: ChatRequest, chat: Chat) -> ChatRequest:
        """Put the system prompt before a conversation that begins without a system message."""
        prompt = self._host.system_prompt
        if not prompt or leading_system(request.messages):
            return request
        if _has_history(request, chat):
            return request
        system = {'role': 'system', 'content': prompt}
        return dataclasses.replace(request, messages=(system, *request.messages))

    def run(
        self,
        request: ChatRequest,
        *,
        acts: Acts | None = None,
        listener: Listener | None = None,
        may_wait: bool = True,
        timeout_s: float = 0.0,
    ) -> Answer:
        """Run a request to its end; faults after its start are in the answer's result.

        Args:
            request: its `request_id` may be empty.
            acts: lets it use the policy's tools; None = one generation.
            listener: follows it, besides the topics.
            may_wait: False answers BUSY when no sequence is free, instead of queueing.
            timeout_s: limit when the request names none; 0 = request.timeout.

        Raises:
            RequestError: it was refused before any work.
        """
        try:
            return self._run(request, acts, listener or Listener(), may_wait, timeout_s)
        except RequestError as error:
            self._counters.refused(error.message)
            raise

    def _run(
        self,
        request: ChatRequest,
        acts: Acts | None,
        listener: Listener,
        may_wait: bool,
        timeout_s: float,
    ) -> Answer:
        chat = self._host.require_chat()
        running = self._requests.begin(
            request.request_id, request.session_id, acting=acts is not None
        )
        try:
            listener.on_begin(running)
            acting = None if acts is None else self._acting(request, acts, running, listener)
            if not may_wait:
                _refuse_when_busy(chat)
            with _held(chat, request.session_id, running.request_id):
                answer = self._generate(chat, request, running, acting, listener, timeout_s)
        except RequestError:
            raise
        except Exception as error:
            _log.exception('request %s failed', running.request_id)
            raise RequestError(
                ErrorCode.ENGINE, f'internal error: {type(error).__name__}: {error}'
            ) from error
        finally:
            self._requests.end(running)
        self._counters.ended(answer.result)
        self._counters.acted(answer.verdicts)
        return answer

    def _generate(
        self,
        chat: Chat,
        request: ChatRequest,
        running: Running,
        acting: Acting | None,
        listener: Listener,
        timeout_s: float,
    ) -> Answer:
        """Run what has been registered."""
        writer = self._writer(running.request_id, request.session_id, listener)
        limit_s = request.timeout_s or timeout_s or float(self._host.config['request.timeout'])
        request = dataclasses.replace(
            self.with_system_prompt(request, chat),
            request_id=running.request_id,
            parent_id=running.request_id,
        )
        queue = listener.on_queued and Queue(chat.queue_position, listener.on_queued)
        generation = Generation(chat.submit, running, writer, limit_s, queue)
        owed = self._untold.take(request.session_id)
        verdicts: list[Verdict] = []
        try:
            answer = generation.run(_with_results(request, owed, chat), acting)
            verdicts = answer.verdicts
        except RequestError:
            # Nothing was begun, so there is nothing to end.
            self._untold.keep(request.session_id, owed)
            raise
        except Exception:
            writer.finish(FinishReason.ERROR, ErrorCode.ENGINE)
            raise
        finally:
            self._recorder.finish(running.request_id, verdicts)
        self._untold.keep(request.session_id, answer.untold)
        writer.finish(answer.result.finish_reason, answer.result.code)
        return answer

    def publish_refusal(self, request_id: str, session_id: str, error: RequestError) -> None:
        """End on the topics a request that nobody waits for and that was refused."""
        self._writer(request_id, session_id, Listener()).finish(FinishReason.ERROR, error.code)

    def _writer(self, request_id: str, session_id: str, listener: Listener) -> ChunkWriter:
        return ChunkWriter(
            request_id,
            session_id,
            lambda chunk: self._publish(chunk, listener),
            lambda: float(self._host.config['ros.token_rate']),
            self._host.stamp,
        )

    def _acting(
        self, request: ChatRequest, acts: Acts, running: Running, listener: Listener
    ) -> Acting:
        bridge = self._host.bridge()
        if bridge is None:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                'execute_tools is set, but the node has no tool policy (parameter '
                'tools.policy_file)',
                'execute_tools',
            )
        if request.tools:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f'tools has {len(request.tools)} entries: with execute_tools it must be empty, '
                "the policy's tools are shown",
                'tools',
            )
        limit = int(self._host.config['tools.max_rounds'])
        if acts.max_rounds > limit:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f'max_rounds is {acts.max_rounds}, the node allows at most {limit}',
                'max_rounds',
            )

        def on_event(event: CallEvent, round_index: int) -> None:
            message = tool_event_to_ros(event)
            message.stamp = self._host.stamp()
            message.request_id = running.request_id
            message.session_id = running.session_id
            message.round = round_index
            self._tool_events.publish(message)
            listener.on_tool_event(message)

        dry_run = acts.dry_run or bool(self._host.config['tools.dry_run'])
        return Acting(bridge, acts.max_rounds or limit, dry_run, on_event)

    def _publish(self, chunk: msg.TokenChunk, listener: Listener) -> None:
        self._tokens.publish(chunk)
        listener.on_chunk(chunk)
        self._speech.take(chunk)


class UntoldResults:
    """Tool results by session that its history lacks: the loop ended before they were told.

    They go in front of the session's next messages, so that the model knows what its calls did.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[str, list[Message]] = {}

    def keep(self, session_id: str, messages: list[Message]) -> None:
        """Remember results, if there are any and there is a session."""
        if session_id and messages:
            with self._lock:
                self._messages[session_id] = messages

    def take(self, session_id: str) -> list[Message]:
        """Return what a session is owed, and forget it."""
        with self._lock:
            return self._messages.pop(session_id, [])

    def forget(self, session_id: str) -> None:
        """Drop what a session ('*' = every session) is owed."""
        with self._lock:
            if session_id == '*':
                self._messages.clear()
            else:
                self._messages.pop(session_id, None)


@contextlib.contextmanager
def _held(chat: Chat, session_id: str, request_id: str) -> Iterator[None]:
    """Keep a session while a request has rounds to come."""
    if not session_id:
        yield
        return
    chat.hold_session(session_id, 'ros', request_id)
    try:
        yield
    finally:
        chat.release_session(session_id, request_id)


def _has_history(request: ChatRequest, chat: Chat) -> bool:
    return bool(request.session_id) and any(
        view.session_id == request.session_id and view.num_messages
        for view in chat.list_sessions()
    )


def _with_results(request: ChatRequest, owed: list[Message], chat: Chat) -> ChatRequest:
    """Put what a session is owed in front of its next messages, if it still has the calls."""
    if not owed or not _has_history(request, chat):
        return request
    first = leading_system(request.messages)
    messages = (*request.messages[:first], *owed, *request.messages[first:])
    return dataclasses.replace(request, messages=messages)


def _refuse_when_busy(chat: Chat) -> None:
    stats, most = chat.stats(), chat.model_info().max_sequences
    if stats.waiting or stats.running >= most:
        raise RequestError(
            ErrorCode.BUSY,
            f'{stats.running} of {most} sequences are running and {stats.waiting} requests wait',
        )
