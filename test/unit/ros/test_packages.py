# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The list of missing and unfit packages, on pretended environments; needs no ROS."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from gemma_thor_ros.ros import packages

GOOD = {need.name: need.lowest for need in packages.NEEDS + packages.HTTP_NEEDS}


def environment(**changes):
    versions = {**GOOD, **changes}

    def version(name):
        if versions[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    return version


def faults(http=True, absent=(), **changes):
    return packages.faults(http, environment(**changes), lambda name: name not in absent)


def test_the_oldest_platform_fits():
    assert faults() == []


def test_every_missing_package_is_named():
    sentences = faults(absent=('rclpy', 'gemma_thor_ros.msg'), numpy=None, fastapi=None)
    assert len(sentences) == 4
    for name in ('rclpy', 'gemma_thor_ros.msg', 'numpy', 'fastapi'):
        assert any(name in sentence and 'missing' in sentence for sentence in sentences)


def test_an_unfit_version_is_named_with_the_range():
    (sentence,) = faults(pydantic='1.10.14')
    for word in ('pydantic 1.10.14', '2.5 or later', 'below 3'):
        assert word in sentence


def test_http_packages_matter_only_with_http():
    assert faults(http=False, fastapi=None, uvicorn=None) == []


@pytest.mark.parametrize(
    ('found', 'lowest', 'below', 'fits'),
    [('1.26.4', '1.26', '3', True), ('1.25.9', '1.26', '3', False), ('3.0', '1.26', '3', False),
     ('2.0.0rc1', '1.26', '3', True), ('0.9', '0.20', '', False), ('0.115.0', '0.110', '', True),
     ('unknown', '1', '', False)],
)
def test_versions_compare_by_numbers(found, lowest, below, fits):
    assert packages.fits(found, lowest, below) is fits


def test_cupy_is_optional():
    assert packages.optional_faults(lambda name: True) == []
    assert 'cupy' in packages.optional_faults(lambda name: False)[0]


def test_the_node_names_what_is_missing_and_ends_with_2(tmp_path):
    """A real process in which two packages can't be found."""
    program = (
        'import importlib.metadata, sys\n'
        'real = importlib.metadata.version\n'
        'def version(name):\n'
        '    if name in ("tokenizers", "uvicorn"):\n'
        '        raise importlib.metadata.PackageNotFoundError(name)\n'
        '    return real(name)\n'
        'importlib.metadata.version = version\n'
        'from gemma_thor_ros.ros import node\n'
        'sys.exit(node.main(["llm_node"]))\n'
    )
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True,
                          timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith('llm_node: ')]
    assert 'tokenizers' in lines[-2] and 'uvicorn' in lines[-1]
