# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Verb `run`: node, endpoint and demo robot on this machine, and a conversation with the robot."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import socket
import sys
import uuid
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from gemma_thor_ros.cli.set_option import read_settings
from gemma_thor_ros.config import check
from gemma_thor_ros.schema import ConfigError

if TYPE_CHECKING:
    from gemma_thor_ros.demo.session import DemoSession, Reservations

USUAL_PORT = 8000
CANCEL_LIMIT_S = 5.0
HELP = """/help    this list
/where   where the robot is
/reset   forget the conversation
/quit    leave (also Ctrl-D); Ctrl-C stops an answer and the motion it started"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the verb."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'run',
        help='start node, endpoint and demo robot, and chat with the robot',
        description='Start everything on this machine and talk to the demo robot; with --prompt, '
        'run one turn and end. Exit code 0: answered, and every motion succeeded.',
    )
    parser.add_argument('--prompt', help='run one turn with these words and end')
    parser.add_argument(
        '--json',
        action='store_true',
        help='with --prompt: the last line is {text, tool_calls, pose_before, pose_after, ok}',
    )
    parser.add_argument(
        '--http-port',
        type=int,
        help='port of the endpoint (8000, or a free one when that is taken)',
    )
    parser.add_argument(
        '--set',
        action='append',
        default=[],
        metavar='NAME=VALUE',
        help='a setting of docs/settings.md, for example engine.context_length=1024',
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the demo; 0 = fine, 1 = a motion or the answer failed, 2 = it could not start."""
    if options.json and options.prompt is None:
        raise ConfigError('--json needs --prompt')
    if options.prompt is not None and not options.prompt.strip():
        raise ConfigError('--prompt is empty')
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return _run(options)
    except ConfigError as error:
        if options.json:
            print(json.dumps({'ok': False, 'error': str(error)}, ensure_ascii=False), flush=True)
        raise


def _run(options: argparse.Namespace) -> int:
    console = Console(highlight=False, soft_wrap=True)
    from gemma_thor_ros.demo.session import DemoSession, Reservations

    with contextlib.ExitStack() as stack:
        reservations = stack.enter_context(Reservations())
        settings = _settings(options, reservations)
        with _progress() as progress:
            bar = progress.add_task('starting', total=1.0)

            def report(stage: str, share: float) -> None:
                progress.update(bar, description=stage, completed=share)

            session = DemoSession(settings, report, reservations)
            session.start()
        stack.enter_context(contextlib.closing(session))
        console.print(
            f'Endpoint: http://127.0.0.1:{settings["http.port"]}/v1', style='dim', soft_wrap=True
        )
        if options.prompt is not None:
            return _one_turn(session, options.prompt, console, options.json)
        return _loop(session, console)


class _Turn:
    """One request to the robot, shown while it runs."""

    def __init__(self, session: DemoSession, console: Console, session_id: str) -> None:
        self._session = session
        self._console = console
        self._session_id = session_id
        self.error = ''
        self.text = ''
        self.calls: list[dict[str, Any]] = []

    def run(self, prompt: str) -> bool:
        """Run it; True when the answer came and every call succeeded."""
        from gemma_thor_ros.client import ChatError

        call = self._session.client.start(
            prompt,
            execute_tools=True,
            session_id=self._session_id,
            on_tool_event=self._on_tool_event,
        )
        result = None
        try:
            for chunk in call:
                if chunk.reasoning:
                    self._console.print(Text(chunk.reasoning, style='dim italic'), end='')
                self._console.print(Text(chunk.text), end='')
            self._console.print()
            result = call.result()
        except KeyboardInterrupt:
            call.cancel()
            self._console.print()
            try:
                result = call.result(CANCEL_LIMIT_S)
            except ChatError as error:
                result = error.result  # what was done before is told
            except TimeoutError:
                pass
            self.error = 'stopped'
        except ChatError as error:
            result, self.error = error.result, error.message
        if result is None:
            self._console.print(Text(self.error, style='red'))
            return False
        self.text = result.text
        if not self.error and result.finish_reason == 'length':
            self.error = f'the answer was cut after {result.usage.completion_tokens} tokens'
        elif not self.error and not (result.text or result.tool_verdicts):
            self.error = 'the answer is empty'
        if self.error:
            self._console.print(Text(self.error, style='red'))
        self.calls = [
            {
                'name': verdict.name,
                'arguments': json.loads(verdict.arguments_json),
                'status': verdict.status,
                'reason': verdict.reason,
            }
            for verdict in result.tool_verdicts
        ]
        return not self.error and all(call['status'] == 'succeeded' for call in self.calls)

    def _on_tool_event(self, event: Any) -> None:
        from gemma_thor_ros.demo.session import call_text

        if event.event == event.PROPOSED:
            line = f'\n  {call_text(event.name, event.arguments_json)}'
        elif event.event in (event.SENT, event.FINISHED, event.REFUSED, event.STOPPED):
            words = {event.SENT: 'sent to ' + event.target, event.REFUSED: 'refused'}
            line = f'  {words.get(event.event, event.status)} {event.detail}'.rstrip()
        else:
            return
        self._console.print(Text(line, style='cyan'))


