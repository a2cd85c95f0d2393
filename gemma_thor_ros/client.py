# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""ChatClient: the language model in a few lines of a robot node, blocking, async or streamed.

    client = ChatClient(node)
    print(client.ask('Where is the dock?'))
    for chunk in client.stream('Tell me a story.'):
        print(chunk.text, end='')
    answer = client.chat('drive to the dock', execute_tools=True)

Imports rclpy, goal_client.py and this package's interfaces alone: it runs without the engine.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from action_msgs.msg import GoalStatus
from builtin_interfaces.msg import Duration
from rclpy.callback_groups import CallbackGroup, ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.task import Future

from gemma_thor_ros.action import Chat
from gemma_thor_ros.goal_client import GoalClient
from gemma_thor_ros.msg import (
    ChatMessage,
    ErrorCode,
    Heartbeat,
    SamplingParams,
    TokenChunk,
    Tool,
    ToolEvent,
)
from gemma_thor_ros.srv import Ask

Messages = Any  # a user's words, a ChatMessage or a sequence of them

# Deep enough for any burst: with the default depth of 10 ROS drops calls and answers.
_DEEP_QOS = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
_BEAT_QOS = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
_POLL_S = 0.05
_GONE_S = 2.0  # the action has been off the graph for so long: the node died
_TOPIC_S = 0.5  # ~/tokens follows the action within moments
_LAST_CHUNK_S = 0.5  # the result may overtake the last messages of ~/tokens
_SILENT_S = 2.0  # without a heartbeat for so long: the node was killed, is stopped or hangs
_TICK_S = 0.25
_GRACE_S = 5.0  # over the request's own time limit, for the way of its answer


