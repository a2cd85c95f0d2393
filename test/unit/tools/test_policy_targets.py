# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What a tool may stand for, and that motion goes through what can be stopped."""

import pytest

from gemma_thor_ros.ros.checks import TurnContext, check_call
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome
from gemma_thor_ros.schema import ConfigError, FinishReason, ToolCall

POLICY = """\
version: 1
tools:
  creep:
    description: Creep ahead.
    motion: true
    publish:
      name: cmd_vel
      type: geometry_msgs/msg/Twist
      rate_hz: 20
      max_duration_s: 3
      duration_arg: seconds
      stop_message: {}
    args:
      speed: {type: number, min: 0, max: 0.2, field: linear.x}
      seconds: {type: number, min: 0.1, max: 3, default: 1}
  show:
    description: Show a text.
    motion: false
    publish: {name: display, type: std_msgs/msg/String}
    args:
      text: {type: string, field: data}
  lamp:
    description: Switch the lamp.
    motion: false
    service: {name: lamp, type: std_srvs/srv/SetBool}
    timeout_s: 2
    args:
      enabled: {type: boolean, field: data}
  battery:
    description: Read the battery.
    motion: false
    read: {name: battery, type: sensor_msgs/msg/BatteryState, max_age_s: 5}
    result:
      percentage: {field: percentage}
  exposure:
    description: Set the exposure.
    motion: false
    parameter: {node: camera, name: exposure}
    args:
      exposure: {type: number, min: 0, max: 1, field: value}
"""


def test_each_kind_is_read() -> None:
    tools = parse_policy(POLICY).tools
    assert [tool.target.kind for tool in tools.values()] == [
        'publish', 'publish', 'service', 'read', 'parameter']
    creep = tools['creep'].target
    assert (creep.rate_hz, creep.max_duration_s, creep.stop_message) == (20.0, 3.0, {})
    assert tools['show'].target.stop_message is None and tools['show'].target.rate_hz == 0.0
    assert tools['exposure'].target.parameter == 'exposure'
    assert [tool.target.guarded for tool in tools.values()] == [True, True, False, False, False]


def test_a_duration_is_an_argument_with_limits() -> None:
    policy = parse_policy(POLICY)

    def duration(**arguments: object) -> float:
        return check_call(policy, ToolCall('c', 'creep', {'speed': 0.1, **arguments}),
                          TurnContext(FinishReason.TOOL_CALLS)).duration_s

    assert duration(seconds=2) == 2.0 and duration() == 1.0
    with pytest.raises(CallRefusedError) as caught:
        duration(seconds=3.5)
    assert (caught.value.outcome, caught.value.reason) == (
        Outcome.REFUSED_RANGE, 'seconds 3.5 is above the limit of 3')
    fixed = parse_policy(POLICY.replace('      duration_arg: seconds\n', '').replace(
        '      seconds: {type: number, min: 0.1, max: 3, default: 1}\n', ''))
    checked = check_call(fixed, ToolCall('c', 'creep', {'speed': 0.1}),
                         TurnContext(FinishReason.TOOL_CALLS))
    assert checked.duration_s == 3.0


