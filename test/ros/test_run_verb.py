# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The verb `run` as a user starts it: one turn, its JSON line, exit codes, two runs, signals."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from gemma_thor_ros.action import Chat
from gemma_thor_ros.cli import run
from gemma_thor_ros.client import ChatError
from gemma_thor_ros.msg import TokenChunk, ToolVerdict

LIMIT_S = 60.0
DRIVE = ('<|tool_call>call:drive{direction:<|"|>forward<|"|>,distance:DISTANCE,'
         'unit:<|"|>m<|"|>}<tool_call|><|tool_response>')


def scripted(*answers: str) -> list[str]:
    script = json.dumps([answer.replace('DISTANCE', '2') for answer in answers])
    return ['--set', 'model.path=scripted', '--set', f'model.script={script}']


def start(env: dict[str, str], *arguments: str,
          stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    program = Path(sys.executable).parent / 'gemma-thor'
    return subprocess.Popen([str(program), 'run', *arguments], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            stdin=stdin)


def children_of(process: subprocess.Popen[str]) -> dict[int, str]:
    """Return the command lines of a process's children."""
    listed = Path(f'/proc/{process.pid}/task/{process.pid}/children').read_text().split()
    return {int(pid): Path(f'/proc/{pid}/cmdline').read_text() for pid in listed}


def last_line(text: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(text.splitlines()[-1])
    return answer


@pytest.fixture
def env(ros_env: Any) -> dict[str, str]:
    return {**os.environ, **getattr(ros_env, 'env', ros_env)}


def test_one_turn_of_the_demo_model(env: dict[str, str]) -> None:
    process = start(env, '--prompt', 'drive two metres forward', '--json')
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    answer = last_line(out)
    before, after = answer['pose_before'], answer['pose_after']
    driven = math.hypot(after['x'] - before['x'], after['y'] - before['y'])
    assert driven == pytest.approx(2.0, abs=0.01)
    assert [call['name'] for call in answer['tool_calls']] == ['drive']
    assert answer['ok'] is True
    assert answer['text']


def test_a_refused_motion_and_a_cut_answer_are_no_success(env: dict[str, str]) -> None:
    far = DRIVE.replace('DISTANCE', '900')
    process = start(env, '--prompt', 'go', '--json', *scripted(far, 'I may not.<turn|>'))
    out, _ = process.communicate(timeout=LIMIT_S)
    answer = last_line(out)
    assert (process.returncode, answer['ok']) == (1, False)
    assert answer['tool_calls'][0]['status'] == 'refused'
    assert answer['pose_before'] == answer['pose_after']
    process = start(env, '--prompt', 'go', '--json', *scripted('word ' * 400 + '<turn|>'))
    out, _ = process.communicate(timeout=LIMIT_S)
    answer = last_line(out)
    assert (process.returncode, answer['ok']) == (1, False)
    assert 'cut after 256 tokens' in answer['error']


def test_second_run_on_the_same_domain_is_refused_and_the_first_goes_on(
        env: dict[str, str]) -> None:
    first = start(env, '--prompt', 'go', '--json', *scripted(DRIVE, 'I drove.<turn|>'))
    time.sleep(1.0)
    second = start(env, '--prompt', 'go', '--json', *scripted('no<turn|>'))
    out, _ = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 2
    assert 'ROS domain' in last_line(out)['error']
    out, err = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0, err
    assert last_line(out)['pose_after']['x'] == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize('answer', ['cancelled', 'whole', 'late'])
def test_ctrl_c_tells_of_the_calls_that_were_made(answer: str) -> None:
    """One call was done when the words about it were cut off, or had just ended."""
    verdict = ToolVerdict(name='drive', arguments_json='{"distance": 2}', status='succeeded')
    result = Chat.Result(text='I dro', tool_verdicts=[verdict])

    class Call:
        def __iter__(self) -> Iterator[Any]:
            yield TokenChunk(text='I dro')
            raise KeyboardInterrupt

        def cancel(self) -> None:
            self.cancelled = True

        def result(self, timeout_s: float) -> Any:
            assert self.cancelled
            if answer == 'whole':
                return result
            raise TimeoutError if answer == 'late' else ChatError(9, 'cancelled', result)

    out = io.StringIO()
    session: Any = SimpleNamespace(client=SimpleNamespace(start=lambda *_, **__: Call()))
    turn = run._Turn(session, Console(file=out), '')
    assert not turn.run('go')
    assert turn.error == 'stopped' and out.getvalue().splitlines()[-1] == 'stopped'
    known = answer != 'late'
    assert turn.text == ('I dro' if known else '')
    assert [call['arguments'] for call in turn.calls] == ([{'distance': 2}] if known else [])


@pytest.mark.parametrize(('arguments', 'words'), [
    (['--prompt', ' ', '--json'], '--prompt is empty'),
    (['--json'], '--json needs --prompt'),
    (['--prompt', 'x', '--json', '--set', 'sampling.temperature={'], 'is no YAML'),
    (['--prompt', 'x', '--json', '--set', 'engine.pages=1'], "unknown setting 'engine.pages'"),
    (['--prompt', 'x', '--json', '--set', 'model.path=/none'], '/none: no such folder'),
])
def test_wrong_arguments_are_one_sentence(env: dict[str, str], arguments: list[str],
                                          words: str) -> None:
    process = start(env, *arguments)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert words in err
    assert 'Traceback' not in err
    if '--prompt' in arguments and '--prompt is empty' not in words:
        assert words in last_line(out)['error']


def test_sigterm_ends_the_run_and_its_children(env: dict[str, str]) -> None:
    process = start(env, '--prompt', 'go', *scripted('word ' * 200 + '<turn|>'),
                    '--set', 'model.script_delay=0.2')
    limit = time.monotonic() + LIMIT_S
    children: dict[int, str] = {}
    while len(children) < 3 and time.monotonic() < limit:
        children = children_of(process)
        time.sleep(0.1)
    assert process.stdout is not None
    said = ''
    while 'word' not in said:                    # it is in the middle of its answer
        said += (piece := os.read(process.stdout.fileno(), 1000).decode())
        assert piece, said
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10.0)
    assert process.returncode == 128 + signal.SIGTERM
    assert children
    assert not any(Path(f'/proc/{pid}').exists() for pid in children)


def test_a_conversation_ends_with_the_reason_when_the_node_was_killed(
        env: dict[str, str]) -> None:
    process = start(env, *scripted('Hello.<turn|>'), stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write('hello\n')
    process.stdin.flush()
    seen = ''
    while 'Hello.' not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    (node,) = (pid for pid, command in children_of(process).items() if 'ros.node' in command)
    os.kill(node, signal.SIGKILL)
    out, _ = process.communicate('are you there?\n', timeout=20.0)
    assert process.returncode == 1
    assert 'llm_node ended with -9' in out
