# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Saving and restoring sessions, with their K and V where that is asked for.

Messages decide: what can't be saved or used of the K and V costs a warning and the time to
compute it again, never the conversation. Knows no front end; chat.py is its only user.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from gemma_thor_ros import validate
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.engine.engine import Engine
from gemma_thor_ros.engine.saved_prefix import SavedPrefix
from gemma_thor_ros.models.batch import Int32
from gemma_thor_ros.schema import ErrorCode, PromptImage, RequestError
from gemma_thor_ros.session_caches import CacheRefused, read_cache, write_cache
from gemma_thor_ros.session_files import SavedSession, SessionFolder
from gemma_thor_ros.sessions import Session, SessionStore, SessionView

_log = logging.getLogger(__name__)
_TIMEOUT_S = 60.0                        # for the engine thread to copy pages between its steps
_T = TypeVar('_T')


@dataclass(frozen=True)
class AnsweredPrompt:
    """The part of a prompt that the next turn will begin with: all up to the answer's own turn."""

    token_ids: Int32
    images: tuple[PromptImage, ...]

    @classmethod
    def of(cls, token_ids: Sequence[int], images: Sequence[PromptImage],
           answer_start: int) -> AnsweredPrompt:
        """Keep what is needed to find its pages again."""
        # one token more than what is looked for: the last token of a prompt is always run
        return cls(np.array(token_ids[:answer_start + 1], np.int32), tuple(
            replace(image, patches=None) for image in images if image.start <= answer_start))


class Saved(NamedTuple):
    """What was written: a file's name without folder, bytes in all, tokens whose K and V are in.

    warning: why there are none though they were asked for, or ''.
    """

    name: str
    num_bytes: int
    cached_tokens: int
    warning: str


class Restored(NamedTuple):
    """The session, and how many tokens of its next prompt need no prefill; warning: why none."""

    view: SessionView
    cached_tokens: int
    warning: str


class SavedSessions:
    """The saved sessions of one engine; safe to use from any thread.

    identity: what K and V depend on besides the tokens; a file with another one is refused.
    """

    def __init__(self, engine: Engine, sessions: SessionStore, config: EngineConfig,
                 identity: Mapping[str, str], images_refused: str | None) -> None:
        self._engine = engine
        self._sessions = sessions
        self._config = config
        self._identity = identity
        self._images_refused = images_refused

    def save(self, session_id: str, name: str = '', with_cache: bool = False) -> Saved:
        """Write a session to session.folder, as it was after its last answer.

        Raises RequestError: UNKNOWN_SESSION, UNSUPPORTED without a folder, INVALID_REQUEST for a
        bad name, ENGINE for a disk that fails.
        """
        folder, name = self._folder(), name or session_id
        session = self._sessions.get(session_id)
        path = folder.cache_path(name)
        prefix, warning = self._pages_of(session) if with_cache else (None, '')
        num_bytes, digest = (0, '') if prefix is None else write_cache(
            path, prefix, self._identity)
        num_bytes += folder.write(name, SavedSession(
            session.session_id, session.owner, session.created, session.num_tokens,
            tuple(session.messages), digest))
        if prefix is None:
            with suppress(OSError):          # of an older save; nobody would use it
                path.unlink(missing_ok=True)
        if warning:
            _log.warning('session %r is saved without its KV pages: %s', session_id, warning)
        return Saved(name, num_bytes, 0 if prefix is None else prefix.token_ids.size, warning)

    def restore(self, name: str, session_id: str = '', overwrite: bool = False) -> Restored:
        """Read a saved session, under its own id or another one.

        Raises RequestError: UNKNOWN_SESSION when there is no such file; INVALID_REQUEST when it is
        no saved session or the id is taken; BUSY; UNSUPPORTED without a folder.
        """
        folder = self._folder()
        saved = folder.read(name)
        validate.check_messages(saved.messages, self._config, self._images_refused)
        prefix, prompt, warning, cached = None, None, '', 0
        path = folder.cache_path(name)
        if saved.cache:
            try:
                prefix = read_cache(path, saved.cache, self._identity, self._max_bytes())
            except CacheRefused as error:
                warning = str(error)
        if prefix is not None:
            prompt = AnsweredPrompt(np.append(prefix.token_ids, np.int32(0)), prefix.images)
        view = self._sessions.restore(session_id or saved.session_id, saved.owner, saved.messages,
                                      saved.num_tokens, overwrite, prompt)
        if prefix is not None:
            cached, warning = self._put_back(prefix)
        if warning:
            warning = f'{path.name} is not used: {warning}; the next turn is computed anew'
            _log.warning('session %r: %s', view.session_id, warning)
        return Restored(view, cached, warning)

    def _pages_of(self, session: Session) -> tuple[SavedPrefix | None, str]:
        """What is cached of a session, or why nothing can be saved of it."""
        prompt = session.prompt
        if not isinstance(prompt, AnsweredPrompt):
            return None, 'nothing of it has been computed since it was read'
        try:
            prefix = _result(self._engine.save_prefix(prompt.token_ids, prompt.images,
                                                      self._max_bytes()))
        except RequestError as error:
            if error.code is not ErrorCode.MEMORY:
                raise
            return None, error.message
        return prefix, '' if prefix is not None else self._why_nothing(len(prompt.token_ids))

    def _why_nothing(self, num_tokens: int) -> str:
        page = self._config['engine.page_size']
        why = f'its last prompt has {num_tokens:,} tokens and has been evicted'
        if not self._config['engine.max_checkpoints']:
            why = 'engine.max_checkpoints is 0'
        elif num_tokens <= page:
            why = (f'its last prompt has {num_tokens:,} tokens, and one is kept from {page + 1:,} '
                   f'on (a page of {page:,} and one more)')
        return f'nothing of it is in the prefix cache: {why}'

    def _put_back(self, prefix: SavedPrefix) -> tuple[int, str]:
        """How many of a saved prefix's tokens are cached now, and why none are."""
        try:
            cached = _result(self._engine.restore_prefix(prefix))
        except RequestError as error:
            return 0, error.message
        return cached, '' if cached else 'engine.max_checkpoints leaves no room for its window'

    def _max_bytes(self) -> int:
        return int(self._config['session.max_cache'] * 2**30)

    def _folder(self) -> SessionFolder:
        folder = self._config['session.folder']
        if not folder:
            raise RequestError(
                ErrorCode.UNSUPPORTED, 'session.folder is not set: sessions can not be saved'
            )
        return SessionFolder(Path(folder).expanduser())


def _result(future: Future[_T]) -> _T:
    try:
        return future.result(_TIMEOUT_S)
    except TimeoutError as error:
        raise RequestError(ErrorCode.TIMEOUT, f'the engine did not copy the KV pages within '
                                              f'{_TIMEOUT_S:g} s') from error