class ChatError(Exception):
    """A request failed: `code` (an ErrorCode), a sentence, and the result if there is one."""

    def __init__(self, code: int, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.result = result


class ChatCall:
    """One request under way. Iterate for its chunks, ask for its result, or both in this order."""

    def __init__(self, client: ChatClient, goal: Any, on_tool_event: Any) -> None:
        self.request_id: str = goal.request_id
        self.future: Future[Any] = Future()  # done with the Chat.Result, or a ChatError
        self._client = client
        self._on_tool_event = on_tool_event
        self._timeout_s = _seconds(goal.timeout)
        self.instance_id = client.pulse.asked()  # of the node that was asked, '' = unknown
        self._started = time.monotonic()
        self._chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._next_sequence = 0
        self._shown = 0  # characters of the answer that have been given out
        self._ended = threading.Event()
        self._handle: Any = None
        self._cancel_wanted = False
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        """Yield TokenChunk messages as they come; raises ChatError like result()."""
        last_s = 0.0
        while True:
            chunk = self._next_chunk()
            if chunk is not None:
                self._next_sequence += 1
                self._shown += len(chunk.text)
                yield chunk
                if chunk.last:
                    break
            elif self._ended.is_set():
                last_s = last_s or time.monotonic() + _LAST_CHUNK_S
                if time.monotonic() >= last_s:
                    break
            else:
                self._client.check_time(self._started, self._timeout_s, self.instance_id)
        result = self.result()
        rest = _whole_text(result)[self._shown :]
        if rest:
            self._shown += len(rest)
            yield TokenChunk(request_id=self.request_id, text=rest, sequence=self._next_sequence)

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the end and return the Chat.Result.

        Raises:
            ChatError: the request failed, was refused or cancelled, or the node is gone.
            TimeoutError: it has not ended within `timeout_s`; it goes on.
        """
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._ended.is_set():
            self._client.turn(self._ended.wait)
            if limit is not None and time.monotonic() >= limit and not self._ended.is_set():
                raise TimeoutError(f'request {self.request_id} has not ended in {timeout_s:g} s')
            if not self._ended.is_set():
                self._client.check_time(self._started, self._timeout_s, self.instance_id)
        return self.future.result()

    def cancel(self) -> None:
        """Ask the node to end the request; its result then raises ChatError CANCELLED."""
        with self._lock:
            self._cancel_wanted = True
            handle = self._handle
        if handle is not None:
            handle.cancel_goal_async()

    # Called by the client, from the executor's thread.

    def take_chunk(self, chunk: Any) -> None:
        """Take a message of ~/tokens."""
        self._chunks.put(chunk)

    def take_feedback(self, message: Any) -> None:
        """Take feedback: tool steps; the chunks come from the topic, which loses none."""
        feedback = message.feedback
        if feedback.kind == Chat.Feedback.TOOL_EVENT and self._on_tool_event is not None:
            self._on_tool_event(feedback.tool_event)

    def lose(self, reason: str) -> None:
        """End with NOT_READY, for nobody else will: the node that was asked has gone."""
        if not self._ended.is_set():
            self.cancel()  # should it only have been held up
            self._end(ChatError(ErrorCode.NOT_READY, reason))

    def take_acceptance(self, future: Future[Any]) -> None:
        """Take the answer to the goal request."""
        handle = future.result()
        if handle is None or not handle.accepted:
            self._end(ChatError(ErrorCode.NOT_READY, 'the node did not take the goal'))
            return
        with self._lock:
            self._handle = handle
            cancel = self._cancel_wanted
        if cancel:
            handle.cancel_goal_async()
        handle.get_result_async().add_done_callback(self._take_result)

    def _take_result(self, future: Future[Any]) -> None:
        answer = future.result()
        if answer is None or answer.status == GoalStatus.STATUS_UNKNOWN:
            self._end(ChatError(ErrorCode.UNKNOWN_REQUEST, 'the node does not know the request'))
        elif answer.result.error_code:
            result = answer.result
            self._end(ChatError(result.error_code, result.error_msg, result))
        else:
            self._end(answer.result)

    def _end(self, outcome: Any) -> None:
        if self._ended.is_set():  # it was given up, and the answer came all the same
            return
        self._client.forget(self)
        if isinstance(outcome, ChatError):
            self.future.set_exception(outcome)
            self.future.exception()  # counts as looked at: rclpy complains of those nobody reads
        else:
            self.future.set_result(outcome)
        self._ended.set()
        self._chunks.put(None)  # wakes who waits for a chunk

    def _next_chunk(self) -> Any:
        """Return the next chunk in order; None when a moment has passed without one."""
        while True:
            chunk = self._client.take(self._chunks)
            if chunk is None or chunk.sequence == self._next_sequence:
                return chunk
            # After a gap nothing more is taken from the topic: the result fills it in at the end.


class Pulse:
    """Whether the node that was heard is still there, by its heartbeat.

    Only silence while this process listens counts: a client whose executor was busy, or which
    nobody spun, has heard nothing and learns nothing. Hence ticks of a timer, not a clock.

    Args:
        on_lost: called with (instance_id, reason) when an instance has gone; '' = whoever it was.
    """

    def __init__(
        self,
        node: Node,
        name: str,
        group: CallbackGroup,
        on_lost: Callable[[str, str], None],
    ) -> None:
        self.instance_id = ''
        self._node = node
        self._on_lost = on_lost
        self._silent_ticks = 0
        self._subscription = node.create_subscription(
            Heartbeat, f'{name}/heartbeat', self._on_beat, _BEAT_QOS, callback_group=group
        )
        self._timer = node.create_timer(
            _TICK_S,
            self._on_tick,
            callback_group=group,
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )

    def destroy(self) -> None:
        """Stop listening."""
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._subscription)

    def asked(self) -> str:
        """Return whom a request reaches that is sent now; '' while that is unknown."""
        return self.instance_id if self._silent_ticks < 2 else ''

    def fault(self, instance_id: str) -> str:
        """Return why an instance ('' = whichever it was) can't answer any more, or ''."""
        if instance_id and instance_id != self.instance_id:
            return 'the language model node was started anew'
        if self._silent_ticks * _TICK_S > _SILENT_S:
            return f'the language model node has been silent for {_SILENT_S:g} s'
        return ''

    def _on_beat(self, beat: Any) -> None:
        before, self.instance_id = self.instance_id, beat.instance_id
        self._silent_ticks = 0
        if before and before != beat.instance_id:
            self._on_lost(before, self.fault(before))

    def _on_tick(self) -> None:
        if not self.instance_id:  # nobody has been heard: an old node, or none
            return
        self._silent_ticks += 1
        reason = self.fault(self.instance_id)
        if reason:
            self._on_lost('', reason)


class ChatClient:
    """Talks to the language model node.

    The blocking calls work in any thread while the node is spun elsewhere, and also when nobody
    spins it (then they do). Inside a callback of a single-threaded executor use `chat_async`.

    Args:
        node: the robot node.
        name: name of the language model node; relative names are in the node's namespace.
    """

    def __init__(
        self, node: Node, name: str = 'llm_node', group: CallbackGroup | None = None
    ) -> None:
        self._node = node
        self._calls: dict[str, ChatCall] = {}
        self._lock = threading.Lock()
        self._gone_since = 0.0
        self._own_executor: SingleThreadedExecutor | None = None
        group = group or ReentrantCallbackGroup()
        self._action = GoalClient(
            node,
            Chat,
            f'{name}/chat',
            callback_group=group,
            goal_service_qos_profile=_DEEP_QOS,
            result_service_qos_profile=_DEEP_QOS,
            cancel_service_qos_profile=_DEEP_QOS,
            feedback_sub_qos_profile=_DEEP_QOS,
        )
        self._ask: Any = node.create_client(
            Ask, f'{name}/ask', qos_profile=_DEEP_QOS, callback_group=group
        )
        self._tokens = node.create_subscription(
            TokenChunk, f'{name}/tokens', self._on_chunk, _DEEP_QOS, callback_group=group
        )
        self.pulse = Pulse(node, name, group, self._lose)

    def destroy(self) -> None:
        """Take the client off the graph."""
        if self._own_executor is not None:
            self._own_executor.remove_node(self._node)
            self._own_executor.shutdown()
        self.pulse.destroy()
        self._action.destroy()
        self._node.destroy_client(self._ask)
        self._node.destroy_subscription(self._tokens)

    def wait_for_node(self, timeout_s: float) -> bool:
        """Wait until the language model node is on the graph; it may still be loading."""
        limit = time.monotonic() + timeout_s
        patience = 0.0
        while (now := time.monotonic()) < limit:
            if self._action.server_is_ready() and self._ask.service_is_ready():
                # The topic may have been remapped on the other side: streams then come whole.
                patience = patience or now + _TOPIC_S
                if now > patience or self._node.count_publishers(self._tokens.topic_name):
                    return True
            self.turn(time.sleep)
        return False

    def ask(self, prompt: str, session_id: str = '', timeout_s: float = 0.0) -> str:
        """Return the answer to a user message; 0 = the node's time limit.

        Raises:
            ChatError: with the node's code and sentence, or NOT_READY when the node is not there.
        """
        if not self._ask.wait_for_service(_GONE_S):
            raise ChatError(ErrorCode.NOT_READY, f'{self._ask.srv_name} is not there')
        request = Ask.Request(prompt=prompt, session_id=session_id, timeout=_duration(timeout_s))
        started, instance_id = time.monotonic(), self.pulse.asked()
        future = self._ask.call_async(request)
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not done.is_set():
            self.turn(done.wait)
            if not done.is_set():
                self.check_time(started, timeout_s, instance_id)
        response: Any = future.result()
        if response.error_code:
            raise ChatError(response.error_code, response.error_msg, response)
        return str(response.text)

    def chat(self, messages: Messages, **options: Any) -> Any:
        """Return the Chat.Result of a request; options as in `start`. Raises ChatError."""
        return self.start(messages, **options).result()

    def stream(self, messages: Messages, **options: Any) -> Iterator[Any]:
        """Yield the TokenChunk messages of a request; options as in `start`. Raises ChatError.

        Ending the iteration early cancels the request.
        """
        call = self.start(messages, **options)
        try:
            yield from call
        finally:
            if not call.future.done():
                call.cancel()

    def chat_async(self, messages: Messages, **options: Any) -> Future[Any]:
        """Return a future of the Chat.Result, to be awaited or given a callback; never blocks.

        Options as in `start`. The future raises ChatError.
        """
        return self.start(messages, **options).future

    def start(
        self,
        messages: Messages,
        *,
        session_id: str = '',
        tools: Sequence[Tool] = (),
        sampling: SamplingParams | None = None,
        execute_tools: bool = False,
        timeout_s: float = 0.0,
        on_tool_event: Callable[[ToolEvent], None] | None = None,
        **goal_fields: Any,
    ) -> ChatCall:
        """Send a request and return it while it is under way.

        Args:
            messages: a user's words, or messages of the conversation.
            session_id: the node keeps the history under this name; '' = none.
            tools: shown to the model, not executed.
            sampling: None = the node's defaults.
            execute_tools: let the model use the tools of the node's policy.
            timeout_s: for the whole request; 0 = the node's limit.
            on_tool_event: called with ToolEvent messages, from the executor's thread.
            goal_fields: any other field of Chat.action's goal.
        """
        goal = Chat.Goal(
            request_id=goal_fields.pop('request_id', '') or uuid.uuid4().hex,
            session_id=session_id,
            messages=_messages(messages),
            tools=list(tools),
            sampling=sampling or SamplingParams(),
            execute_tools=execute_tools,
            timeout=_duration(timeout_s),
            **goal_fields,
        )
        call = ChatCall(self, goal, on_tool_event)
        with self._lock:
            self._calls[call.request_id] = call
        sent = self._action.send_goal_async(goal, feedback_callback=call.take_feedback)
        sent.add_done_callback(call.take_acceptance)
        return call

    # For ChatCall.

    def forget(self, call: ChatCall) -> None:
        """Let a request keep receiving its last chunks for a moment, then drop it."""
        with self._lock:
            for request_id, other in list(self._calls.items()):
                if other is not call and other.future.done():
                    del self._calls[request_id]

    def turn(self, wait: Callable[[float], object]) -> None:
        """Wait a moment for something to happen, and spin the node if nobody else does."""
        if self._is_spun_elsewhere():
            wait(_POLL_S)
            return
        # One executor for all turns: done callbacks of futures are tasks that wait in it.
        if self._own_executor is None:
            self._own_executor = SingleThreadedExecutor(context=self._node.context)
        if self._node.executor is not self._own_executor:
            self._own_executor.add_node(self._node)
        self._own_executor.spin_once(_POLL_S)

    def _is_spun_elsewhere(self) -> bool:
        executor = self._node.executor
        if executor is None or executor is self._own_executor:
            return False
        return self._node in executor.get_nodes()

    def take(self, chunks: queue.SimpleQueue[Any]) -> Any:
        """Return what comes next, waiting a moment for it; None when nothing came."""
        wait_s = _POLL_S
        if not self._is_spun_elsewhere() and chunks.empty():
            self.turn(time.sleep)
            wait_s = 0.001
        try:
            return chunks.get(timeout=wait_s)
        except queue.Empty:
            return None

    def check_time(self, started: float, timeout_s: float, instance_id: str) -> None:
        """Raise ChatError when the node is gone or has let its own time limit pass.

        Args:
            started: steady-clock seconds.
            timeout_s: the request's own limit; 0 = the node's, which is not known here.
            instance_id: of the node that was asked; '' = unknown.
        """
        fault = self.pulse.fault(instance_id)
        if fault:
            raise ChatError(ErrorCode.NOT_READY, fault)
        now = time.monotonic()
        if timeout_s and now > started + timeout_s + _GRACE_S:
            raise ChatError(ErrorCode.TIMEOUT, f'no answer within {timeout_s:g} s')
        if self._action.server_is_ready():
            self._gone_since = 0.0
        elif not self._gone_since:
            self._gone_since = now
        elif now > max(self._gone_since, started) + _GONE_S:
            raise ChatError(ErrorCode.NOT_READY, 'the language model node is not there')

    def _lose(self, instance_id: str, reason: str) -> None:
        """End the requests that an instance of the node ('' = any) will never answer."""
        with self._lock:
            lost = [c for c in self._calls.values() if instance_id in ('', c.instance_id)]
        for call in lost:
            call.lose(reason)

    def _on_chunk(self, chunk: Any) -> None:
        with self._lock:
            call = self._calls.get(chunk.request_id)
        if call is not None:
            call.take_chunk(chunk)


def _messages(messages: Messages) -> list[Any]:
    if isinstance(messages, str):
        return [ChatMessage(role='user', content=messages)]
    if isinstance(messages, ChatMessage):
        return [messages]
    return list(messages)


def _whole_text(result: Any) -> str:
    """Return the text of all rounds, as ~/tokens gives it."""
    written = [m.content for m in result.new_messages if m.role == 'assistant']
    return ''.join(written) if written else str(result.text)


def _duration(seconds: float) -> Duration:
    whole = int(seconds)
    return Duration(sec=whole, nanosec=int((seconds - whole) * 1e9))


def _seconds(duration: Duration) -> float:
    return float(duration.sec + duration.nanosec * 1e-9)
