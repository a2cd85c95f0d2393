# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Services about conversations: list, reset, save, restore, and the barge-in that cuts one.

Callbacks run in the data pool; the barge-in alone waits, for the end of the request that it
interrupts.
"""

from __future__ import annotations

from rclpy.callback_groups import CallbackGroup
from rclpy.lifecycle import LifecycleNode

import gemma_thor_ros.msg as msg
import gemma_thor_ros.srv as srv
from gemma_thor_ros.ros.conversions import duration_to_ros, ros_text, time_to_ros
from gemma_thor_ros.ros.executors import SERVICES_QOS
from gemma_thor_ros.ros.request_runner import Host, RequestRunner
from gemma_thor_ros.ros.running import Running, RunningRequests
from gemma_thor_ros.ros.services import answering
from gemma_thor_ros.ros.speech import SpeechWriter
from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.sessions import SessionView

# A cancelled request ends with the engine's step, or with the answer to a tool's cancel.
END_TIMEOUT_S = 10.0


class SessionServices:
    """Creates and answers the services; `group` is a reentrant group of the data pool."""

    def __init__(
        self,
        node: LifecycleNode,
        host: Host,
        runner: RequestRunner,
        requests: RunningRequests,
        speech: SpeechWriter,
        group: CallbackGroup,
    ) -> None:
        self._host = host
        self._runner = runner
        self._requests = requests
        self._speech = speech
        for kind, name, callback in (
            (srv.ListSessions, 'list_sessions', self._list_sessions),
            (srv.ResetSession, 'reset_session', self._reset_session),
            (srv.SaveSession, 'save_session', self._save_session),
            (srv.RestoreSession, 'restore_session', self._restore_session),
            (srv.BargeIn, 'barge_in', self._barge_in),
        ):
            node.create_service(
                kind,
                f'~/{name}',
                answering(callback),
                qos_profile=SERVICES_QOS,
                callback_group=group,
            )

    def _list_sessions(
        self, request: srv.ListSessions.Request, response: srv.ListSessions.Response
    ) -> None:
        views = self._host.require_chat().list_sessions()
        response.sessions = [self._session_info(view) for view in views]

    def _session_info(self, view: SessionView) -> msg.SessionInfo:
        return msg.SessionInfo(
            session_id=view.session_id,
            owner=view.owner,
            num_messages=view.num_messages,
            num_tokens=view.num_tokens,
            max_tokens=self._host.config['session.max_tokens'],
            created=time_to_ros(view.created),
            last_used=time_to_ros(view.last_used),
            ttl=duration_to_ros(self._host.config['session.ttl']),
            busy=view.busy,
        )

    def _reset_session(
        self, request: srv.ResetSession.Request, response: srv.ResetSession.Response
    ) -> None:
        chat = self._host.require_chat()
        response.num_reset = chat.reset_session(request.session_id, request.remove)
        self._runner.forget_session(request.session_id)
        session = '' if request.session_id == '*' else request.session_id
        for running in self._requests.all():
            # An agent loop between two generations is no engine request: it is ended here.
            if running.session_id and session in ('', running.session_id):
                running.cancel('its session was reset')

    def _save_session(
        self, request: srv.SaveSession.Request, response: srv.SaveSession.Response
    ) -> None:
        saved = self._host.require_chat().save_session(
            request.session_id, request.name, request.with_cache
        )
        response.name, response.num_bytes = saved.name, saved.num_bytes
        response.error_msg = saved.warning and f'saved without its KV pages: {saved.warning}'

    def _restore_session(
        self, request: srv.RestoreSession.Request, response: srv.RestoreSession.Response
    ) -> None:
        restored = self._host.require_chat().restore_session(
            request.name, request.session_id, request.replace
        )
        # What was owed to a conversation that has been replaced.
        self._runner.forget_session(restored.view.session_id)
        response.session = self._session_info(restored.view)
        response.cached_tokens = restored.cached_tokens
        response.error_msg = restored.warning

    def _barge_in(self, request: srv.BargeIn.Request, response: srv.BargeIn.Response) -> None:
        _check_counts(request)
        running = self._running(request)
        if running is not None:
            running.cancel('the person interrupted')
            if not running.ended.wait(END_TIMEOUT_S):
                raise RequestError(
                    ErrorCode.BUSY,
                    f'request {running.request_id} was cancelled and has not ended within '
                    f'{END_TIMEOUT_S:g} s: nothing was cut',
                )
        request_id = running.request_id if running is not None else request.request_id
        request_id = request_id or self._host.require_chat().last_turn(request.session_id)
        answer = self._speech.answer(request_id)
        if answer is None or request.session_id not in ('', answer.session_id):
            if running is not None:
                return  # it had not begun to answer
            raise _unknown(request)
        spoken = answer.characters(request.spoken_sentences, request.spoken_characters)
        if spoken is None:
            response.kept_text = answer.text
            return
        if answer.session_id:
            self._host.require_chat().cut_session(answer.session_id, request_id, spoken)
        kept = answer.text[:spoken]
        response.kept_text = ros_text(kept if spoken == len(answer.text) else kept.rstrip())

    def _running(self, request: srv.BargeIn.Request) -> Running | None:
        if not request.request_id and not request.session_id:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                'request_id and session_id are empty: one of them is needed',
                'request_id',
            )
        for running in self._requests.all():
            if request.request_id in ('', running.request_id) and (
                request.session_id in ('', running.session_id)
            ):
                return running
        return None


def _check_counts(request: srv.BargeIn.Request) -> None:
    """Raise RequestError for counts that say nothing, or two things; before anything is ended."""
    counts = {'spoken_sentences': request.spoken_sentences,
              'spoken_characters': request.spoken_characters}
    for name, count in counts.items():
        if count < -1:
            raise RequestError(ErrorCode.INVALID_REQUEST,
                               f'{name} is {count}; it is a count, or -1 for none', name)
    if min(counts.values()) >= 0:
        said = ' and '.join(f'{name} is {count}' for name, count in counts.items())
        raise RequestError(ErrorCode.INVALID_REQUEST,
                           f'{said}: give one of them, -1 for the other', 'spoken_characters')


def _unknown(request: srv.BargeIn.Request) -> RequestError:
    wanted = [
        f'{name} {value!r}'
        for name, value in (('id', request.request_id), ('session', request.session_id))
        if value
    ]
    return RequestError(
        ErrorCode.UNKNOWN_REQUEST,
        f'no request with {" and ".join(wanted)} runs or has answered lately',
        'request_id',
    )
