# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""~/prompt: plain text in, answers on ~/tokens and ~/sentences, one at a time.

What becomes of a prompt that comes while another one is answered is a policy: it waits, it takes
the place of the one that waits, or it interrupts. Knows no ROS; a thread of its own runs requests.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.ros.running import Running
from gemma_thor_ros.schema import ChatRequest, ErrorCode, RequestError

_log = logging.getLogger(__name__)

INTERRUPTED = 'a later prompt interrupted'


@dataclass(frozen=True)
class Prompt:
    """One message, with the id that its answer will have."""

    request_id: str
    text: str


class PromptIntake:
    """Takes prompts from any thread and answers them in its own.

    Args:
        config: ros.prompt_policy, ros.prompt_queue and ros.prompt_session are read at each prompt.
        run: answers a request and returns when it has ended; calls the function that it is given
            with what cancels it before it begins; raises RequestError.
        refuse: tells the topics of a request that never ran: id, session, why.
    """

    def __init__(
        self,
        config: EngineConfig,
        run: Callable[[ChatRequest, Callable[[Running], None]], object],
        refuse: Callable[[str, str, RequestError], None],
    ) -> None:
        self._config = config
        self._run = run
        self._refuse = refuse
        self._changed = threading.Condition()
        self._waiting: deque[Prompt] = deque()
        self._running: Running | None = None
        self._answering = False
        self._interrupted = False  # before its request has begun
        self._closed = False
        self._thread = threading.Thread(target=self._work, name='ros-prompt', daemon=True)
        self._thread.start()

    def put(self, text: str) -> str:
        """Take a prompt as the policy says and return its request id; returns at once."""
        prompt = Prompt(uuid.uuid4().hex, text)
        policy = self._config['ros.prompt_policy']
        interrupted: Running | None = None
        with self._changed:
            dropped: list[Prompt] = []
            error = self._unfit(prompt, policy)
            if error is None:
                if policy != 'queue':
                    dropped = list(self._waiting)
                    self._waiting.clear()
                if policy == 'interrupt' and self._answering:
                    interrupted, self._interrupted = self._running, True
                self._waiting.append(prompt)
                self._changed.notify()
        for old in dropped:
            self._tell(old, RequestError(ErrorCode.CANCELLED, 'a later prompt took its place'))
        if interrupted is not None:
            interrupted.cancel(INTERRUPTED)
        if error is not None:
            self._tell(prompt, error)
        return prompt.request_id

    def clear(self, reason: str) -> None:
        """Drop what waits."""
        with self._changed:
            dropped = list(self._waiting)
            self._waiting.clear()
        for prompt in dropped:
            self._tell(prompt, RequestError(ErrorCode.CANCELLED, reason))

    def close(self, timeout_s: float) -> bool:
        """End the thread; what runs has to be cancelled by its owner. True when it has ended."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _unfit(self, prompt: Prompt, policy: str) -> RequestError | None:
        if not prompt.text.strip():
            return RequestError(ErrorCode.INVALID_REQUEST, 'the prompt is empty', 'data')
        most = self._config['ros.prompt_queue']
        if policy == 'queue' and len(self._waiting) >= most:
            return RequestError(
                ErrorCode.BUSY, f'{len(self._waiting)} prompts wait, at most {most} may'
            )
        return None

    def _tell(self, prompt: Prompt, error: RequestError) -> None:
        _log.warning('prompt %s is not answered: %s', prompt.request_id, error.message)
        self._refuse(prompt.request_id, self._config['ros.prompt_session'], error)

    def _begun(self, running: Running) -> None:
        with self._changed:
            self._running = running
            interrupted = self._interrupted
        if interrupted:
            running.cancel(INTERRUPTED)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running, self._answering, self._interrupted = None, False, False
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                prompt = self._waiting.popleft()
                self._answering = True
            request = ChatRequest(
                messages=({'role': 'user', 'content': prompt.text},),
                session_id=self._config['ros.prompt_session'],
                request_id=prompt.request_id,
                front_end='ros',
                client='~/prompt',
            )
            try:
                self._run(request, self._begun)
            except RequestError as error:
                self._tell(prompt, error)
            except Exception as error:  # noqa: BLE001 (the next prompts must be answered)
                _log.exception('prompt %s failed', prompt.request_id)
                self._tell(prompt, RequestError(ErrorCode.ENGINE, f'internal error: {error}'))
