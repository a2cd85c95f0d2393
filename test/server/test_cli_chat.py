# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The verb `chat` on a real terminal (a pty), on pipes, and against other servers."""

from __future__ import annotations

import fcntl
import http.server
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.cli.main import main

from .conftest import Server, StartServer

THOUGHT = '<|channel>thought\nI look it up.\n<channel|>'
CALL = '<|tool_call>call:get_battery{}<tool_call|><|tool_response>'
TOOLS = [{'type': 'function', 'function': {'name': 'get_battery', 'parameters': {
    'type': 'object', 'properties': {}}}}]


def _own_terminal() -> None:
    """Let Ctrl-C reach the program, also where the tests themselves don't hear of it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._end, child = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, '-m', 'gemma_thor_ros.cli.main', *arguments], stdin=child,
            stdout=child, stderr=child, start_new_session=True,
            preexec_fn=_own_terminal,
            env={**os.environ, 'TERM': 'xterm', 'COLUMNS': '100'})
        os.close(child)
        self.seen = ''

    def expect(self, pattern: str, seconds: float = 15.0) -> str:
        """Read until a pattern comes after what was expected before; return the text up to it."""
        limit = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < limit, f'no {pattern!r} in {self.seen!r}'
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    raw = os.read(self._end, 65536)
                except OSError:                           # the program has ended
                    raw = b''
                assert raw, f'ended without {pattern!r}: {self.seen!r}'
                text = raw.decode(errors='replace').replace('\r', '')
                self.seen += re.sub(r'\x1b\[[0-9;?]*[a-zA-Z]', '', text)
        text, self.seen = self.seen[:found.end()], self.seen[found.end():]
        return text

    def say(self, text: str) -> None:
        os.write(self._end, text.encode() + b'\n')

    def press(self, key: bytes) -> None:
        os.write(self._end, key)

    def end(self) -> int:
        try:
            return self._process.wait(10.0)
        finally:
            self._process.kill()
            os.close(self._end)


def test_a_conversation_on_a_terminal(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(THOUGHT + CALL, 'It is at 80 percent.<turn|>', 'Two lines.<turn|>')
    tools = tmp_path / 'tools.json'
    tools.write_text(json.dumps(TOOLS))
    kept = tmp_path / 'kept.json'
    terminal = Terminal('chat', '--url', f'{server.url}/v1')
    terminal.expect(r'scripted\. /help lists the commands')
    terminal.say(f'/tools {tools}')
    terminal.expect('1 tools')
    terminal.say('/set temperature 0')
    terminal.say('/think on')
    terminal.say('/settings')
    terminal.expect(r'"thinking": true, "temperature": 0, "tools": \["get_battery"\]')
    terminal.say('level?')
    shown = terminal.expect('result of get_battery: ')
    assert 'I look it up.' in shown
    assert 'get_battery({})' in shown
    terminal.say('80')
    terminal.expect(r'It is at 80 percent\.')
    terminal.expect(r'\d+ tokens, .*first after \d+ ms')
    terminal.say('one\\')
    terminal.expect('… ')
    terminal.say('two')
    terminal.expect(r'Two lines\.')
    terminal.say(f'/save {kept}')
    terminal.expect('6 messages written')
    messages = json.loads(kept.read_text())
    assert [message['role'] for message in messages] == [
        'user', 'assistant', 'tool', 'assistant', 'user', 'assistant']
    assert messages[4]['content'] == 'one\ntwo'
    (tmp_path / 'seen.png').write_bytes(b'\x89PNG')
    terminal.say(f'/image {tmp_path}/seen.png')
    terminal.expect('1 images go with the next message')
    terminal.say('what is it?')
    terminal.expect('takes no image_url')
    terminal.say('/undo')
    terminal.expect('taken back')
    terminal.say('/load /none')
    terminal.expect('No such file')
    terminal.say('/dance')
    terminal.expect('/help  +this list')
    terminal.say('/quit')
    assert terminal.end() == 0


def test_ctrl_c_stops_the_answer_and_no_more(start_server: StartServer) -> None:
    server = start_server('word ' * 500 + '<turn|>', model__script_delay=0.02)
    terminal = Terminal('chat', '--url', f'{server.url}/v1')
    terminal.expect('> ')
    terminal.say('talk')
    terminal.expect('word word word')
    terminal.press(b'\x03')
    terminal.expect(r'\(stopped\)')
    terminal.expect('> ')
    stats = server.runtime.require_chat().stats
    limit = time.monotonic() + 2.0
    while stats().running and time.monotonic() < limit:
        time.sleep(0.01)
    assert (stats().running, stats().requests_cancelled) == (0, 1)
    terminal.press(b'\x04')                               # Ctrl-D
    assert terminal.end() == 0


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(text: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, 'stdin', io.StringIO(text))
        code = main(['chat', *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err
    return run


def test_one_turn_on_pipes(plain_server: Server, start_server: StartServer, piped: Any) -> None:
    code, out, _ = piped('hi', '--url', f'{plain_server.url}/v1')
    assert code == 0
    assert out.startswith('x\n')
    assert piped('hi', '--url', plain_server.url)[1].startswith('x\n')  # /v1 goes without saying
    server = start_server(THOUGHT + CALL)
    code, out, _ = piped('level?', '--url', f'{server.url}/v1/', '--json', '--think')
    answer = json.loads(out)
    assert code == 0
    assert answer['reasoning'] == 'I look it up.'
    assert answer['tool_calls'][0]['name'] == 'get_battery'
    assert answer['finish_reason'] == 'tool_calls'


def test_errors_have_words_and_a_code(plain_server: Server, piped: Any, tmp_path: Path) -> None:
    url = f'{plain_server.url}/v1'
    code, _, err = piped('hi', '--url', url, '--model', 'gpt-9')
    assert (code, 'gpt-9' in err) == (1, True)
    code, _, err = piped('hi', '--url', 'http://127.0.0.1:9/v1')
    assert (code, 'no server answers there' in err) == (1, True)
    code, _, err = piped('hi', '--url', url, '--temperature', '-1')
    assert (code, 'temperature' in err) == (1, True)
    bad = tmp_path / 'bad.json'
    bad.write_text('{')
    code, _, err = piped('hi', '--url', url, '--tools', str(bad))
    assert (code, 'not JSON' in err) == (2, True)
    code, _, err = piped('hi', '--url', url, '--api-key-file', str(tmp_path / 'none'))
    assert (code, '--api-key-file' in err) == (2, True)
    for name, value in (('--temperature', 'nan'), ('--timeout', '0'), ('--timeout', 'nan'),
                        ('--timeout', '-1'), ('--prompt', ' ')):
        code, _, err = piped('hi', '--url', url, name, value)
        assert (code, f'{name} is' in err) == (2, True)


class _Other(http.server.BaseHTTPRequestHandler):
    """A server that knows OpenAI's own fields alone and calls a thought `reasoning`."""

    bodies: list[dict[str, Any]] = []                     # noqa: RUF012 (shared on purpose)

    def do_GET(self) -> None:
        self._answer(json.dumps({'data': [{'id': 'other'}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.bodies.append(body)
        chunks: list[Any] = [
            {'choices': [{'index': 0, 'delta': {'reasoning': 'hm'}}]},
            {'choices': [{'index': 0, 'delta': {'content': 'Hello'}}]},
            {'choices': [{'index': 0, 'delta': {}, 'finish_reason': 'stop'}]},
            {'choices': [], 'usage': {'completion_tokens': 2}}]
        text = ''.join(f'data:{json.dumps(chunk)}\n\n' for chunk in chunks) + 'data:[DONE]\n\n'
        self._answer(text.encode())

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def other_url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}/v1'
    server.shutdown()
    server.server_close()


def test_other_servers_are_sent_nothing_of_ours(other_url: str, piped: Any) -> None:
    code, out, _ = piped('hi', '--url', other_url, '--json')
    assert (code, json.loads(out)['text'], json.loads(out)['reasoning']) == (0, 'Hello', 'hm')
    assert set(_Other.bodies[-1]) == {'model', 'messages', 'stream', 'stream_options'}