@pytest.mark.parametrize(('old', 'new', 'line', 'words'), [
    ('      stop_message: {}\n', '', 6, 'needs rate_hz, max_duration_s and stop_message'),
    ('      rate_hz: 20\n', '', 6, 'needs rate_hz and max_duration_s'),
    ('      max_duration_s: 3\n', '', 6, 'needs rate_hz and max_duration_s'),
    ('rate_hz: 20', 'rate_hz: 100', 9, 'rate_hz'),
    ('max_duration_s: 3', 'max_duration_s: 2', 15, 'above max_duration_s'),
    ('motion: true', 'motion: false', 8, 'geometry_msgs/msg/Twist moves robots'),
    ('default: 1}', 'default: 1, field: linear.y}', 11, 'is no number argument'),
    ('min: 0.1, max: 3, default: 1', 'max: 3, default: 1', 15, 'needs a min above 0'),
    ('max: 3, default: 1', 'max: 3, required: false', 15, 'must be required or have a default'),
    ('type: std_msgs/msg/String}', 'type: std_msgs/msg/String, stop_message: {}}', 19,
     'a single message is not stopped'),
    ('publish: {name: display', 'service: {name: display', 19, 'service.type'),
    ('    publish: {name: display, type: std_msgs/msg/String}\n', '', 16,
     'show needs one of action, service, publish, read, parameter'),
    ('    service: {name: la', '    read: {name: a, type: b/msg/C}\n    service: {name: la', 22,
     'not service and read'),
    ('    timeout_s: 2\n', '', 22, 'lamp lacks timeout_s'),
    ('motion: false\n    service', 'motion: true\n    service', 24, 'an action or a publish'),
    ('motion: false\n    read', 'motion: true\n    read', 31, 'an action or a publish'),
    ('motion: false\n    parameter', 'motion: true\n    parameter', 37, 'an action or a publish'),
    ('    result:\n      percentage: {field: percentage}\n', '', 29, 'so it needs a result'),
    ('    result:\n', '    args: {x: {type: string, field: x}}\n    result:\n', 33,
     'takes no arguments'),
    ('default: 1}', 'default: 4}', 15, 'default 4 of seconds lies outside 0.1 to 3'),
    ('stop_message: {}', 'stop_message: {linear.x: 1.0}', 12, 'linear.x is 1.0 in the message'),
    ('min: 0, max: 0.2,', 'enum: [0.1, 3], min: 0, max: 0.2,', 14,
     'enum value 3 of speed lies outside 0 to 0.2'),
    ('field: value', 'field: exposure', 39, 'has field: value'),
    ('field: value', 'required: false, field: value', 40, 'must be required'),
    ('name: exposure}', 'name: use_sim_time}', 38, 'no parameter for tools'),
    ('name: exposure}', 'name: qos_overrides./tf.depth}', 38, 'no parameter for tools'),
    ('field: value}\n', 'field: value}\n    constants: {x: 1}\n', 41, 'no fields for constants'),
    ('field: value}\n', 'field: value}\n    result: {x: {field: x}}\n', 41, 'no result fields'),
])
def test_faults_name_their_line(old: str, new: str, line: int, words: str) -> None:
    assert POLICY.count(old) == 1, old
    with pytest.raises(ConfigError) as caught:
        parse_policy(POLICY.replace(old, new), 'p.yaml')
    text = str(caught.value)
    assert text.startswith(f'p.yaml:{line}: ') and words in text, text


TARGET = """\
version: 1
tools:
  go:
    description: Go.
    motion: false
    {target}
    timeout_s: 2
"""


@pytest.mark.parametrize('kind_and_type', [
    *(f'action: gemma_thor_ros/action/{name}' for name in ('Drive', 'Turn', 'Dock', 'RunChild')),
    *(f'action: nav2_msgs/action/{name}' for name in (
        'NavigateToPose', 'NavigateThroughPoses', 'FollowPath', 'FollowWaypoints', 'Spin',
        'BackUp', 'DriveOnHeading', 'DockRobot', 'UndockRobot', 'AssistedTeleop')),
    'action: control_msgs/action/FollowJointTrajectory', 'action: moveit_msgs/action/MoveGroup',
    'action: control_msgs/action/GripperCommand', 'action: turtlesim/action/RotateAbsolute',
    'publish: std_msgs/msg/Float64MultiArray', 'publish: geometry_msgs/msg/Pose',
    'service: turtlesim/srv/TeleportRelative'])
def test_what_is_known_to_move_can_not_be_called_harmless(kind_and_type: str) -> None:
    kind, type_name = kind_and_type.split(': ')
    with pytest.raises(ConfigError, match=f'^p.yaml:6: {type_name} moves robots'):
        parse_policy(TARGET.format(target=f'{kind}: {{name: go, type: {type_name}}}'), 'p.yaml')


@pytest.mark.parametrize('type_name', [
    'gemma_thor_ros/action/Say', 'nav2_msgs/action/ComputePathToPose', 'demo_msgs/action/Look'])
def test_what_moves_nothing_needs_no_motion(type_name: str) -> None:
    text = TARGET.format(target=f'action: {{name: go, type: {type_name}}}')
    assert not parse_policy(text).tools['go'].motion
