# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The self test finds what is wrong, falls back, and remembers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_device import HostStream, any_stream

from gemma_thor_ros.cli.main import main
from gemma_thor_ros.ops import (
    device,
    gemm_nvfp4,
    prefill_attention,
    prefill_attention_wgmma,
    prefill_gemm,
    prefill_moe,
    selftest,
)


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return any_stream(request, monkeypatch)


def test_all_ops_are_right_and_remembered(full: None, stream: Any, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = selftest.settle(stream, tmp_path)
    assert not outcome.wrong, outcome.wrong
    assert len(outcome.checks) == 20
    monkeypatch.setattr(selftest, 'checks', lambda stream: pytest.fail('asked again'))
    assert selftest.settle(stream, tmp_path) == outcome
    stored, = tmp_path.iterdir()
    stored.write_text(stored.read_text()[:40])           # cut off: found anew
    with pytest.raises(pytest.fail.Exception, match='asked again'):
        selftest.settle(stream, tmp_path)


def test_a_wrong_conversion_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = [True]
    monkeypatch.setattr(device, 'has_e2m1_conversion', lambda: trusted[0])
    monkeypatch.setattr(device, 'distrust_e2m1_conversion', lambda: trusted.__setitem__(0, False))
    monkeypatch.setattr(device, 'info', lambda: device.DeviceInfo('new', 'sm_110a', 20, 1, 1))
    monkeypatch.setattr(selftest, 'checks', lambda stream: [selftest.Check(
        'gemm_nvfp4', float('nan') if trusted[0] else 1e-3, 6e-3)])
    outcome = selftest.settle(None, tmp_path)
    assert outcome.e2m1 == 'bit tricks' and not outcome.wrong and not trusted[0]
    trusted[0] = True                    # the next start
    assert selftest.settle(None, tmp_path) == outcome
    assert not trusted[0]


@pytest.mark.parametrize('factor', [1.03, np.nan])
def test_a_planted_error_is_found(factor: float, full: None, stream: Any,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(stream, HostStream):
        pytest.skip('the fault is planted into arrays of the host')
    right = gemm_nvfp4.gemm_nvfp4

    def wrong(out: np.ndarray, *rest: Any) -> None:
        right(out, *rest)
        values = (out.astype(np.uint32) << 16).view(np.float32) * np.float32(factor)
        out[...] = values.view(np.uint32) >> 16

    monkeypatch.setattr(gemm_nvfp4, 'gemm_nvfp4', wrong)
    found = [check.op for check in selftest.checks(stream) if not check.good]
    assert found == ['gemm_nvfp4', 'gemm_nvfp4 with geglu', 'stream_nvfp4', 'rows_nvfp4']


@pytest.mark.parametrize(('module', 'name', 'op'), [
    (prefill_gemm, 'prefill_gemm', 'prefill_gemm'),
    (prefill_moe, 'prefill_gate_up', 'prefill_moe'),
    (prefill_moe, 'prefill_down', 'prefill_moe'),
    (prefill_attention, 'prefill_attention', 'prefill_attention'),
    (prefill_attention_wgmma, 'prefill_attention_wgmma', 'prefill_attention')])
def test_a_planted_error_of_prompt_rows_is_found(
        module: Any, name: str, op: str, stream: Any, grid: bool,
        monkeypatch: pytest.MonkeyPatch) -> None:
    if module is not prefill_gemm and not grid:
        pytest.skip('the emulator takes long: part of make grid')
    if not isinstance(stream, HostStream):
        pytest.skip('the fault is planted into arrays of the host')
    if module is prefill_attention_wgmma:                 # the emulator has its products
        monkeypatch.setattr(module, 'serves', lambda head_dim, _: head_dim == 512)
    # the products first: a step's first launch is never one that overlaps another
    monkeypatch.setattr(selftest, '_OPS', [each for each in selftest._OPS
                                           if each[0] in ('prefill_gemm', op)])
    assert all(check.good for check in selftest.checks(stream))
    right = getattr(module, name)

    def wrong(out: np.ndarray, *rest: Any) -> None:
        right(out, *rest)
        values = (out.astype(np.uint32) << 16).view(np.float32) * np.float32(1.03)
        out[...] = values.view(np.uint32) >> 16

    monkeypatch.setattr(module, name, wrong)
    assert [check.op for check in selftest.checks(stream) if not check.good] == [op]


@pytest.mark.skipif(not device.find(), reason='there is a CUDA device here')
def test_the_verb_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['selftest', '--json']) == 2
    assert 'needs a CUDA device, but' in capsys.readouterr().err


@pytest.mark.skipif(bool(device.find()), reason='no CUDA device')
def test_the_verb_on_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['selftest', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['good']
