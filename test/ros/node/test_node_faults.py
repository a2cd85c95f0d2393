# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with checkpoint, port and policy: a clear sentence, and the node lives on."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from lifecycle_msgs.msg import Transition
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter

from gemma_thor_ros.load import DEMO_FOLDER
from gemma_thor_ros.msg import EngineState, ErrorCode
from gemma_thor_ros.weights.synth import write_synthetic


@pytest.fixture
def peer(fresh_peer):
    return fresh_peer


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """A tiny model of random weights, without a fault but its tokenizer's size."""
    folder = tmp_path_factory.mktemp('checkpoint') / 'tiny'
    write_synthetic(folder, 'tiny-moe', 'compressed-tensors', 0, text_only=True)
    shutil.copy(DEMO_FOLDER / 'tokenizer.json', folder)
    return folder


def read_header(path: Path) -> tuple[dict[str, object], bytes]:
    data = path.read_bytes()
    size = struct.unpack('<Q', data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def without_a_tensor(folder: Path) -> list[str]:
    path = folder / 'model.safetensors'
    header, data = read_header(path)
    name = next(n for n in header if n.endswith('layers.1.input_layernorm.weight'))
    header['renamed'] = header.pop(name)  # removed outright it would leave a hole
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(text)) + text + data)
    return ['layers.1.input_layernorm.weight']


def truncated(folder: Path) -> list[str]:
    path = folder / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:-1000])
    return ['model.safetensors']


def of_another_family(folder: Path) -> list[str]:
    path = folder / 'config.json'
    config = json.loads(path.read_text())
    config['model_type'] = 'gemma3'
    path.write_text(json.dumps(config))
    return ['config.json', 'gemma3']


def without_a_tokenizer(folder: Path) -> list[str]:
    (folder / 'tokenizer.json').unlink()
    return ['tokenizer.json']


def absent(folder: Path) -> list[str]:
    shutil.rmtree(folder)
    return [str(folder)]


def set_model(peer, path):
    parameters = [Parameter('model.path', value=str(path)).to_parameter_msg()]
    assert peer.call(SetParameters, 'set_parameters', parameters=parameters).results[0].successful


def test_a_faulty_checkpoint_fails_configure_and_a_good_one_loads_after_it(
    peer, start_node, checkpoint, tmp_path
):
    states = peer.engine_states()
    process = start_node({'ros.autostart': False})
    assert peer.state() == 'unconfigured'
    for spoil in (without_a_tensor, truncated, of_another_family, without_a_tokenizer, absent):
        folder = tmp_path / spoil.__name__
        shutil.copytree(checkpoint, folder)
        words = spoil(folder)
        set_model(peer, folder)
        assert not peer.change_state(Transition.TRANSITION_CONFIGURE), spoil.__name__
        failed = peer.wait_engine(states, EngineState.FAILED, 3.0)
        for word in words:
            assert word in failed.error_msg, failed.error_msg
            assert word in process.log
        assert peer.state() == 'unconfigured'
        refused = peer.run_goal()[1]
        assert refused.error_code == ErrorCode.NOT_READY and words[0] in refused.error_msg
        states.clear()
    # Reading a tokenizer takes longer than configure may: this fault shows while loading.
    folder = tmp_path / 'vocabulary'
    shutil.copytree(checkpoint, folder)
    set_model(peer, folder)
    assert peer.change_state(Transition.TRANSITION_CONFIGURE)
    failed = peer.wait_engine(states, EngineState.FAILED)
    assert '4,096' in failed.error_msg and '512' in failed.error_msg
    assert not peer.change_state(Transition.TRANSITION_ACTIVATE)
    assert peer.change_state(Transition.TRANSITION_CLEANUP)
    states.clear()
    set_model(peer, 'scripted')
    assert peer.change_state(Transition.TRANSITION_CONFIGURE), process.log
    peer.wait_engine(states, EngineState.READY)
    assert peer.change_state(Transition.TRANSITION_ACTIVATE)
    assert peer.run_goal()[1].error_code == 0
    assert process.process.poll() is None


def test_a_port_in_use_fails_configure(peer, start_node):
    states = peer.engine_states()
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start_node({'http.enabled': True, 'http.port': port})
        failed = peer.wait_engine(states, EngineState.FAILED)
        for word in ('127.0.0.1', str(port), 'http.port'):
            assert word in failed.error_msg
        assert peer.state() == 'unconfigured' and process.process.poll() is None
    # The cause is gone: the same node takes the port now.
    assert peer.change_state(Transition.TRANSITION_CONFIGURE), process.log


