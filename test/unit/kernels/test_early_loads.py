# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What a kernel may request before the kernel before it has ended is requested there.

Only the machine code says so: the assembler moves loads by the read-only path behind the wait,
whatever the order in the source, and a step then takes a third longer with the same results.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from gemma_thor_ros.ops import (
    attention_decode,
    attention_window,
    draft_heads,
    draft_rows,
    gemm_affine,
    gemm_bf16,
    gemm_nvfp4,
    head_nvfp4,
    kv_append,
    moe_chain,
    moe_nvfp4,
    moe_route,
    rms_norm,
    stream_nvfp4,
)
from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops.compile import KernelSpec

FOLDER = Path(__file__).resolve().parents[3] / 'kernels'
ARCH = 'sm_90a'                          # the first that has the wait
GEMM = gemm_nvfp4.spec(2816, 1, False, False, 512)
SINGLE = gemm_nvfp4.single_spec(5376, True, False, 2688, 232448)
SINGLE_AFFINE = gemm_affine.single_spec(5376, 4, 64, 'geglu', 232448, num_row_tiles=2688)
STREAM = stream_nvfp4.spec(2816, 16, False, False, 512, (11, 4), 232448)
STREAM_BF16 = gemm_bf16.stream_spec(5632, 2816, 16, 'none', 232448)
ROWS = gemm_nvfp4.rows_spec(2816, 8, False, 512, 232448, 132)
assert STREAM_BF16 and ROWS
assert SINGLE and SINGLE_AFFINE and STREAM
# spec, loads that lie before the wait: tiles of weights with their scales, weights of norms
WANTED = [(GEMM, 2 * 4 + 1), (head_nvfp4.spec(2816, 1, 232448, False), 2 * 4),
          (gemm_affine.spec(5376, 8, 4, 64, num_row_tiles=1024), 2 * 4), (SINGLE, 2 * 3 + 1),
          (SINGLE_AFFINE, 3 * 3), (STREAM, 2 * 5 + 1), (ROWS, 5),
          (moe_route.spec(2816, 128, 8), 6), (rms_norm.spec('rms_norm_add', 2816, outputs=3), 8),
          (moe_nvfp4.gate_up_spec(2816, 1, 8, 128, False, 3), 5),
          (moe_nvfp4.down_spec(704, 1, 8, 128, False, 3), 5),
          (moe_chain.spec(2816, 704, 1, 8, 128, False, 3), 5),
          # the row's place, weights of the norm, turns, what K or V is multiplied by
          (kv_append.spec(256, 16, 8, True, 128, 64, True), 3 + 2 + 8 + 1),
          # pages, K by copies and V of a tile, a turn and the norm's weights
          (attention_decode.append_spec(256, 2, 8, 64, 1024, True, True, 128), 1 + 4 + 16 + 1 + 2),
          # K and V of two chunks, their pages, the row's place, two scales
          (attention_window.spec(256, 2, 8, 64, 1024, True, 8), 2 * (16 + 4 + 1) + 1 + 2),
          (gemm_bf16.spec(5632, 16, False), 2 * 4), (gemm_bf16.spec(2816, 16, False, 'silu'), 8),
          (STREAM_BF16, 2 * 11),
          (draft_heads.spec(128, 32, 8, 48, 64), 5), (draft_rows.spec('draft_add_norm', 2816), 2)]


@pytest.fixture(scope='module')
def archs() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / 'scripts' / 'compile_archs.py'
    spec = importlib.util.spec_from_file_location('compile_archs_for_loads', path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def early_loads(archs: ModuleType, spec: KernelSpec) -> int:
    """Global loads before the wait for the kernel before, but that of blocks without work."""
    code = archs.machine_code(compiler.compile_spec(spec, ARCH).cubin, spec.entry)
    waits = [i for i, name in enumerate(code) if name == 'ACQBULK']
    work = [i for i in waits if 'EXIT' not in code[i + 1:i + 3]]
    return sum(name.startswith('LDG') for name in code[:(work or waits)[0]])


@pytest.mark.parametrize(('spec', 'count'), WANTED, ids=[
    f'{spec.entry}-{dict(spec.defines).get("COLUMNS", 0)}' for spec, _ in WANTED])
def test_constants_are_requested_before_the_wait(archs: ModuleType, spec: KernelSpec,
                                                 count: int) -> None:
    assert early_loads(archs, spec) >= count


def test_a_residual_is_requested_beside_its_branch(archs: ModuleType) -> None:
    """Not behind the squares: while the next product fills its rings that is a long read more."""
    spec = rms_norm.spec('rms_norm_add', 3840, outputs=1)
    code = archs.machine_code(compiler.compile_spec(spec, ARCH).cubin, spec.entry)
    behind = code[code.index('ACQBULK'):]
    first = next(i for i, name in enumerate(behind) if name.startswith('SHFL'))
    assert sum(name.startswith('LDG') for name in behind[:first]) == 1 + 2


def loads_into_registers(archs: ModuleType, spec: KernelSpec) -> list[str]:
    """Loads of weights that share one of few counters with those of activations."""
    code = archs.machine_code(compiler.compile_spec(spec, ARCH).cubin, spec.entry)
    return [name for name in code if name.startswith('LDG') and '.NA' in name]


@pytest.mark.parametrize('spec', [moe_nvfp4.gate_up_spec(2816, 16, 8, 128, False, 3),
                                  moe_nvfp4.down_spec(704, 16, 8, 128, False, 3),
                                  moe_chain.spec(2816, 704, 16, 8, 128, False, 3), SINGLE,
                                  SINGLE_AFFINE, STREAM, STREAM_BF16],
                         ids=lambda spec: spec.entry)
def test_streamed_weights_do_not_wait_in_registers(archs: ModuleType, spec: KernelSpec) -> None:
    assert loads_into_registers(archs, spec) == []
    assert len(loads_into_registers(archs, GEMM)) >= 2 * 4       # those of one short pass do


def hinted_copies(text: str) -> list[str]:
    """Asynchronous copies with a cache policy, which the assembler of CUDA 13 forgets to make."""
    return re.findall(r'cp\.async[^;"]*cache_hint', text)


def test_no_asynchronous_copy_has_a_cache_policy() -> None:
    files = [*FOLDER.glob('*.cu'), *FOLDER.glob('*.cuh')]
    assert sum('cp.async' in path.read_text(encoding='utf-8') for path in files) >= 2
    for path in files:
        assert not hinted_copies(path.read_text(encoding='utf-8')), path.name
    assert hinted_copies('"cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"')


def test_a_load_by_the_read_only_path_is_found_late(archs: ModuleType,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    original = compiler.kernel_source
    right, wrong = 'ld.global.L1::no_allocate.L2::cache_hint', 'ld.global.nc.L1::no_allocate.L2::c'
    assert right in original('gemm_nvfp4')
    monkeypatch.setattr(compiler, 'kernel_source', lambda name: original(name).replace(
        right, wrong + 'ache_hint'))
    assert early_loads(archs, GEMM) < 2 * 4
