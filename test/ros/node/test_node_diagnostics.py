# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A running node looked at from outside: /diagnostics, QoS, the verbs of `ros2 gemma`."""

from __future__ import annotations

import json

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from gemma_thor_ros.cli.main import main
from gemma_thor_ros.msg import Sentence, TokenChunk
from gemma_thor_ros.srv import Ask

DEMO_TOOLS = {'tools.policy_file': 'demo', 'tools.guard': 'nobody'}
OVERRIDES = {
    'qos_overrides./llm_node/sentences.publisher.reliability': 'best_effort',
    'qos_overrides./llm_node/tokens.publisher.depth': 500,
}


@pytest.fixture(scope='module')
def node(peer, start_module_node):
    process = start_module_node(**{'model.script': ['Here.<turn|>'], **DEMO_TOOLS, **OVERRIDES})
    peer.wait_active(process)
    return process


def test_diagnostics_and_qos(peer, node):
    arrays = peer.collect(DiagnosticArray, '/diagnostics', 10)
    assert peer.call(Ask, 'ask', prompt='hi').text == 'Here.'
    assert peer.call(Ask, 'ask', prompt='').error_code != 0

    for name, reliability in (
        ('sentences', ReliabilityPolicy.BEST_EFFORT), ('tokens', ReliabilityPolicy.RELIABLE)
    ):  # fmt: skip
        info = peer.node.get_publishers_info_by_topic(f'/llm_node/{name}')
        assert info[0].qos_profile.reliability == reliability, name
    # Both ask for more than is offered: one because of the override, one by itself.
    asks = QoSProfile(depth=5, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    peer.node.create_subscription(Sentence, '/llm_node/sentences', lambda sentence: None, 5)
    peer.node.create_subscription(TokenChunk, '/llm_node/tokens', lambda chunk: None, asks)

    def statuses():
        return {s.name.split(': ')[1]: s for s in arrays[-1].status} if arrays else {}

    def figures(part):
        return {v.key: v.value for v in statuses()[part].values}

    peer.until(lambda: arrays and figures('engine')['incompatible_qos'] == '2', 10.0)
    engine = figures('engine')
    assert 'asks for more than is offered' in engine['last_incompatible_qos']
    assert engine['requests_answered'] == '1' and engine['kv_used'] == '0%'
    assert engine['last_refusal'] == '' or 'prompt' in engine['last_refusal']
    assert {'prefill_tokens_per_s', 'preemptions', 'draft_acceptance'} <= set(engine)
    assert int(figures('machine')['memory_total_mib']) > 0
    tools = statuses()['tools']
    assert tools.level == b'\x02' and 'has not been heard' in tools.message
    assert figures('tools')['stopped'] == 'False'
    assert statuses()['packages'].name == 'llm_node: packages'
    assert '/llm_node/tokens asks for more than is offered: DURABILITY' in node.log
    assert '/llm_node/sentences asks for more than is offered: RELIABILITY' in node.log


def test_verbs_of_the_command_line(peer, node, capsys):
    def verb(*arguments):
        code = main(['robot', *arguments, '--json'])
        out, error = capsys.readouterr()
        return code, json.loads(out) if out else error

    code, facts = verb('info')
    assert code == 0 and facts['model_name'] == 'scripted' and 'drive' in facts['policy_tools']
    code, answer = verb('chat', 'hello', '--session', 'terminal')
    assert code == 0, answer
    assert (code, answer['text'], answer['rounds']) == (0, 'Here.', 1)
    code, found = verb('sessions')
    assert [(s['session_id'], s['messages']) for s in found] == [('terminal', 2)]
    assert verb('sessions', 'reset', 'terminal') == (0, {'reset': 1})
    code, error = verb('sessions', 'save', 'terminal')
    assert code == 2 and 'session' in error
    code, report = verb('bench', '--requests', '2', '--max-tokens', '5')
    assert code == 0 and report['requests'] == 2 and 0.0 < report['ttft_ms'] < report['total_ms']