def _one_turn(session: DemoSession, prompt: str, console: Console, as_json: bool) -> int:
    before = session.pose()
    turn = _Turn(session, console, '')
    ok = turn.run(prompt)
    after = session.pose()
    console.print(_motion(before, after), style='dim')
    if as_json:
        print(
            json.dumps(
                {
                    'text': turn.text,
                    'tool_calls': turn.calls,
                    'pose_before': before.as_dict(),
                    'pose_after': after.as_dict(),
                    'ok': ok,
                    **({'error': turn.error} if turn.error else {}),
                },
                ensure_ascii=False,
            ),
            flush=True,
        )
    return 0 if ok else 1


def _loop(session: DemoSession, console: Console) -> int:
    console.print(
        'Talk to the robot: "drive two metres forward", "turn left 90 degrees", "go to the dock". '
        '/help lists the commands.',
        style='dim',
        markup=False,
    )
    session_id = f'terminal-{uuid.uuid4().hex[:8]}'
    while True:
        try:
            line = console.input('[bold]> [/bold]').strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return 0
        if line == '/quit':
            return 0
        if _has_ended(session, console):
            return 1
        if line == '/where':
            pose = session.pose()
            console.print(_motion(pose, pose), style='dim')
        elif line == '/reset':
            session_id = f'terminal-{uuid.uuid4().hex[:8]}'
        elif line.startswith('/'):
            console.print(HELP, style='dim', markup=False)
        elif line:
            before = session.pose()
            _Turn(session, console, session_id).run(line)
            if _has_ended(session, console):
                return 1
            console.print(_motion(before, session.pose()), style='dim')


def _has_ended(session: DemoSession, console: Console) -> bool:
    fault = session.fault()
    if fault:
        console.print(Text(fault, style='red'))
    return bool(fault)


def _motion(before: Any, after: Any) -> str:
    text = f'robot at x {after.x:.2f} m, y {after.y:.2f} m, heading {math.degrees(after.yaw):.0f}°'
    if before != after:
        text += f' (was x {before.x:.2f}, y {before.y:.2f}, {math.degrees(before.yaw):.0f}°)'
    return text


def _settings(options: argparse.Namespace, reservations: Reservations) -> dict[str, Any]:
    """Return the node's settings from the command line."""
    settings = read_settings(options.set)
    if options.http_port is not None:
        settings['http.port'] = check('http.port', options.http_port)
    elif 'http.port' not in settings:
        settings['http.port'] = _usual_port(reservations)
    if settings['http.port'] == 0:
        settings['http.port'] = _free_port(0)
    return settings


def _usual_port(reservations: Reservations) -> int:
    """Return 8000, or a free port when another run or another program has that one."""
    if reservations.take(f'port-{USUAL_PORT}'):
        with contextlib.suppress(OSError):
            return _free_port(USUAL_PORT)
    return _free_port(0)


def _free_port(wanted: int) -> int:
    """Return `wanted` if it can be bound (0 = any free port); raises OSError otherwise."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(('127.0.0.1', wanted))
        return int(probe.getsockname()[1])


def _progress() -> Progress:
    return Progress(
        TextColumn('{task.description}'),
        BarColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not break the clean end
    raise SystemExit(128 + number)
