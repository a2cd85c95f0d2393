# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Sessions in files: over a restart, under another id, and everything a folder can have wrong."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import ChatRequest, ErrorCode, RequestError
from gemma_thor_ros.session_files import SavedSession, SessionFolder

SAVED = SavedSession('s', 'ros', 12.5, 40, (
    {'role': 'user', 'content': 'Fahr zur Küche \ud83e\udd16 <|turn>'},
    {'role': 'assistant', 'content': '', 'tool_calls': [
        {'id': 'c', 'type': 'function', 'function': {'name': 'f', 'arguments': {'x': 0.1}}}]}))


def start(folder: Path | None, **settings: Any) -> Runtime:
    runtime = Runtime(EngineConfig.from_mapping({
        'model.path': 'scripted', 'model.script': ['All right.<turn|>'],
        'session.folder': str(folder or ''), **settings}))
    runtime.start()
    assert runtime.wait_ready(20.0)
    return runtime


def say(chat: Chat, text: str, session_id: str = 's') -> int:
    messages = ({'role': 'user', 'content': text},)
    return chat.submit(ChatRequest(messages, session_id=session_id)).result(
        20.0).usage.prompt_tokens


def error_of(call: Any, *args: Any, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call(*args, **options)
    return caught.value


def test_over_a_restart(tmp_path: Path) -> None:
    """The restored conversation renders to the same prompt as the one that was never stopped."""
    first = start(tmp_path)
    chat = first.require_chat()
    say(chat, 'hello')
    saved = chat.save_session('s')
    assert saved == ('s', (tmp_path / 's.json').stat().st_size, 0, '')
    never_stopped = say(chat, 'and now?')
    first.stop()
    second = start(tmp_path)
    chat = second.require_chat()
    view = chat.restore_session('s').view
    assert (view.session_id, view.num_messages, view.busy) == ('s', 2, False)
    assert say(chat, 'and now?') == never_stopped
    second.stop()


def test_other_names_and_ids(tmp_path: Path) -> None:
    runtime = start(tmp_path)
    chat = runtime.require_chat()
    say(chat, 'hello')
    assert chat.save_session('s', 'monday').name == 'monday'
    taken = error_of(chat.restore_session, 'monday')
    assert taken.code is ErrorCode.INVALID_REQUEST and 'with 2 messages already' in taken.message
    assert chat.restore_session('monday', 't').view.session_id == 't'
    say(chat, 'more', 't')
    assert chat.restore_session('monday', 't', overwrite=True).view.num_messages == 2
    assert error_of(chat.save_session, 'nobody').code is ErrorCode.UNKNOWN_SESSION
    assert error_of(chat.restore_session, 'tuesday').code is ErrorCode.UNKNOWN_SESSION
    runtime.stop()


def test_a_busy_session_is_saved_without_its_running_turn(tmp_path: Path) -> None:
    runtime = start(tmp_path, **{'model.script_delay': 0.05})
    chat = runtime.require_chat()
    say(chat, 'hello')
    stream = chat.submit(ChatRequest(({'role': 'user', 'content': 'x'},), session_id='s'))
    chat.save_session('s')
    assert error_of(chat.restore_session, 's', overwrite=True).code is ErrorCode.BUSY
    stream.result(20.0)
    assert chat.restore_session('s', 't').view.num_messages == 2
    runtime.stop()


def test_without_a_folder() -> None:
    runtime = start(None)
    chat = runtime.require_chat()
    say(chat, 'hello')
    assert error_of(chat.save_session, 's').code is ErrorCode.UNSUPPORTED
    assert error_of(chat.restore_session, 's').code is ErrorCode.UNSUPPORTED
    runtime.stop()


def test_round_trip_and_modes(tmp_path: Path) -> None:
    """Any text comes back, lone surrogates too; nobody else may read it."""
    folder = SessionFolder(tmp_path / 'deep' / 'down')
    odd = SavedSession('s', 'http', 1.0, 2, ({'role': 'user', 'content': 'a\ud800b\u2028\0'},))
    for saved in (SAVED, odd):
        folder.write('x', saved)
        assert folder.read('x') == saved
    path = tmp_path / 'deep' / 'down' / 'x.json'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ['x.json'], 'nothing half-written'


@pytest.mark.parametrize('name', ['', '.', '..', '../x', 'a/b', '.x', 'a\0b', 'ä', 'a b',
                                  'x' * 129, '/etc/passwd', 'a\n'])
def test_names_that_are_no_file_names(tmp_path: Path, name: str) -> None:
    folder = SessionFolder(tmp_path)
    for call in (lambda: folder.write(name, SAVED), lambda: folder.read(name)):
        error = error_of(call)
        assert (error.code, error.param) == (ErrorCode.INVALID_REQUEST, 'name')
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('content, words', [
    (b'', 'is no saved session'), (b'{"format": 1', 'is no saved session'),
    (b'\xff\xfe', 'is no saved session'), (b'[]', 'holds a list'), (b'{}', 'format None'),
    (b'{"format": 2}', 'format 2, this version reads 1'), (b'[' * 100000, 'is no saved session'),
    (b'{"format": 1, "session_id": 5}', 'session_id is 5'),
    (json.dumps({'format': 1, 'session_id': 's', 'owner': 'o', 'created': 1, 'num_tokens': 1,
                 'messages': ['x']}).encode(), 'messages must be a list of objects')])
def test_files_that_are_no_sessions(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / 'x.json').write_bytes(content)
    error = error_of(SessionFolder(tmp_path).read, 'x')
    assert error.code is ErrorCode.INVALID_REQUEST
    assert words in error.message and 'x.json' in error.message


def test_messages_of_a_file_are_checked_like_those_of_a_client(tmp_path: Path) -> None:
    bad = SavedSession('s', 'ros', 1.0, 1, ({'role': 'wizard', 'content': 'x'},))
    SessionFolder(tmp_path).write('bad', bad)
    runtime = start(tmp_path)
    error = error_of(runtime.require_chat().restore_session, 'bad')
    assert 'wizard' in error.message
    assert runtime.require_chat().list_sessions() == []
    runtime.stop()


def test_what_is_no_json_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    folder.write('x', SAVED)
    for value in (float('nan'), {1, 2}):
        worse = SavedSession('s', 'ros', 1.0, 1, ({'role': 'user', 'content': value},))
        assert 'can not be written as JSON' in error_of(folder.write, 'x', worse).message
    assert folder.read('x') == SAVED


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('x')
    error = error_of(SessionFolder(tmp_path / 'file').write, 'x', SAVED)
    assert error.code is ErrorCode.ENGINE and 'can not be written' in error.message
