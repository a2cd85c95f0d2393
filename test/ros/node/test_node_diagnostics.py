# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""/diagnostics of a running node, overridden QoS, subscribers that do not fit."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from gemma_thor_ros.msg import Sentence, TokenChunk
from gemma_thor_ros.srv import Ask

DEMO_TOOLS = {'tools.policy_file': 'demo', 'tools.guard': 'nobody'}
OVERRIDES = {
    'qos_overrides./llm_node/tokens.publisher.reliability': 'best_effort',
    'qos_overrides./llm_node/tokens.publisher.depth': 7,
}


def test_diagnostics_and_qos(peer, start_module_node):
    node = start_module_node(**{'model.script': ['Here.<turn|>'], **DEMO_TOOLS, **OVERRIDES})
    peer.wait_active(node)
    arrays = peer.collect(DiagnosticArray, '/diagnostics', 10)
    assert peer.call(Ask, 'ask', prompt='hi').text == 'Here.'
    assert peer.call(Ask, 'ask', prompt='').error_code != 0

    info = peer.node.get_publishers_info_by_topic('/llm_node/tokens')
    assert info[0].qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT
    # Both ask for more than is offered: one because of the override, one by itself.
    asks = QoSProfile(depth=5, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    peer.node.create_subscription(TokenChunk, '/llm_node/tokens', lambda chunk: None, 5)
    peer.node.create_subscription(Sentence, '/llm_node/sentences', lambda sentence: None, asks)

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
    assert '/llm_node/sentences asks for more than is offered: DURABILITY' in node.log
    assert '/llm_node/tokens asks for more than is offered: RELIABILITY' in node.log