def test_a_policy_with_a_wrong_field_fails_configure(peer, start_node, tmp_path):
    policy = tmp_path / 'policy.yaml'
    policy.write_text(
        'version: 1\n'
        'tools:\n'
        '  drive:\n'
        '    descriptoin: Drive ahead.\n'
    )
    states = peer.engine_states()
    process = start_node({'tools.policy_file': str(policy)})
    failed = peer.wait_engine(states, EngineState.FAILED)
    assert f'{policy}:4' in failed.error_msg and 'descriptoin' in failed.error_msg
    assert peer.state() == 'unconfigured' and process.process.poll() is None


def test_ros_arguments_that_can_not_be_read_end_it_in_one_line(ros_env):
    ended = subprocess.run(
        [sys.executable, '-P', '-m', 'gemma_thor_ros.ros.node', '--ros-args', '--params-file',
         '/nowhere.yaml'], capture_output=True, text=True, timeout=30.0, check=False)
    assert ended.returncode == 2 and 'Traceback' not in ended.stderr
    assert '/nowhere.yaml' in ended.stderr.splitlines()[-1]


BROKEN_ENGINE = """
import pathlib, sys
from gemma_thor_ros.engine.scheduler import Scheduler
from gemma_thor_ros.ros.node import main

plan = Scheduler.plan

def broken(self, *args):
    if pathlib.Path('break').exists():
        raise RuntimeError('the books are wrong')
    return plan(self, *args)

Scheduler.plan = broken
sys.exit(main(sys.argv))
"""


LOST_DEVICE = """
import pathlib, sys
from gemma_thor_ros.models.scripted import ScriptedModel
from gemma_thor_ros.ros.node import main
from gemma_thor_ros.schema import DeviceError

forward = ScriptedModel.forward

def lost(self, *args):
    if pathlib.Path('break').exists():
        raise DeviceError('CUDA error 719: unspecified launch failure')
    return forward(self, *args)

ScriptedModel.forward = lost
sys.exit(main(sys.argv))
"""


@pytest.mark.parametrize(('program', 'code', 'words'), [
    (BROKEN_ENGINE, ErrorCode.ENGINE, 'the books are wrong'),
    (LOST_DEVICE, ErrorCode.DEVICE, 'The device is lost: CUDA error 719')])
def test_an_engine_that_fails_for_good_answers_all_and_ends_the_process(
    peer, start_node, program, code, words
):
    states = peer.engine_states()
    process = start_node(
        {'model.script': ['word ' * 200 + '<turn|>'], 'model.script_delay': 0.005},
        program=('-c', program),
    )
    peer.wait_active(process)
    flowing = threading.Event()
    handle = peer.send_goal(feedback=lambda _: flowing.set())
    answer = handle.get_result_async()
    assert flowing.wait(5.0)
    (process.log_path.parent / 'break').touch()
    result = peer.wait(answer).result
    assert result.error_code == code and words in result.error_msg
    assert peer.wait_engine(states, EngineState.FAILED, 5.0).error_msg
    assert process.process.wait(5.0) == 1


LATE_FAULT = """
import dataclasses, sys
from gemma_thor_ros import load
from gemma_thor_ros.ros.node import main
from gemma_thor_ros.schema import ConfigError

plan = load._plan_scripted

def late(config):
    def build(report):
        report(0.5, 'reading weights')
        raise ConfigError('shard 2 ends too early')
    return dataclasses.replace(plan(config), build=build)

load._plan_scripted = late
sys.exit(main(sys.argv))
"""


def test_a_fault_while_loading_is_held_and_activate_says_it(peer, start_node):
    states = peer.engine_states()
    process = start_node({}, program=('-c', LATE_FAULT))
    failed = peer.wait_engine(states, EngineState.FAILED)
    assert failed.error_msg == 'shard 2 ends too early' and failed.error_code
    assert peer.state() == 'inactive'
    assert not peer.change_state(Transition.TRANSITION_ACTIVATE)
    assert 'activate failed: the model could not be loaded: shard 2 ends too early' in process.log
    result = peer.run_goal()[1]
    assert result.error_code == ErrorCode.NOT_READY and 'shard 2' in result.error_msg
    assert peer.change_state(Transition.TRANSITION_CLEANUP) and peer.state() == 'unconfigured'
