# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Start the language model node, its goal guard and, for a first look, the demo robot.

    ros2 launch gemma_thor_ros llm.launch.py
    ros2 launch gemma_thor_ros llm.launch.py params_file:=robot.yaml namespace:=robot1

An argument left empty leaves the setting to the parameter file. The node brings itself up (its
setting ros.autostart); this file only starts processes, and restarts the ones that died.
"""
import pathlib
import time

from launch import LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
    TimerAction,
)
from launch.event_handlers import OnProcessExit
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

PACKAGE = 'gemma_thor_ros'
# share/gemma_thor_ros/config where installed, config/ in a source tree.
DEFAULT_PARAMS = str(pathlib.Path(__file__).resolve().parent.parent / 'config' / 'llm.yaml')

ARGUMENTS = (
    ('params_file', DEFAULT_PARAMS, 'YAML file with the settings of both nodes.'),
    ('model', '', "Checkpoint folder, or 'demo' (setting model.path)."),
    ('namespace', '', 'Namespace of all nodes.'),
    ('autostart', '', 'true or false: configure and activate by itself (ros.autostart).'),
    ('http_port', '', 'Port of the HTTP endpoint, 0 = a free one (http.port).'),
    ('tools_policy', '', "Tool policy file, or 'demo' (tools.policy_file)."),
    ('demo_robot', 'auto',
     "true or false: start the simulated robot; 'auto' = with the default parameter file and "
     'the demo policy alone.'),
    ('use_sim_time', 'false', 'true or false: take the time from /clock.'),
    ('log_level', 'info', 'debug, info, warn, error or fatal.'),
)

# Back-off between restarts of the node. One that has run for STEADY_S begins anew.
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
STEADY_S = 120.0
# A restart cannot help: 0 is a wanted end, 2 a wrong setting or file, which the log explains.
FINAL_EXIT_CODES = (0, 2)


class Restarts:
    """Starts an action again when its process has died, each time after a longer pause.

    make_action: returns a new action, since one launch action runs once
    clock: seconds, monotonic
    """

    def __init__(self, make_action, clock):
        self._make_action = make_action
        self._clock = clock
        self._delay_s = FIRST_DELAY_S
        self._started_s = 0.0

    def start(self):
        """Return the actions that start the process and watch over it."""
        action = self._make_action()
        self._started_s = self._clock()
        watch = OnProcessExit(target_action=action, on_exit=self._on_exit)
        return [RegisterEventHandler(watch), action]

    def _on_exit(self, event, context):
        if context.is_shutdown or event.returncode in FINAL_EXIT_CODES:
            return []
        if self._clock() - self._started_s >= STEADY_S:
            self._delay_s = FIRST_DELAY_S
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, LONGEST_DELAY_S)
        note = f'{event.process_name} ended with {event.returncode}; next start in {delay_s:g} s'
        again = OpaqueFunction(function=lambda _context: self.start())
        return [LogInfo(msg=note), TimerAction(period=delay_s, actions=[again])]


def parse_bool(name, value):
    """Return the truth value of a launch argument, or raise ValueError naming it."""
    lowered = value.strip().lower()
    if lowered not in ('true', 'false'):
        raise ValueError(f'launch argument {name} must be true or false, not {value!r}')
    return lowered == 'true'


def text(value):
    """Return a parameter that stays a text even where YAML would read a number, as in '26'."""
    return ParameterValue(value, value_type=str)


def overrides(given):
    """Return the node's settings that were given as launch arguments, typed, by dotted name."""
    settings = {}
    if given['model']:
        settings['model.path'] = text(given['model'])
    if given['autostart']:
        settings['ros.autostart'] = parse_bool('autostart', given['autostart'])
    if given['http_port']:
        if not given['http_port'].isdecimal():
            raise ValueError('launch argument http_port must be a number, '
                             f'not {given["http_port"]!r}')
        settings['http.port'] = int(given['http_port'])
    if given['tools_policy']:
        settings['tools.policy_file'] = text(given['tools_policy'])
    return settings


def wants_demo_robot(given):
    """Return whether the simulated robot is started."""
    if given['demo_robot'] == 'auto':
        return given['params_file'] == DEFAULT_PARAMS and given['tools_policy'] in ('', 'demo')
    return parse_bool('demo_robot', given['demo_robot'])


def start(context):
    """Return the actions for the arguments that were given."""
    given = {name: LaunchConfiguration(name).perform(context) for name, _, _ in ARGUMENTS}
    files = [given['params_file']] if given['params_file'] else []
    common = {'use_sim_time': parse_bool('use_sim_time', given['use_sim_time'])}

    def node(executable, settings=None, **options):
        return Node(
            package=PACKAGE, executable=executable, name=executable,
            namespace=given['namespace'], parameters=[*files, {**common, **(settings or {})}],
            ros_arguments=['--log-level', given['log_level']],
            output='screen', emulate_tty=True, **options)

    settings = overrides(given)
    # The guard first: the node refuses motion until it hears it.
    actions = [node('goal_guard', respawn=True, respawn_delay=FIRST_DELAY_S)]
    if wants_demo_robot(given):
        actions.append(node('demo_robot'))
    actions += Restarts(lambda: node('llm_node', settings), time.monotonic).start()
    return actions


def generate_launch_description():
    """Return what `ros2 launch` runs."""
    arguments = [DeclareLaunchArgument(name, default_value=default, description=about)
                 for name, default, about in ARGUMENTS]
    return LaunchDescription([*arguments, OpaqueFunction(function=start)])
