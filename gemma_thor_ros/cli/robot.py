# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor robot VERB` and `ros2 gemma VERB`: look at a running node, over ROS.

info, sessions, chat and bench; each takes the name of the node. What is asked and measured is
ros/remote.py's; this file shows it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from gemma_thor_ros.cli import tools
from gemma_thor_ros.schema import ConfigError

DEFAULT_NODE = '/llm_node'
FEEDBACK_PERIOD_S = 1.0
MAX_DETAIL = 120  # characters of a line


def add_parser(subparsers: Any, name: str = 'robot') -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help='look at a running node, over ROS'
    )
    verbs = parser.add_subparsers(dest='robot_verb', metavar='VERB', required=True)
    add_verbs(verbs)
    tools.add_parser(verbs)


def add_verbs(verbs: Any) -> None:
    """Declare the verbs themselves, for `ros2 gemma` too."""
    info = verbs.add_parser('info', help='what is loaded, and what the engine does')
    sessions = verbs.add_parser('sessions', help='list, reset, save or restore conversations')
    sessions.add_argument(
        'what', nargs='?', default='list', choices=('list', 'reset', 'save', 'restore')
    )
    sessions.add_argument('id', nargs='?', default='', help="session, or the saved file's name")
    sessions.add_argument('--as', dest='other', default='', help='name to save or restore under')
    sessions.add_argument('--replace', action='store_true', help='restore over a session')
    sessions.add_argument('--with-cache', action='store_true',
                          help='save the KV pages too: the next turn need not be computed anew')
    chat = verbs.add_parser('chat', help='ask once, or talk until the end of the input')
    chat.add_argument('prompt', nargs='*', help='words; none = read lines')
    chat.add_argument('--session', default='', help='keep the conversation under this name')
    chat.add_argument('--act', action='store_true', help="let the model use the robot's tools")
    bench = verbs.add_parser('bench', help='time requests over ROS, one after the other')
    bench.add_argument('--requests', type=_count, default=10)
    bench.add_argument('--max-tokens', type=_count, default=64)
    bench.add_argument('--prompt', default='Describe what a robot does all day.')
    for parser in (info, sessions, chat, bench):
        parser.add_argument('--node', default=DEFAULT_NODE, help=f'default: {DEFAULT_NODE}')
        parser.add_argument('--json', action='store_true', help='print as JSON')


def run(options: argparse.Namespace) -> int:
    """Run a verb; ConfigError without a node, RequestError when it refuses."""
    if options.robot_verb == 'tools':  # needs no node
        return tools.run(options)
    verb: Callable[[Any, argparse.Namespace], int] = _VERBS[options.robot_verb]
    with importlib.import_module('gemma_thor_ros.ros.remote').remote(options.node) as remote:
        return verb(remote, options)


def info(remote: Any, options: argparse.Namespace) -> int:
    """Show the model and the engine's figures."""
    facts = remote.info()
    if options.json:
        print(json.dumps(facts))
        return 0
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        shown = ', '.join(value) if isinstance(value, list) else str(value)
        table.add_row(name.replace('_', ' '), shown or '-')
    Console(highlight=False).print(table)
    return 0


def sessions(remote: Any, options: argparse.Namespace) -> int:
    """List, reset, save or restore conversations."""
    if options.what == 'list':
        return _list(remote.sessions(), options.json)
    if not options.id:
        raise ConfigError(f'sessions {options.what} needs a name')
    warning = ''
    if options.what == 'reset':
        answer: Any = remote.reset_session(options.id)
    elif options.what == 'save':
        answer, warning = remote.save_session(options.id, options.other, options.with_cache)
    else:
        answer, warning = remote.restore_session(options.id, options.other, options.replace)
    if warning:
        print(warning, file=sys.stderr)
    print(json.dumps({options.what: answer}) if options.json else answer)
    return 0


