# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The compiler's binding and the cache of compiled kernels; no GPU."""
from __future__ import annotations

from pathlib import Path

import pytest

from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import device, fragment_order, gemm_nvfp4
from gemma_thor_ros.ops.compile import CompileError, KernelSpec
from gemma_thor_ros.schema import ConfigError

SPEC = fragment_order.spec(False)
ELF = b'\x7fELF'


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[KernelSpec]:
    """What was really compiled."""
    made: list[KernelSpec] = []
    original = compiler.compile_spec

    def counted(spec: KernelSpec, arch: str) -> compiler.Compiled:
        made.append(spec)
        return original(spec, arch)

    monkeypatch.setattr(compiler, 'compile_spec', counted)
    return made


def test_second_start_compiles_nothing(tmp_path: Path, compilations: list[KernelSpec]) -> None:
    first = compiler.cached_cubin(SPEC, 'sm_90a', tmp_path)
    assert first.read_bytes().startswith(ELF)
    assert compiler.cached_cubin(SPEC, 'sm_90a', tmp_path) == first
    assert len(compilations) == 1
    other = compiler.cached_cubin(SPEC, 'sm_80', tmp_path)
    assert other != first and len(compilations) == 2
    assert sorted(tmp_path.iterdir()) == sorted([first, other])          # no part files


@pytest.mark.parametrize('damage', [b'', b'\x7fELF cut', None])
def test_a_damaged_file_is_compiled_anew(tmp_path: Path, compilations: list[KernelSpec],
                                         damage: bytes | None) -> None:
    path = compiler.cached_cubin(SPEC, 'sm_90a', tmp_path)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]) if damage is None else damage)
    assert compiler.cached_cubin(SPEC, 'sm_90a', tmp_path).read_bytes() == good
    assert len(compilations) == 2


def test_the_key_covers_source_options_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {compiler.spec_key(SPEC, 'sm_90a'), compiler.spec_key(SPEC, 'sm_89'),
            compiler.spec_key(fragment_order.spec(True), 'sm_90a')}
    source = compiler.kernel_source('fragment_order')
    monkeypatch.setattr(compiler, 'kernel_source', lambda file: f'{source}\n')
    keys.add(compiler.spec_key(SPEC, 'sm_90a'))
    monkeypatch.setattr(compiler.nvrtc(), 'version', (99, 0))
    keys.add(compiler.spec_key(SPEC, 'sm_90a'))
    assert len(keys) == 5


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    with pytest.raises(ConfigError, match=r'kernel cache .*file/kernels cannot be written'):
        compiler.cached_cubin(SPEC, 'sm_90a', tmp_path / 'file' / 'kernels')


@pytest.mark.parametrize(('value', 'below'), [
    ('/x/cache', '/x/cache'), ('', None), ('relative', None)])
def test_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, value: str,
                                  below: str | None) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', value)
    root = Path(below) if below else Path.home() / '.cache'
    assert compiler.cache_folder() == root / 'gemma_thor_ros' / 'kernels'


def test_faults_in_a_kernel_are_reported_with_file_and_line(
        monkeypatch: pytest.MonkeyPatch) -> None:
    source = compiler.kernel_source('fragment_order')
    monkeypatch.setattr(compiler, 'kernel_source', lambda file: f'{source}\nnonsense')
    with pytest.raises(CompileError, match=r'fragment_order\.cu\(\d+\): error'):
        compiler.compile_spec(SPEC, 'sm_90a')


@pytest.mark.parametrize(('capability', 'arch'), [
    ((8, 0), 'sm_80'), ((8, 9), 'sm_89'), ((9, 0), 'sm_90a'), ((11, 0), 'sm_110a'),
    ((12, 1), 'sm_121a')])
def test_arch_of_a_device(capability: tuple[int, int], arch: str) -> None:
    assert compiler.arch_of(*capability) == arch
    assert arch in compiler.ARCHS
    assert compiler.arch_number(arch) == 10 * capability[0] + capability[1]


def test_e2m1_conversion_needs_device_and_compiler() -> None:
    assert compiler.converts_e2m1('sm_110a', (13, 2))
    assert not compiler.converts_e2m1('sm_110a', (13, 1))
    assert not compiler.converts_e2m1('sm_90a', (13, 5))


@pytest.mark.parametrize('columns', [64, 96, 256, 384, 704, 2112, 2816, 3840, 4096, 5376, 8192,
                                     15360, 16896, 21504])
def test_cut_covers_all_columns(columns: int) -> None:
    warps, tiles = gemm_nvfp4.cut(columns)
    needed = -(-columns // 64)
    assert 1 <= warps <= 16 and needed <= warps * tiles < needed + warps
    cuts = {tuple(dict(gemm_nvfp4.spec(columns, rows, False, False, rows_out).defines)[name]
                  for name in ('K_WARPS', 'WARP_TILES')) for rows in (1, 8, 9, 16, 100)
            for rows_out in (1, 1000)}
    assert cuts == {(warps, tiles)}      # whatever the number of rows


def test_without_cupy_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.importlib.util, 'find_spec', lambda name: None)
    device.cupy.cache_clear()
    with pytest.raises(ConfigError, match=r'gemma-thor-ros\[cuda\]'):
        device.cupy()
    device.cupy.cache_clear()
