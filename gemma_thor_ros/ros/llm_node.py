# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The lifecycle node: what is created, taken over, opened and freed in which transition.

Construct = declare alone. The load runs in the runtime's thread; transitions run in the control
thread and return at once. Requests, tools and messages are other files' business.
"""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builtin_interfaces.msg import Time
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from std_msgs.msg import String

import gemma_thor_ros.msg as msg
from gemma_thor_ros import resources
from gemma_thor_ros.chat import Chat
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime, State
from gemma_thor_ros.ros import packages
from gemma_thor_ros.ros.audit import Recorder
from gemma_thor_ros.ros.chat_action import ChatActionServer
from gemma_thor_ros.ros.confirmations import Confirmations
from gemma_thor_ros.ros.diagnostics import ENGINE_FAILED, RequestCounters, StatePublisher
from gemma_thor_ros.ros.executors import NodeExecutors
from gemma_thor_ros.ros.heartbeat import Heartbeat
from gemma_thor_ros.ros.http_topics import HttpTopics
from gemma_thor_ros.ros.image_source import ImageSource
from gemma_thor_ros.ros.node_runtime import NodeRuntime
from gemma_thor_ros.ros.parameters import NodeParameters, unknown_parameters
from gemma_thor_ros.ros.prompt_intake import PromptIntake
from gemma_thor_ros.ros.qos import WatchedPublishers
from gemma_thor_ros.ros.request_runner import Acts, Listener, RequestRunner
from gemma_thor_ros.ros.running import Running, RunningRequests
from gemma_thor_ros.ros.services import Services
from gemma_thor_ros.ros.session_services import SessionServices
from gemma_thor_ros.ros.speech import SpeechWriter
from gemma_thor_ros.ros.token_topic import TOKENS_QOS
from gemma_thor_ros.schema import ChatRequest, ConfigError, ErrorCode, RequestError

if TYPE_CHECKING:
    from gemma_thor_ros.ros.bridge import ToolBridge
    from gemma_thor_ros.server.run import Sidecar

_log = logging.getLogger(__name__)

NODE_NAME = 'llm_node'
# Each request that is under way occupies a thread; what is left answers refusals.
REQUEST_THREADS = 256
MAX_REQUESTS = REQUEST_THREADS - 8
WATCH_S = 0.2  # how soon a failed engine is noticed
TOOL_EVENTS_QOS = QoSProfile(depth=100)
REQUESTS_QOS = QoSProfile(depth=100)
PROMPT_QOS = QoSProfile(depth=100)
_SUCCESS = TransitionCallbackReturn.SUCCESS
_FAILURE = TransitionCallbackReturn.FAILURE


_Transition = Callable[['LlmNode', LifecycleState], TransitionCallbackReturn]


def _logged(transition: _Transition) -> _Transition:
    """Log what a transition raises: rclpy turns it into ERROR without a word."""

    @functools.wraps(transition)
    def run(node: LlmNode, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            return transition(node, state)
        except Exception as error:
            node.note_fault(f'{transition.__name__} failed: {type(error).__name__}: {error}')
            _log.exception('%s failed', transition.__name__)
            raise

    return run


class LlmNode(LifecycleNode):
    """Gemma 4 as a lifecycle node.

    Args:
        parameter_overrides: settings, over those of the command line.
        on_engine_failed: called once when the engine can never answer again, after all requests
            have been answered: the process should end, for its launcher to start it anew.

    Raises:
        ConfigError: a parameter has an unfit value.
    """

    def __init__(
        self,
        parameter_overrides: Sequence[Parameter[Any]] = (),
        on_engine_failed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(NODE_NAME, parameter_overrides=list(parameter_overrides))
        self.parameters = NodeParameters(self)
        self.config: EngineConfig = self.parameters.config
        self._runtime: NodeRuntime | None = None
        self._bridge: ToolBridge | None = None
        self._sidecar: Sidecar | None = None
        self._fault = ''
        self.system_prompt = ''
        self._watched: Chat | None = None
        self._active = False
        self._autostarting = False
        self._closing = False
        self._ended = False  # by the transition shutdown, which nothing takes back
        self._transition = threading.RLock()  # close() may come in the middle of one
        if self.config['http.enabled']:
            # Here and not in configure, which has to return within a second.
            importlib.import_module('gemma_thor_ros.server.run')
        self._requests = RunningRequests(MAX_REQUESTS)
        self._counters = RequestCounters()
        control = MutuallyExclusiveCallbackGroup()
        data = ReentrantCallbackGroup()
        publishers = WatchedPublishers(self)
        self._status = StatePublisher(
            self,
            lambda: self._runtime,
            lambda: self._fault,
            self._counters,
            packages.optional_faults(),
            lambda: self._bridge.guard if self._bridge is not None else None,
            publishers.misfits,
            control,
        )
        self._on_engine_failed = on_engine_failed
        self._watch = self.create_timer(WATCH_S, self._check_engine, callback_group=control)
        self._heartbeat = Heartbeat(self, lambda: self._active)
        speech = SpeechWriter(
            publishers.create(msg.Sentence, '~/sentences', TOKENS_QOS, True).publish,
            lambda: bool(self.config['ros.speech_units']),
        )
        records = publishers.create(msg.RequestRecord, '~/requests', REQUESTS_QOS)
        self._recorder = Recorder(self.config, records.publish)
        tokens = publishers.create(msg.TokenChunk, '~/tokens', TOKENS_QOS, True)
        self._http_topics = HttpTopics(
            tokens.publish, lambda: float(self.config['ros.token_rate']), self.stamp
        )
        runner = self._runner = RequestRunner(
            self,
            self._requests,
            self._counters,
            tokens,
            publishers.create(msg.ToolEvent, '~/tool_events', TOOL_EVENTS_QOS),
            speech,
            self._recorder,
        )
        self._action = ChatActionServer(self, runner, control)
        self._confirmations = Confirmations(self, control)
        self._service_desk = Services(
            self, self, runner, self._requests, self._status.engine_state, data, control
        )
        self._images = ImageSource(
            self, lambda: float(self.config['ros.image_max_age']), self.require_chat, data
        )
        self._sessions = SessionServices(self, self, runner, self._requests, speech, data)
        self._prompts = PromptIntake(self.config, self._run_prompt, runner.publish_refusal)
        self.create_subscription(
            String,
            '~/prompt',
            self._on_prompt,
            PROMPT_QOS,
            callback_group=control,
        )
        self._executors = NodeExecutors(
            self, (self.default_callback_group, control), (data,), REQUEST_THREADS
        )
        for sentence in unknown_parameters(list(getattr(self, '_parameter_overrides', {}))):
            self.get_logger().warning(sentence)

    def start(self) -> None:
        """Begin to spin, to beat and, with ros.autostart, to configure."""
        self._heartbeat.start()
        self._executors.start()
        if self.config['ros.autostart']:
            self._autostarting = True
            self._executors.run_in_control(self._autoconfigure)

    def close(self, timeout_s: float) -> bool:
        """End everything in order, from any thread but a callback's; True when all has ended.

        Requests are answered, the engine and the endpoint stopped, the threads joined. The node
        itself is still to be destroyed.
        """
        limit = time.monotonic() + timeout_s

        def left() -> float:
            return max(limit - time.monotonic(), 0.05)

        self._closing = True
        self._deactivate('the node is shutting down')
        answered = self._requests.wait_idle(left() / 2)
        ended = self._free(left() / 2)
        self._heartbeat.stop(left())
        ended = self._prompts.close(left()) and ended
        return self._executors.stop(left()) and answered and ended

    def note_fault(self, sentence: str) -> None:
        """Hold why a transition failed, for engine_state and refusals."""
        self._fault = sentence

    # What RequestRunner and Services ask of their host.

    def require_chat(self) -> Chat:
        """Return the chat, or raise RequestError NOT_READY with the reason."""
        runtime = self._runtime
        if self._ended:
            raise RequestError(ErrorCode.NOT_READY, 'the node was shut down (finalized): it can '
                               'not be configured again, its process has to be started anew')
        if runtime is None:
            reason = f': {self._fault}' if self._fault else ', it has to be configured'
            raise RequestError(ErrorCode.NOT_READY, f'the node is unconfigured{reason}')
        return runtime.node_chat()

    def bridge(self) -> ToolBridge | None:
        """Return the tool bridge, if there is a policy."""
        return self._bridge

    def stamp(self) -> Time:
        """Return the node's present time."""
        return self.get_clock().now().to_msg()

    def image_parts(self, message: msg.ChatMessage, where: str) -> list[dict[str, Any]]:
        """Return the content parts of a message's images, or raise RequestError."""
        return self._images.parts(message, where)

    def _on_prompt(self, prompt: String) -> None:
        self._prompts.put(prompt.data)

    def _run_prompt(self, request: ChatRequest, on_begin: Callable[[Running], None]) -> None:
        acts = Acts() if self.config['tools.execute_prompts'] else None
        self._runner.run(request, acts=acts, listener=Listener(on_begin))

    # Lifecycle. All of it runs in the control thread.

    @_logged
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Check settings, policy and checkpoint, begin to load; FAILURE with the reason held."""
        with self._transition:
            if self._closing:
                return _FAILURE
            self._fault = ''
            self.parameters.freeze(True)
            self._requests.close('the node is inactive: it has to be activated')
            runtime = self._runtime = NodeRuntime(self.config)
            runtime.on_change(self._on_runtime_change)
            try:
                self.system_prompt = _system_prompt(self.config)
                self._recorder.open()
                self._make_bridge()
                self._start_sidecar(runtime)
                runtime.start()
            except ConfigError as error:
                self._fault = str(error)
                self.get_logger().error(f'configure failed: {error}')
                self._free(1.0)
                return _FAILURE
        return _SUCCESS

    @_logged
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Open for requests; FAILURE with the reason until the model is ready."""
        try:
            chat = self.require_chat()
        except RequestError as error:
            self.get_logger().error(f'activate failed: {error.message}')
            return _FAILURE
        if chat is not self._watched:  # the first time after a load
            self._watched = chat
            self._recorder.watch(chat)
            if self.config['ros.publish_http']:
                self._http_topics.watch(chat)
        assert self._runtime is not None
        self._runtime.open()
        self._requests.open()
        self._active = True
        self._heartbeat.beat_now()  # the guard refuses the goals of an inactive node
        self.get_logger().info(f'active: {self.get_fully_qualified_name()}/chat takes goals')
        return _SUCCESS

    @_logged
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Refuse new requests and cancel those under way."""
        self._deactivate('the node was deactivated')
        return _SUCCESS

    @_logged
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the engine, the endpoint and the tools."""
        self._free(float(self.config['engine.stop_timeout']))
        self._fault = ''
        return _SUCCESS

    @_logged
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Do what deactivate and cleanup do, from any state."""
        self._ended = True
        self._deactivate('the node was shut down')
        self._free(float(self.config['engine.stop_timeout']))
        return _SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Go back to unconfigured after a fault of ours in a transition."""
        self._ended = False
        self._deactivate(self._fault)
        self._free(float(self.config['engine.stop_timeout']))
        return _SUCCESS

    def _make_bridge(self) -> None:
        path = self.config['tools.policy_file']
        if not path and self.config['tools.execute_prompts']:
            raise ConfigError('tools.execute_prompts is set, but tools.policy_file is empty')
        if not path:
            return
        from gemma_thor_ros.ros.bridge import ToolBridge  # not needed without a policy
        from gemma_thor_ros.ros.policy import load_policy

        if path == 'demo':
            path = resources.folder('config') / 'tools' / 'demo.yaml'
        self._bridge = ToolBridge(
            self,
            load_policy(path),
            instance_id=self._heartbeat.instance_id,
            guard=self.config['tools.guard'],
            dry_run=self.config['tools.dry_run'],
            confirmations=self._confirmations,
            approval_ttl_s=self.config['session.ttl'],
        )
        self._bridge.add_stop_listener(self._runner.stop)

    def _start_sidecar(self, runtime: NodeRuntime) -> None:
        if not self.config['http.enabled']:
            return
        from gemma_thor_ros.server.run import Sidecar  # not needed without HTTP

        sidecar = Sidecar(runtime, self.config)
        sidecar.start()
        self._sidecar = sidecar

    def _deactivate(self, reason: str) -> None:
        self._active = False
        self._requests.close(reason)
        self._prompts.clear(reason)
        self._requests.cancel(reason=reason)
        if self._runtime is not None:
            self._runtime.close()

    def _free(self, timeout_s: float) -> bool:
        """Stop what configure started; True when all of it has ended."""
        limit = time.monotonic() + timeout_s
        with self._transition:
            runtime, self._runtime = self._runtime, None
            sidecar, self._sidecar = self._sidecar, None
            bridge, self._bridge = self._bridge, None
        ended = True
        if sidecar is not None:
            ended = sidecar.stop(min(timeout_s, 1.0)) and ended
        if runtime is not None:
            ended = runtime.stop(max(limit - time.monotonic(), 0.1)) and ended
        if bridge is not None:
            # Its calls end 0.2 s after their requests were cancelled.
            ended = self._requests.wait_idle(max(limit - time.monotonic(), 0.3)) and ended
            bridge.close()
        self._recorder.close()
        self._watched = None
        if runtime is not None and not self._closing:
            # Bridge, policy and some page pools are cycles: they would stay for long.
            runtime = sidecar = bridge = None
            gc.collect()
        self.parameters.freeze(False)
        if not self._closing:
            self._status.changed()
        return ended

    def _on_runtime_change(self) -> None:
        """Follow the load; called from its thread."""
        if self._closing:
            return
        self._status.changed()
        runtime = self._runtime
        if runtime is not None and runtime.state is State.READY and self._autostarting:
            self._executors.run_in_control(self._autoactivate)

    def _check_engine(self) -> None:
        runtime = self._runtime
        chat = runtime.chat if runtime is not None else None
        if chat is None or chat.stats().state != ENGINE_FAILED:
            return
        self._watch.cancel()
        self._status.changed()
        self._deactivate('the engine failed')
        self._requests.wait_idle(WATCH_S)
        self._on_engine_failed()

    def _autoconfigure(self) -> None:
        if not self._closing and self.trigger_configure() is not _SUCCESS:
            self._autostarting = False
            return
        # The load may have ended before `_runtime` was set.
        self._on_runtime_change()

    def _autoactivate(self) -> None:
        if self._autostarting and not self._closing and self._ready():
            self._autostarting = False
            self.trigger_activate()

    def _ready(self) -> bool:
        runtime: Runtime | None = self._runtime
        return runtime is not None and runtime.state is State.READY


def _system_prompt(config: EngineConfig) -> str:
    """Return the system message of conversations that bring none; '' = none."""
    if not config['ros.system_prompt_file']:
        return str(config['ros.system_prompt'])
    path = Path(config['ros.system_prompt_file']).expanduser()
    try:
        return path.read_text(encoding='utf-8').strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f'ros.system_prompt_file {path} can not be read: {error}') from error
