# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A process with a heartbeat and a tool bridge, as the language model node has them.

    bridge_process.py POLICY TOOL ARGUMENTS_JSON

Runs one call and prints `event <step> <status> <detail>` lines and `verdict <json>`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading

import rclpy
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import SingleThreadedExecutor

from gemma_thor_ros.ros.bridge import ToolBridge
from gemma_thor_ros.ros.checks import TurnContext
from gemma_thor_ros.ros.heartbeat import Heartbeat
from gemma_thor_ros.ros.policy import load_policy
from gemma_thor_ros.ros.verdict import CallEvent
from gemma_thor_ros.schema import FinishReason, ToolCall


def say(line: str) -> None:
    sys.stdout.write(f'{line}\n')
    sys.stdout.flush()


def main() -> None:
    policy, tool, arguments = sys.argv[1:]
    rclpy.init()
    node = rclpy.create_node('llm_node')
    heartbeat = Heartbeat(node, lambda: True)
    bridge = ToolBridge(node, load_policy(policy), instance_id=heartbeat.instance_id,
                        callback_group=ReentrantCallbackGroup())
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    thread = threading.Thread(target=executor.spin, daemon=True)
    thread.start()
    heartbeat.start()

    def on_event(event: CallEvent) -> None:
        say(f'event {event.step.name} {event.status} {event.detail}')

    verdict = bridge.run(ToolCall('c1', tool, json.loads(arguments)), request_id='r1',
                         turn=TurnContext(FinishReason.TOOL_CALLS), on_event=on_event)
    fields = {**dataclasses.asdict(verdict), 'goal_id': verdict.goal_id.hex(),
              'outcome': verdict.outcome.name}
    say(f'verdict {json.dumps(fields)}')
    heartbeat.stop()
    executor.shutdown()
    thread.join(2.0)
    node.destroy_node()
    rclpy.try_shutdown()


if __name__ == '__main__':
    main()
