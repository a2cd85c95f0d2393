# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Temperatures and memory out of files as Linux writes them, and out of none."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from gemma_thor_ros.ros.machine import read_health


def zone(root, index, kind, milli, critical=None):
    folder = root / 'class' / 'thermal' / f'thermal_zone{index}'
    folder.mkdir(parents=True)
    (folder / 'type').write_text(f'{kind}\n')
    (folder / 'temp').write_text(f'{milli}\n')
    if critical is not None:
        (folder / 'trip_point_0_type').write_text('passive\n')
        (folder / 'trip_point_0_temp').write_text('1000\n')
        (folder / 'trip_point_1_type').write_text('critical\n')
        (folder / 'trip_point_1_temp').write_text(f'{critical}\n')


def memory(root, available_kib):
    (root / 'self').mkdir(parents=True)
    (root / 'meminfo').write_text(
        f'MemTotal:       1000000 kB\nMemAvailable:  {available_kib} kB\nHugePages_Total:   0\n'
    )
    (root / 'self' / 'status').write_text('Name:\tnode\nVmRSS:\t    2048 kB\n')


def test_figures_are_read(tmp_path):
    zone(tmp_path, 0, 'cpu-thermal', 51500, 100000)
    zone(tmp_path, 1, 'gpu-thermal', 48000, 0)
    zone(tmp_path, 2, 'gpu-thermal', 49000)
    zone(tmp_path, 3, 'asleep', 'N/A')
    memory(tmp_path, 500000)
    health = read_health(tmp_path, tmp_path)
    assert health.temperatures == {
        'cpu-thermal': 51.5, 'gpu-thermal': 48.0, 'gpu-thermal (thermal_zone2)': 49.0,
    }  # fmt: skip
    assert health.memory_total == 1000000 * 1024 and health.process_memory == 2 << 20
    assert health.warning == ''


@pytest.mark.parametrize(
    ('milli', 'available', 'said'), [(95000, 500000, '95 °C'), (40000, 1000, 'memory are left')]
)
def test_what_is_near_its_limit_is_said(tmp_path, milli, available, said):
    zone(tmp_path, 0, 'cpu', milli, 100000)
    memory(tmp_path, available)
    assert said in read_health(tmp_path, tmp_path).warning


def test_a_machine_that_tells_nothing_is_no_fault(tmp_path):
    health = read_health(tmp_path, tmp_path)
    assert not health.temperatures and not health.warning and health.memory_total == 0


def test_this_machine_has_memory():
    health = read_health()
    assert health.memory_total > health.process_memory > 0


HEAPS = """
import sys, threading
from pathlib import Path
from gemma_thor_ros.ros.machine import share_heaps

if sys.argv[1] == 'shared':
    share_heaps()
barrier = threading.Barrier(17)

def work():
    kept = [bytearray(2000) for _ in range(200)]
    barrier.wait()
    barrier.wait()
    del kept

threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads:
    thread.start()
barrier.wait()
# glibc maps the heaps of threads at multiples of 64 MiB.
starts = [int(line.split('-')[0], 16) for line in Path('/proc/self/maps').read_text().splitlines()
          if ' rw-p ' in line and line.endswith(' 0 ')]
print(sum(start % (64 << 20) == 0 for start in starts))
barrier.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='only glibc has such heaps')
@pytest.mark.parametrize(('how', 'fits'), [('shared', lambda n: n <= 2), ('own', lambda n: n > 2)])
def test_threads_share_heaps(how, fits):
    done = subprocess.run([sys.executable, '-P', '-c', HEAPS, how], capture_output=True, text=True,
                          timeout=60, check=True)
    assert fits(int(done.stdout)), done.stdout