def chat(remote: Any, options: argparse.Namespace) -> int:
    """Ask with the words of the command line, or with each line of the input."""
    client = remote.chat()
    prompts = [' '.join(options.prompt)] if options.prompt else _lines(sys.stdin)
    code = 0
    for prompt in prompts:
        code = max(code, _turn(client, prompt, options))
    return code


def bench(remote: Any, options: argparse.Namespace) -> int:
    """Time requests; medians on standard output."""
    timings = remote.time_requests(options.prompt, options.requests, options.max_tokens)
    console = Console(stderr=True)
    bar = track(
        timings, 'requests', total=options.requests, console=console,
        disable=not console.is_terminal,
    )  # fmt: skip
    report = summary(list(bar))
    print(json.dumps(report) if options.json else _words(report))
    return 0


def summary(timings: Sequence[Any]) -> dict[str, float]:
    """Return medians and the slowest first token of a benchmark."""
    rates = [
        (t.num_tokens - 1) / (t.total_s - t.first_token_s)
        for t in timings
        if t.num_tokens > 1 and t.total_s > t.first_token_s
    ]
    first = [t.first_token_s * 1000.0 for t in timings]
    return {
        'requests': len(timings),
        'ttft_ms': statistics.median(first),
        'ttft_ms_max': max(first),
        'total_ms': statistics.median(t.total_s * 1000.0 for t in timings),
        'decode_tok_s': statistics.median(rates) if rates else 0.0,
    }


_VERBS = {'info': info, 'sessions': sessions, 'chat': chat, 'bench': bench}


def _turn(client: Any, prompt: str, options: argparse.Namespace) -> int:
    from gemma_thor_ros.client import ChatError  # imports rclpy

    call = client.start(
        prompt, session_id=options.session, execute_tools=options.act,
        on_tool_event=None if options.json else _EventLines().show,
    )  # fmt: skip
    try:
        for chunk in call:
            if not options.json:
                print(chunk.text, end='', flush=True)
        result = call.result()
    except ChatError as error:
        print(f'gemma: {error}', file=sys.stderr)
        return 1
    if options.json:
        verdicts = [
            {'name': v.name, 'status': v.status, 'reason': v.reason} for v in result.tool_verdicts
        ]
        print(json.dumps({'text': result.text, 'tools': verdicts, 'rounds': result.rounds}))
    else:
        print()
    return 0


class _EventLines:
    """What becomes of calls: a line when that changes, and one a second of what a goal tells."""

    def __init__(self) -> None:
        self._last = ('', '')  # call and status of the line before
        self._shown = 0.0

    def show(self, event: Any) -> None:
        """Print an event if it says more than the line before."""
        now, what = time.monotonic(), (event.call_id, event.status)
        if not event.status or (what == self._last and now - self._shown < FEEDBACK_PERIOD_S):
            return
        self._last, self._shown = what, now
        detail = ''.join(c if c.isprintable() else ' ' for c in event.detail)
        cut = detail if len(detail) <= MAX_DETAIL else f'{detail[:MAX_DETAIL]}...'
        print(f'[{event.name}: {event.status}{cut and f": {cut}"}]', file=sys.stderr)


def _list(found: Sequence[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        print(json.dumps(found))
        return 0
    table = Table('session', 'owner', 'messages', 'tokens', 'last used', '')
    for session in found:
        used = time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(session['last_used']))
        table.add_row(
            session['session_id'], session['owner'], str(session['messages']),
            str(session['tokens']), used, 'busy' if session['busy'] else '',
        )  # fmt: skip
    Console(highlight=False).print(table)
    return 0


def _words(report: dict[str, float]) -> str:
    return (
        f'{report["requests"]} requests: first token after {report["ttft_ms"]:.0f} ms (slowest '
        f'{report["ttft_ms_max"]:.0f} ms), {report["decode_tok_s"]:.1f} tokens/s, whole answer '
        f'after {report["total_ms"]:.0f} ms; medians, over ROS'
    )


def _lines(stream: Any) -> Any:
    return (line.strip() for line in stream if line.strip())


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f'{text} is not at least 1')
    return value
