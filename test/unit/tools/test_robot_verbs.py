# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The verbs of `gemma-thor robot` and `ros2 gemma` on a pretended node, and `tools check`."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tomllib
import types
from pathlib import Path

import pytest

pytest.importorskip('gemma_thor_ros.msg')

from gemma_thor_ros.cli.main import main
from gemma_thor_ros.ros import remote as remote_module
from gemma_thor_ros.ros.remote import Timing
from gemma_thor_ros.schema import ConfigError, ErrorCode, RequestError

ROOT = Path(__file__).parents[3]


class Call:
    def __init__(self, text):
        self.text = text

    def __iter__(self):
        for word in self.text.split(' '):
            yield types.SimpleNamespace(text=word + ' ')

    def result(self):
        from gemma_thor_ros.client import ChatError

        if self.text == 'fail':
            raise ChatError(3, 'the queue is full')
        return types.SimpleNamespace(text=self.text, tool_verdicts=[], rounds=1)


class Node:
    """What remote.Remote offers."""

    def __init__(self):
        self.asked = []

    def info(self):
        return {'model_name': 'demo', 'policy_tools': ['drive', 'say'], 'family': ''}

    def sessions(self):
        return [{'session_id': 'kitchen', 'owner': 'ros', 'messages': 2, 'tokens': 30,
                 'last_used': 1.0, 'busy': True}]  # fmt: skip

    def reset_session(self, session_id):
        if session_id == 'nobody':
            raise RequestError(ErrorCode.UNKNOWN_SESSION, "there is no session 'nobody'")
        return 1

    def save_session(self, session_id, name, with_cache):
        return name or session_id, 'nothing is cached' if with_cache else ''

    def restore_session(self, name, session_id, replace):
        return f'{session_id or name}{" replaced" * replace}', ''

    def chat(self):
        return self

    def start(self, prompt, **options):
        self.asked.append((prompt, options['session_id'], options['execute_tools']))
        return Call(prompt)

    def time_requests(self, prompt, count, max_tokens):
        for i in range(count):
            yield Timing(0.1 + i / 100, 0.1 + i / 100 + (max_tokens - 1) / 50, max_tokens)


@pytest.fixture
def node(monkeypatch):
    made = Node()

    @contextlib.contextmanager
    def remote(name):
        if name != '/llm_node':
            raise ConfigError(f'no node offers {name}/get_model_info')
        yield made

    monkeypatch.setattr(remote_module, 'remote', remote)
    return made


def output(capsys, *arguments):
    code = main(['robot', *arguments])
    return code, *capsys.readouterr()


def test_info_and_sessions(node, capsys):
    code, out, _ = output(capsys, 'info')
    assert code == 0 and 'demo' in out and 'drive, say' in out
    assert json.loads(output(capsys, 'info', '--json')[1])['policy_tools'] == ['drive', 'say']
    assert 'kitchen' in output(capsys, 'sessions')[1]
    assert json.loads(output(capsys, 'sessions', 'list', '--json')[1])[0]['messages'] == 2
    assert output(capsys, 'sessions', 'save', 'kitchen', '--as', 'monday')[1] == 'monday\n'
    assert output(capsys, 'sessions', 'restore', 'monday', '--replace')[1] == 'monday replaced\n'
    assert json.loads(output(capsys, 'sessions', 'reset', '*', '--json')[1]) == {'reset': 1}


def test_faults_are_sentences_and_exit_codes(node, capsys):
    code, _, error = output(capsys, 'sessions', 'reset', 'nobody')
    assert code == 2 and 'nobody' in error
    assert output(capsys, 'sessions', 'save', 'kitchen', '--with-cache') == (
        0, 'kitchen\n', 'nothing is cached\n')
    code, _, error = output(capsys, 'sessions', 'save')
    assert code == 2 and 'needs a name' in error
    code, _, error = output(capsys, 'info', '--node', '/elsewhere')
    assert code == 2 and '/elsewhere' in error
    code, _, error = output(capsys, 'chat', 'fail')
    assert code == 1 and 'queue is full' in error


