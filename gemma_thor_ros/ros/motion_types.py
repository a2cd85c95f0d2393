# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which ROS types are known to move robots, so that no policy can call them harmless.

A table of names, taken from the packages' own definitions: what is not in it has to be judged by
whoever writes the policy. Knows no ROS and no policy.
"""

from __future__ import annotations

# All actions of these packages move something, but for those named.
_MOVING_PACKAGES = {
    'control_msgs': (),
    'franka_msgs': ('ErrorRecovery',),
    'irobot_create_msgs': ('AudioNoteSequence', 'LedAnimation'),
    'moveit_msgs': ('GlobalPlanner',),
    'moveit_task_constructor_msgs': (),
    'nav2_msgs': ('ComputePathThroughPoses', 'ComputePathToPose', 'ComputeRoute',
                  'DummyBehavior', 'SmoothPath', 'Wait'),
    'opennav_coverage_msgs': ('ComputeCoveragePath',),
    'opennav_docking_msgs': (),
    'spot_msgs': (),
    'turtlesim': (),
}
_MOVING = frozenset((
    'gemma_thor_ros/action/Dock', 'gemma_thor_ros/action/Drive', 'gemma_thor_ros/action/RunChild',
    'gemma_thor_ros/action/Turn',
    'ackermann_msgs/msg/AckermannDrive', 'ackermann_msgs/msg/AckermannDriveStamped',
    'control_msgs/msg/DynamicJointState', 'control_msgs/msg/JointJog',
    'control_msgs/msg/MultiDOFCommand', 'control_msgs/msg/SteeringControllerCommand',
    'geographic_msgs/msg/GeoPose', 'geographic_msgs/msg/GeoPoseStamped',
    'geometry_msgs/msg/Accel', 'geometry_msgs/msg/AccelStamped', 'geometry_msgs/msg/Pose',
    'geometry_msgs/msg/PoseArray', 'geometry_msgs/msg/PoseStamped', 'geometry_msgs/msg/Twist',
    'geometry_msgs/msg/TwistStamped', 'geometry_msgs/msg/TwistWithCovariance',
    'geometry_msgs/msg/TwistWithCovarianceStamped', 'geometry_msgs/msg/Wrench',
    'geometry_msgs/msg/WrenchStamped', 'mavros_msgs/msg/AttitudeTarget',
    'mavros_msgs/msg/GlobalPositionTarget', 'mavros_msgs/msg/ManualControl',
    'mavros_msgs/msg/OverrideRCIn', 'mavros_msgs/msg/PositionTarget', 'nav_msgs/msg/Goals',
    'nav_msgs/msg/Path', 'px4_msgs/msg/TrajectorySetpoint', 'px4_msgs/msg/VehicleCommand',
    'sensor_msgs/msg/JointState', 'sensor_msgs/msg/Joy',
    'std_msgs/msg/Float32MultiArray', 'std_msgs/msg/Float64MultiArray',  # ros2_control commands
    'trajectory_msgs/msg/JointTrajectory', 'trajectory_msgs/msg/JointTrajectoryPoint',
    'trajectory_msgs/msg/MultiDOFJointTrajectory',
    'mavros_msgs/srv/CommandInt', 'mavros_msgs/srv/CommandLong', 'mavros_msgs/srv/CommandTOL',
    'mavros_msgs/srv/CommandVtolTransition', 'moveit_msgs/srv/ExecuteKnownTrajectory',
    'turtlesim/srv/TeleportAbsolute', 'turtlesim/srv/TeleportRelative'))


def moves_robots(type_name: str) -> bool:
    """Whether a type such as `nav2_msgs/action/Spin` is known to move robots."""
    package, _, rest = type_name.partition('/')
    kind, _, name = rest.partition('/')
    if kind == 'action' and package in _MOVING_PACKAGES:
        return name not in _MOVING_PACKAGES[package]
    return type_name in _MOVING
