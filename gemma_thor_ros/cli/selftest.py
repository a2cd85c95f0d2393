# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor selftest`: every CUDA op once against its twin, on the device of this machine."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from gemma_thor_ros.ops import device, selftest
from gemma_thor_ros.schema import ConfigError


def add_parser(subparsers: Any) -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'selftest', help='try the CUDA ops of this device against their twins',
        description='Runs each CUDA op on small inputs and compares it with NumPy in float64. '
                    'The first load on a device does the same and remembers it.')
    parser.add_argument('--json', action='store_true', help='print the result as JSON')


def run(args: argparse.Namespace) -> int:
    """Gives 0 when all ops are right, else 1; raises ConfigError without a device."""
    reason = device.find()
    if reason:
        raise ConfigError(f'gemma-thor selftest needs a CUDA device, but {reason}')
    e2m1 = 'hardware' if device.has_e2m1_conversion() else 'bit tricks'
    with device.errors():
        checks = list(selftest.checks(device.new_stream()))
    good = all(check.good for check in checks)
    if args.json:
        sys.stdout.write(json.dumps({
            'device': device.info().name, 'arch': device.info().arch, 'e2m1': e2m1, 'good': good,
            'checks': [{'op': check.op, 'error': check.error, 'limit': check.limit,
                        'good': check.good} for check in checks]}) + '\n')
        return 0 if good else 1
    sys.stdout.write(f'{device.info().name}, {device.info().arch}, e2m1 by {e2m1}\n')
    for check in checks:
        sys.stdout.write(f'{"ok   " if check.good else "WRONG"} {check.op:32} error '
                         f'{check.error:.1e}, limit {check.limit:.0e}\n')
    return 0 if good else 1