def test_chat_with_words_and_with_lines(node, capsys, monkeypatch):
    code, out, _ = output(capsys, 'chat', 'hello', 'robot', '--session', 's', '--act')
    assert (code, out) == (0, 'hello robot \n')
    monkeypatch.setattr(sys, 'stdin', io.StringIO('one\n\ntwo\n'))
    code, out, _ = output(capsys, 'chat', '--json')
    assert [json.loads(line)['text'] for line in out.splitlines()] == ['one', 'two']
    assert node.asked == [('hello robot', 's', True), ('one', '', False), ('two', '', False)]


def test_bench_gives_medians(node, capsys):
    code, out, _ = output(capsys, 'bench', '--requests', '3', '--max-tokens', '51', '--json')
    report = json.loads(out)
    assert code == 0 and report['requests'] == 3
    assert report['ttft_ms'] == pytest.approx(110.0)
    assert report['ttft_ms_max'] == pytest.approx(120.0)
    assert report['decode_tok_s'] == pytest.approx(50.0)
    assert '50.0 tokens/s' in output(capsys, 'bench', '--max-tokens', '51')[1]
    with pytest.raises(SystemExit):
        main(['robot', 'bench', '--requests', '0'])


def test_a_policy_is_checked(tmp_path, capsys):
    assert main(['tools', 'check', 'demo', '--json']) == 0
    report = json.loads(capsys.readouterr().out)
    assert report['fault'] == '' and any(t['motion'] for t in report['tools'])
    assert all(t['schema']['function']['name'] == t['name'] for t in report['tools'])
    faulty = tmp_path / 'bad.yaml'
    faulty.write_text('version: 1\ntools:\n  drive: {}\n')
    assert main(['tools', 'check', str(faulty)]) == 1
    assert 'bad.yaml:' in capsys.readouterr().out
    assert main(['tools', 'check', str(tmp_path / 'none.yaml')]) == 1


def test_a_policy_whose_target_the_node_would_refuse_is_not_sound(tmp_path, capsys):
    text = ('version: 1\ntools:\n  x:\n    description: X.\n    motion: false\n'
            '    publish: {name: %s, type: std_msgs/msg/String}\n')
    file = tmp_path / 'p.yaml'
    for name in ('/clock', '/demo_robot/set_parameters', 'llm_node/chat', '~/chat',
                 'goal_guard/x'):
        file.write_text(text % name)
        assert main(['tools', 'check', str(file)]) == 1, name
        assert 'p.yaml:6: ' in (said := capsys.readouterr().out) and 'may not reach' in said
    file.write_text(text % 'display')
    assert main(['tools', 'check', str(file)]) == 0


def test_ros2_gemma_is_a_command_of_ros2cli(node, capsys, monkeypatch):
    """On a stand-in of the class that ros2cli gives; ros2cli itself is in no package registry."""
    command = types.ModuleType('ros2cli.command')
    command.CommandExtension = type('CommandExtension', (), {})
    monkeypatch.setitem(sys.modules, 'ros2cli', types.ModuleType('ros2cli'))
    monkeypatch.setitem(sys.modules, 'ros2cli.command', command)
    monkeypatch.delitem(sys.modules, 'gemma_thor_ros.cli.ros2_gemma', raising=False)
    from gemma_thor_ros.cli.ros2_gemma import GemmaCommand

    extension = GemmaCommand()
    parser = argparse.ArgumentParser()
    extension.add_arguments(parser, 'ros2')

    def ros2_gemma(*arguments):
        code = extension.main(parser=parser, args=parser.parse_args(arguments))
        return code, *capsys.readouterr()

    assert ros2_gemma('info', '--json')[0] == 0
    assert ros2_gemma('tools', 'check', 'demo')[0] == 0
    code, _, error = ros2_gemma('sessions', 'reset', 'nobody')
    assert code == 2 and 'nobody' in error
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices
    assert set(verbs) == {'chat', 'info', 'sessions', 'tools', 'bench'}


def test_pip_and_colcon_register_the_same_command():
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    points = project['entry-points']['ros2cli.command']
    colcon = (ROOT / 'cmake' / 'entry_points.txt').read_text()
    assert colcon == '[ros2cli.command]\n' + ''.join(f'{k} = {v}\n' for k, v in points.items())
