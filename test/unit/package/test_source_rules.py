# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Every source file keeps the rules of source_rules.py, and the rules catch what breaks them."""
from __future__ import annotations

import pytest

from . import source_rules as rules

HEADER = '\n'.join(f'# {line}' for line in rules.HEADER) + '\n'


def test_all_source_files_keep_the_rules() -> None:
    files = list(rules.source_files())
    assert len(files) > 50
    found = [fault for path in files for fault in rules.faults(
        path.relative_to(rules.ROOT).as_posix(), path.read_text(encoding='utf-8'))]
    assert not found, '\n'.join(found)


@pytest.mark.parametrize(('name', 'text', 'fault'), [
    ('gemma_thor_ros/chat.py', '\n' * 499, '501 lines'),
    ('gemma_thor_ros/chat.py', 'import os\nx = os.environ["A"]\n', 'reads the environment'),
    ('gemma_thor_ros/chat.py', 'import os\nx = os.getenv("A")\n', 'reads the environment'),
    ('gemma_thor_ros/ops/sample.py', 'from os import environ\n', 'reads the environment'),
    ('gemma_thor_ros/chat.py', 'import rclpy.node\n', 'imports rclpy.node'),
    ('gemma_thor_ros/chat.py', 'def f():\n    from rclpy import node\n', 'imports rclpy'),
    ('gemma_thor_ros/models/gemma4.py', 'import cupy as cp\n', 'imports cupy'),
    ('gemma_thor_ros/schema.py', 'from gemma_thor_ros import config\n',
     'imports gemma_thor_ros.config'),
    ('gemma_thor_ros/schema.py', 'from .config import check\n', 'imports gemma_thor_ros.config'),
    ('gemma_thor_ros/__init__.py', 'from . import chat\n', 'imports gemma_thor_ros.chat'),
    ('gemma_thor_ros/client.py', 'from gemma_thor_ros.schema import RequestError\n',
     'imports gemma_thor_ros.schema'),
])
def test_planted_faults_are_caught(name: str, text: str, fault: str) -> None:
    found = rules.faults(name, HEADER + text)
    assert len(found) == 1 and fault in found[0], found


def test_missing_header_is_caught() -> None:
    assert len(rules.faults('scripts/x.sh', '#!/bin/sh\nexit 0\n')) == 2


@pytest.mark.parametrize(('name', 'text'), [
    ('gemma_thor_ros/ops/compile.py', 'import os\nx = os.environ["A"]\nimport cupy\n'),
    ('gemma_thor_ros/ros/node.py', 'import rclpy\nfrom gemma_thor_ros import chat\n'),
    ('gemma_thor_ros/config.py', 'from gemma_thor_ros.schema import ConfigError\n'),
    ('gemma_thor_ros/client.py', 'import rclpy\nfrom gemma_thor_ros.msg import Tool\n'),
    ('test/unit/test_x.py', 'import os\nx = os.environ["A"]\n'),
    ('gemma_thor_ros/chat.py', '\n' * 498),
])
def test_what_is_allowed_passes(name: str, text: str) -> None:
    assert rules.faults(name, HEADER + text) == []
