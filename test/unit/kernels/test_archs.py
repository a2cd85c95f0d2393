# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Every kernel on every architecture against the record, and the checks against planted faults."""
from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gemma_thor_ros.ops import gemm_nvfp4
from gemma_thor_ros.ops.compile import ARCHS, KernelSpec

SCRIPT = Path(__file__).resolve().parents[3] / 'scripts' / 'compile_archs.py'
GEMM = gemm_nvfp4.spec(256, 1, False, True, 8, MIN_BLOCKS=4)


@pytest.fixture(scope='module')
def archs() -> ModuleType:
    spec = importlib.util.spec_from_file_location('compile_archs', SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules['compile_archs'] = module
    spec.loader.exec_module(module)
    return module


def test_record_is_current_and_without_faults(archs: ModuleType,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    """Compiles what differs from the record; nothing does after `make archs`."""
    status = archs.run(check=True, everything=False)
    assert status == 0, capsys.readouterr().out


def test_every_entry_is_there_on_every_arch(archs: ModuleType) -> None:
    entries: dict[str, set[str]] = {}
    for spec, arch in archs.wanted():
        entries.setdefault(spec.entry, set()).add(arch)
    assert {'gemm_nvfp4', 'gemm_bf16', 'head_nvfp4', 'moe_nvfp4_gate_up', 'moe_nvfp4_down',
            'moe_nvfp4_combine', 'fragment_order', 'attention_decode'} <= entries.keys()
    assert entries.pop('prefill_attention_wgmma') == {'sm_90a'}    # no other has its products
    assert all(found == set(ARCHS) for found in entries.values()), entries
    ways = {dict(spec.defines)['E2M1_HARDWARE'] for spec, arch in archs.wanted()
            if arch == 'sm_110a' and spec.entry == 'gemm_nvfp4'}
    assert ways == {0, 1}


def test_a_good_kernel_passes(archs: ModuleType) -> None:
    found = archs.examine(GEMM, 'sm_110a')
    assert list(archs.faults(GEMM, 'sm_110a', found)) == []
    assert found['matrix'].startswith('HMMA') and 'E2M1' in found['e2m1']
    assert found['registers'] > 0 and found['spilled'] == found['stack'] == 0


@pytest.mark.parametrize(('change', 'words'), [
    ({'spilled': 8}, '8 bytes spilled'),
    ({'stack': 16}, '16 of stack'),
    ({'instructions': 8}, 'only 8 instructions'),
    ({'matrix': ''}, 'no matrix instruction'),
    ({'e2m1': ''}, 'no e2m1 conversion'),
    ({'shared': 300000}, '300000 bytes of shared memory'),
    ({'registers': 255}, '255 registers'),
])
def test_planted_faults_are_caught(archs: ModuleType, change: dict[str, Any],
                                   words: str) -> None:
    found = {**archs.examine(GEMM, 'sm_110a'), **change}
    faults = list(archs.faults(GEMM, 'sm_110a', found))
    assert len(faults) == 1 and words in faults[0], faults


@pytest.mark.parametrize(('body', 'words'), [
    ('', 'instructions'),
    # an array with a run-time index lives in local memory
    ('float v[64]; for (int i = 0; i < 64; ++i) v[i] = data[i]; int k = (int)data[64];'
     'for (int i = 0; i < 99; ++i, k = k * 5 + 1) v[k & 63] += v[(k >> 6) & 63]; '
     'data[k & 7] = v[k & 63];',
     'of stack'),
])
def test_faults_are_seen_in_real_machine_code(archs: ModuleType, monkeypatch: pytest.MonkeyPatch,
                                              body: str, words: str) -> None:
    source = ('extern "C" __global__ void __launch_bounds__(32) planted(float* data) '
              f'{{ {body} }}')
    monkeypatch.setattr(archs.compiler, 'kernel_source', lambda file: source)
    spec = KernelSpec.of('planted')
    faults = list(archs.faults(spec, 'sm_90a', archs.examine(spec, 'sm_90a')))
    assert faults and words in faults[0], faults


def test_a_changed_source_makes_the_record_stale(
        archs: ModuleType, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    job = (GEMM, 'sm_110a')
    monkeypatch.setattr(archs, 'wanted', lambda: {job: ['demo']})
    monkeypatch.setattr(archs, 'RECORD', Path('/nonexistent'))
    assert archs.run(check=True, everything=False) == 1
    assert 'is stale for 1 compilation' in capsys.readouterr().out
    monkeypatch.setattr(archs, 'MOST_IN_CHECK', 0)       # too many: not even compiled
    monkeypatch.setattr(archs, 'examine', None)
    assert archs.run(check=True, everything=False) == 1
