# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The node's services: chat_once, ask and the small ones; session_services.py has the rest.

Callbacks that wait for an answer run in the data pool, many at once; none of them spins. A fault
becomes error_code and error_msg of the answer, never an exception.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.lifecycle import LifecycleNode

import gemma_thor_ros.msg as msg
import gemma_thor_ros.srv as srv
from gemma_thor_ros.chat import Chat
from gemma_thor_ros.ros.answers import chat_result_to_ros, error_to_ros
from gemma_thor_ros.ros.conversions import (
    chat_request_from_ros,
    duration_from_ros,
    render_request_from_ros,
    ros_text,
)
from gemma_thor_ros.ros.executors import SERVICES_QOS
from gemma_thor_ros.ros.request_runner import Host, RequestRunner
from gemma_thor_ros.ros.running import RunningRequests
from gemma_thor_ros.schema import ChatRequest, ErrorCode, RequestError

_log = logging.getLogger(__name__)


class Services:
    """Creates and answers the services.

    Args:
        engine_state: gives the message that ~/get_model_info carries.
        group: a reentrant callback group of the data pool.
        control: the group of services that must answer while the pool is full.
    """

    def __init__(
        self,
        node: LifecycleNode,
        host: Host,
        runner: RequestRunner,
        requests: RunningRequests,
        engine_state: Callable[[], msg.EngineState],
        group: CallbackGroup,
        control: CallbackGroup,
    ) -> None:
        self._host = host
        self._runner = runner
        self._requests = requests
        self._engine_state = engine_state
        for kind, name, callback, callback_group in (
            (srv.Chat, 'chat_once', self._chat_once, group),
            (srv.Ask, 'ask', self._ask, group),
            (srv.Tokenize, 'tokenize', self._tokenize, group),
            (srv.Detokenize, 'detokenize', self._detokenize, group),
            (srv.RenderPrompt, 'render_prompt', self._render_prompt, group),
            (srv.GetModelInfo, 'get_model_info', self._get_model_info, control),
            (srv.Cancel, 'cancel', self._cancel, control),
        ):
            node.create_service(
                kind,
                f'~/{name}',
                answering(callback),
                qos_profile=SERVICES_QOS,
                callback_group=callback_group,
            )

    def _chat_once(self, request: srv.Chat.Request, response: srv.Chat.Response) -> None:
        response.request_id, response.session_id = request.request_id, request.session_id
        answer = self._runner.run(
            chat_request_from_ros(request, self._host.image_parts),
            may_wait=False,
            timeout_s=float(self._host.config['ros.ask_timeout']),
        )
        chat_result_to_ros(answer.result, response, answer.logprobs)

    def _ask(self, request: srv.Ask.Request, response: srv.Ask.Response) -> None:
        if not request.prompt:
            raise RequestError(ErrorCode.INVALID_REQUEST, 'prompt is empty', 'prompt')
        asked = ChatRequest(
            messages=({'role': 'user', 'content': request.prompt},),
            session_id=request.session_id,
            timeout_s=duration_from_ros(request.timeout, 'timeout'),
            front_end='ros',
            client='~/ask',
        )
        limit_s = float(self._host.config['ros.ask_timeout'])
        result = self._runner.run(asked, timeout_s=limit_s).result
        response.error_code = int(result.code)
        response.error_msg = ros_text(result.message)
        response.text = ros_text(result.text)

    def _tokenize(self, request: srv.Tokenize.Request, response: srv.Tokenize.Response) -> None:
        chat = self._host.require_chat()
        response.token_ids = chat.tokenize(request.text, request.add_bos)
        response.pieces = [
            ros_text(chat.token_bytes(i).decode('utf-8', 'replace') or chat.detokenize([i]))
            for i in response.token_ids
        ]

    def _detokenize(
        self, request: srv.Detokenize.Request, response: srv.Detokenize.Response
    ) -> None:
        chat = self._host.require_chat()
        response.text = ros_text(chat.detokenize([int(i) for i in request.token_ids]))

    def _render_prompt(
        self, request: srv.RenderPrompt.Request, response: srv.RenderPrompt.Response
    ) -> None:
        asked = render_request_from_ros(request, self._host.image_parts)
        chat = self._host.require_chat()
        if request.policy_tools:
            asked = self._with_policy_tools(asked)
        asked = self._runner.with_system_prompt(asked, chat)
        prompt = chat.render_prompt(asked, request.add_generation_prompt)
        response.text = ros_text(prompt.text)
        response.token_ids = list(prompt.token_ids)

    def _with_policy_tools(self, asked: ChatRequest) -> ChatRequest:
        bridge = self._host.bridge()
        if bridge is None:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                'policy_tools is set, but the node has no tool policy (parameter '
                'tools.policy_file)',
                'policy_tools',
            )
        if asked.tools:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f'tools has {len(asked.tools)} entries: with policy_tools it must be empty',
                'tools',
            )
        return ChatRequest(**{**vars(asked), 'tools': tuple(bridge.tools())})

    def _get_model_info(
        self, request: srv.GetModelInfo.Request, response: srv.GetModelInfo.Response
    ) -> None:
        response.state = self._engine_state()
        _fill_model_info(response, self._host.require_chat())
        bridge = self._host.bridge()
        if bridge is not None:
            response.policy_tools = [tool['function']['name'] for tool in bridge.tools()]

    def _cancel(self, request: srv.Cancel.Request, response: srv.Cancel.Response) -> None:
        reason = request.reason or 'cancelled through ~/cancel'
        ended = self._requests.cancel(request.request_id, request.session_id, reason)
        # HTTP requests are not in our list, but their ids are of the same kind.
        foreign = bool(request.request_id) and not ended and not request.session_id
        if foreign and self._host.require_chat().cancel(request.request_id):
            ended = [request.request_id]
        response.request_ids = ended
        if request.request_id and not ended:
            raise RequestError(
                ErrorCode.UNKNOWN_REQUEST,
                f'no request {request.request_id!r} is running',
                'request_id',
            )


def answering(callback: Callable[[Any, Any], None]) -> Callable[[Any, Any], Any]:
    """Make a service callback of one that fills the response and raises RequestError."""

    @functools.wraps(callback)
    def answer(request: Any, response: Any) -> Any:
        try:
            callback(request, response)
        except RequestError as error:
            error_to_ros(error, response)
        except Exception as error:  # noqa: BLE001 (else its caller would wait for ever)
            _log.exception('service %s failed', callback.__name__.strip('_'))
            fault = RequestError(
                ErrorCode.ENGINE, f'internal error: {type(error).__name__}: {error}'
            )
            error_to_ros(fault, response)
        return response

    return answer


def _fill_model_info(response: srv.GetModelInfo.Response, chat: Chat) -> None:
    info = chat.model_info()
    response.model_name = info.name
    response.model_path = info.path
    response.family = info.family
    response.weights_format = info.weights_format
    response.num_parameters = info.num_parameters
    response.vocab_size = info.vocab_size
    response.context_length = info.context_length
    response.max_context_length = info.max_context_length
    response.kv_dtype = info.kv_dtype
    response.max_sequences = info.max_sequences
    response.vision = bool(info.facts.get('vision', False))
    drafter = str(info.facts.get('drafter', ''))
    response.drafter = '' if drafter == 'none' else drafter
    response.thinking_default = info.thinking
    response.stop_token_ids = list(info.stop_ids)
    response.engine_version = str(info.facts.get('engine_version', ''))
    response.info_json = json.dumps(info.facts, default=str)
