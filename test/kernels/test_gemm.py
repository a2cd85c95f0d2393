# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The projections and heads against float64 on the same operands, at every served shape."""
from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.ops import (
    device,
    fragment_order,
    gemm_bf16,
    gemm_nvfp4,
    gemv,
    head_nvfp4,
)
from gemma_thor_ros.weights.canonical import Nvfp4Weight
from gemma_thor_ros.weights.number_formats import E4M3_VALUES

from . import cases

COARSE = (0x30, 0x40)                    # e4m3 0.5 to 2: sums of integers stay exact in float32
NORMAL = (0x20, 0x50)
BF16_ERROR = 2.5e-3                      # of one rounding to bf16: 2^-9 / sqrt(3) = 1.1e-3, norms
TINY = (48, 96)


def on(stream: Any, cp: Any, run: Any) -> None:
    """Run on the stream, and see errors of the device here."""
    cp.cuda.runtime.deviceSynchronize()
    run()
    stream.synchronize()


@pytest.mark.parametrize('interleaved', [False, True])
@pytest.mark.parametrize('shape', [(16, 64), (40, 176), (128, 256)])
def test_repacking_equals_its_twin(small: tuple[Any, Any], shape: tuple[int, int],
                                   interleaved: bool) -> None:
    cp, stream = small
    weights = [cases.random_weight(cp, shape, seed, (0, 0x7F), 1.0)
               for seed in range(1 + interleaved)]
    made = fragment_order.to_fragments(weights, interleaved=interleaved, stream=stream)
    stream.synchronize()
    host = [Nvfp4Weight(cp.asnumpy(w.packed), cp.asnumpy(w.group_scales),
                        np.float32(1).reshape(())) for w in weights]
    codes, scales = fragment_order.fragment_order_ref(
        host[0], host[1] if interleaved else None, device.has_e2m1_conversion())
    assert np.array_equal(cp.asnumpy(made.codes), codes.reshape(-1))
    assert np.array_equal(cp.asnumpy(made.scales), scales.reshape(-1))


def test_every_code_under_every_scale(small: tuple[Any, Any]) -> None:
    """Rows of x pick one column each, so out is the weight itself."""
    cp, stream = small
    rows = 8 * 0x7F
    weight = cases.random_weight(cp, (rows, 64), 1, (1, 3), 1.0)
    byte = cp.arange(32, dtype=cp.uint8)
    weight.packed[...] = (byte % 8) * 2 | ((byte % 8 * 2 + 1) << 4)
    weight.group_scales[...] = cp.repeat(cp.arange(0x7F), 8).astype(cp.uint8)[:, None]
    x = cases.to_bf16(cp, cp.eye(64))
    out = cases.poisoned(cp, (64, rows), 'bf16')
    made = fragment_order.to_fragments([weight], stream=stream)
    on(stream, cp, lambda: gemm_nvfp4.gemm_nvfp4(out, x, made, stream))
    values = cases.dequantized(cp, weight).T
    assert len(set(abs(E4M3_VALUES[:0x7F]))) == 0x7F
    assert bool((cases.from_bf16(cp, out) == values).all())


@pytest.mark.parametrize('num_tokens', cases.ROWS)
@pytest.mark.parametrize('shape', cases.PROJECTIONS)
def test_projection(cp: Any, stream: Any, shape: tuple[int, int], num_tokens: int) -> None:
    check_projection(cp, stream, shape, num_tokens)


@pytest.mark.parametrize('num_tokens', [*cases.ROWS, 17])
def test_small_projection(small: tuple[Any, Any], num_tokens: int) -> None:
    check_projection(*small, TINY, num_tokens)


def check_projection(cp: Any, stream: Any, shape: tuple[int, int], num_tokens: int) -> None:
    weight = cases.random_weight(cp, shape, 2, COARSE, 1.0)
    made = fragment_order.to_fragments([weight], stream=stream)
    matrix = cases.dequantized(cp, weight)
    x = cases.integer_rows(cp, (num_tokens, shape[1]), 3)
    out = cases.poisoned(cp, (num_tokens, shape[0]), 'bf16')
    on(stream, cp, lambda: gemm_nvfp4.gemm_nvfp4(out, x, made, stream))
    exact = cases.from_bf16(cp, x) @ matrix.T
    assert bool((out == cases.to_bf16(cp, exact)).all())         # every sum is exact
    x = cases.random_rows(cp, x.shape, 4)
    on(stream, cp, lambda: gemm_nvfp4.gemm_nvfp4(out, x, made, stream))
    expected = cases.from_bf16(cp, x) @ matrix.T
    assert cases.error(cp, cases.from_bf16(cp, out), expected) < BF16_ERROR


@pytest.mark.parametrize('num_tokens', cases.ROWS)
def test_gate_up(cp: Any, stream: Any, num_tokens: int) -> None:
    check_gate_up(cp, stream, cases.GATE_UP, num_tokens)


@pytest.mark.parametrize('num_tokens', [1, 9])
def test_small_gate_up(small: tuple[Any, Any], num_tokens: int) -> None:
    check_gate_up(*small, (56, 96), num_tokens)


def check_gate_up(cp: Any, stream: Any, shape: tuple[int, int], num_tokens: int) -> None:
    parts = [cases.random_weight(cp, shape, seed, NORMAL, 0.01 * seed) for seed in (1, 2)]
    made = fragment_order.to_fragments(parts, interleaved=True, stream=stream)
    x = cases.random_rows(cp, (num_tokens, shape[1]), 5)
    out = cases.poisoned(cp, (num_tokens, shape[0]), 'bf16')
    on(stream, cp, lambda: gemm_nvfp4.gemm_nvfp4(out, x, made, stream))
    gate, up = (cases.from_bf16(cp, x) @ cases.dequantized(cp, part).T for part in parts)
    # the products' own roundings flip a few last bits
    assert cases.error(cp, cases.from_bf16(cp, out), cases.geglu(cp, gate, up)) < 2 * BF16_ERROR


def test_stacked_parts_keep_their_own_scales(small: tuple[Any, Any]) -> None:
    cp, stream = small
    parts = [cases.random_weight(cp, (rows, 128), rows, NORMAL, 1 / rows) for rows in (64, 32, 48)]
    made = fragment_order.to_fragments(parts, stream=stream)
    x = cases.random_rows(cp, (3, 128), 6)
    out = cases.poisoned(cp, (3, 144), 'bf16')
    on(stream, cp, lambda: gemm_nvfp4.gemm_nvfp4(out, x, made, stream))
    matrix = cp.concatenate([cases.dequantized(cp, part) for part in parts])
    expected = cases.from_bf16(cp, x) @ matrix.T
    assert cases.error(cp, cases.from_bf16(cp, out), expected) < BF16_ERROR


@pytest.mark.parametrize('shape', [(8192, 2816), (2816, 8192), (2816, 2112)])
def test_a_row_has_the_same_bits_alone(cp: Any, stream: Any, shape: tuple[int, int]) -> None:
    check_rows_alone(cp, stream, shape)


def test_a_small_row_has_the_same_bits_alone(small: tuple[Any, Any]) -> None:
    check_rows_alone(*small, TINY)


def check_rows_alone(cp: Any, stream: Any, shape: tuple[int, int]) -> None:
    made = fragment_order.to_fragments([cases.random_weight(cp, shape, 7, NORMAL, 0.01)],
                                       stream=stream)
    x = cases.random_rows(cp, (16, shape[1]), 8)
    together = cases.poisoned(cp, (16, shape[0]), 'bf16')
    alone = cases.poisoned(cp, (16, shape[0]), 'bf16')

    def run() -> None:
        gemm_nvfp4.gemm_nvfp4(together, x, made, stream)
        for row in range(16):
            gemm_nvfp4.gemm_nvfp4(alone[row:row + 1], x[row:row + 1], made, stream)

    on(stream, cp, run)
    assert bool((together == alone).all())


def test_a_small_row_alone_goes_through_neighbouring_row_tiles(small: tuple[Any, Any]) -> None:
    """A block has several row tiles, and a warp several stages of each."""
    cp, stream = small
    shape = (57, 5120)
    single = gemm_nvfp4.single_spec(shape[1], False, device.has_e2m1_conversion(), 4,
                                    device.info().shared_bytes_per_block)
    assert single is not None
    constants = dict(single.defines)
    if device.info().num_multiprocessors == 3:           # the emulator
        assert constants['WARP_TILES'] > constants['STAGE_TILES'] * 2
        assert constants['STAGES'] == 4
        assert gemv.share(4, 3, constants['MIN_BLOCKS']) == (3, 1, 1)
    made = fragment_order.to_fragments([cases.random_weight(cp, shape, 17, NORMAL, 0.01)],
                                       stream=stream)
    x = cases.random_rows(cp, (2, shape[1]), 18)
    together, alone = (cases.poisoned(cp, (2, shape[0]), 'bf16') for _ in range(2))

    def run() -> None:
        gemm_nvfp4.gemm_nvfp4(together, x, made, stream)
        for row in range(2):
            gemm_nvfp4.gemm_nvfp4(alone[row:row + 1], x[row:row + 1], made, stream)

    on(stream, cp, run)
    assert bool((together == alone).all()) and not bool((alone[0] == alone[1]).all())


@pytest.mark.parametrize('num_tokens', [1, 8, 16])
@pytest.mark.parametrize('shape', cases.BF16)
def test_bf16(cp: Any, stream: Any, shape: tuple[int, int], num_tokens: int) -> None:
    check_bf16(cp, stream, shape, num_tokens)


@pytest.mark.parametrize('num_tokens', [1, 8, 16])
def test_small_bf16(small: tuple[Any, Any], num_tokens: int) -> None:
    check_bf16(*small, (40, 72), num_tokens)


def check_bf16(cp: Any, stream: Any, shape: tuple[int, int], num_tokens: int) -> None:
    weight = cases.integer_rows(cp, shape, 9)
    x = cases.integer_rows(cp, (num_tokens, shape[1]), 10)
    out = cases.poisoned(cp, (num_tokens, shape[0]), 'bf16')
    on(stream, cp, lambda: gemm_bf16.gemm_bf16(out, x, weight, stream))
    exact = cases.from_bf16(cp, x) @ cases.from_bf16(cp, weight).T
    assert bool((out == cases.to_bf16(cp, exact)).all())
    if num_tokens == 16:
        x = cases.random_rows(cp, x.shape, 11)
        alone = cases.poisoned(cp, out.shape, 'bf16')

        def run() -> None:
            gemm_bf16.gemm_bf16(out, x, weight, stream)
            for row in range(16):
                gemm_bf16.gemm_bf16(alone[row:row + 1], x[row:row + 1], weight, stream)

        on(stream, cp, run)
        assert bool((out == alone).all())


@pytest.mark.parametrize(('shape', 'num_tokens'), [((80, 320), 1), ((112, 704), 3),
                                                    ((112, 1352), 16)])
@pytest.mark.parametrize('gate', ['none', 'silu'])
def test_streamed_bf16_weights_give_the_same_bits(
        small: tuple[Any, Any], shape: tuple[int, int], num_tokens: int, gate: gemm_bf16.Gate,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Several row tiles a block and tiles a warp; rings longer and shorter than a row tile."""
    cp, stream = small
    weight, x = cases.random_rows(cp, shape, 19), cases.random_rows(cp, (num_tokens, shape[1]), 20)
    num_outputs = shape[0] if gate == 'none' else shape[0] // 2
    outs = []
    for stages in (0, 2, 12):
        served = gemm_bf16.stream_spec
        with monkeypatch.context() as patch:
            patch.setattr(gemm_bf16, 'FEWEST_STREAMED', 1 if stages else 99)
            patch.setattr(gemm_bf16, 'stream_spec', lambda *sizes, stages=stages, served=served: (
                served(*sizes, STAGES=max(stages, 2), GROUPS=2 if gate != 'none' else 1)))
            out = cases.poisoned(cp, (num_tokens, num_outputs), 'bf16')
            run = (partial(gemm_bf16.gemm_bf16, out, x, weight, stream) if gate == 'none' else
                   partial(gemm_bf16.gated_bf16, out, x, weight, gate, stream))
            on(stream, cp, run)
        outs.append(out)
    assert bool((outs[1] == outs[0]).all()) and bool((outs[2] == outs[0]).all())
    assert bool(cp.isfinite(cases.from_bf16(cp, outs[0])).all())


def test_which_bf16_products_are_streamed() -> None:
    """Those of long loops in few warps at the rows that drafters have, but for the widest."""
    limit = 227 << 10
    served = {(columns, outputs, rows): gemm_bf16.served_spec(columns, outputs, rows, 'none',
                                                              limit).file
              for columns, outputs, rows in (
                  (2816, 6144, 16), (4096, 2816, 16), (5632, 2816, 16), (16896, 2816, 16),
                  (1024, 4096, 1), (4096, 1024, 1), (8192, 1024, 1), (5632, 1024, 1))}
    assert [sizes for sizes, file in served.items() if file == 'stream_bf16'] == [
        (2816, 6144, 16), (5632, 2816, 16), (8192, 1024, 1), (5632, 1024, 1)]
    # planted: all that fits
    assert gemm_bf16.stream_spec(4096, 2816, 16, 'none', limit) is not None
    assert gemm_bf16.stream_spec(16896, 2816, 16, 'none', limit) is None
    few, many = (dict(spec.defines)['GROUPS'] for spec in (
        gemm_bf16.stream_spec(8192, 1024, 1, 'none', limit),
        gemm_bf16.stream_spec(2816, 6144, 16, 'none', limit)) if spec)
    assert (few, many) == (1, 2)             # 128 blocks of 8 rows rather than 64 of 16


def test_heads(cp: Any, stream: Any) -> None:
    check_heads(cp, stream, cases.HEAD)


@pytest.mark.parametrize('shape', [(480, 320), (64, 512)])
def test_small_heads(shape: tuple[int, int], small: tuple[Any, Any]) -> None:
    check_heads(*small, shape)


def check_heads(cp: Any, stream: Any, shape: tuple[int, int]) -> None:
    vocab_size = shape[0]
    packed = cases.random_weight(cp, shape, 12, NORMAL, 0.02)
    made = fragment_order.to_fragments([packed], stream=stream)
    dense = cases.random_rows(cp, shape, 13)
    x = cases.random_rows(cp, (17, shape[1]), 14)
    weights = {'nvfp4': (head_nvfp4.head_nvfp4, made), 'bf16': (gemm_bf16.head_bf16, dense)}
    for name, (run_head, weight) in weights.items():
        outs = []
        for rows in (1, 7, 16, 17):
            logits = cases.poisoned(cp, (rows, vocab_size), 'f32')
            on(stream, cp, partial(run_head, logits, x[:rows], weight, cases.SOFTCAP, stream))
            outs.append(logits)
        for logits in outs[:-1]:
            assert bool((logits == outs[-1][:logits.shape[0]]).all()), name
        for start in range(0, vocab_size, 32768):
            part = slice(start, min(start + 32768, vocab_size))
            matrix = (cases.from_bf16(cp, dense[part]) if name == 'bf16' else cases.dequantized(
                cp, cases.Packed(packed.packed[part], packed.group_scales[part],
                                 packed.global_scale)))
            z = cases.from_bf16(cp, x) @ matrix.T
            expected = cases.SOFTCAP * cp.tanh(z / cases.SOFTCAP)
            assert cases.error(cp, outs[-1][:, part], expected) < 2e-5, name


def test_the_head_without_shared_memory(small: tuple[Any, Any]) -> None:
    """Rows that do not fit into shared memory come through L1, to the same bits.

    So do two row tiles at a time, of which the last has no second one.
    """
    cp, stream = small
    made = fragment_order.to_fragments([cases.random_weight(cp, (1008, 320), 15, NORMAL, 0.02)],
                                       stream=stream)
    x = cases.random_rows(cp, (5, 320), 16)
    outs = []
    pairs = {'ROW_TILES': 2, 'STAGE_TILES': 2, 'STAGES': 6}
    for limit, override in ((1 << 20, {}), (0, {}), (1 << 20, pairs)):
        kernel = device.compiled(head_nvfp4.spec(320, 5, limit, device.has_e2m1_conversion(),
                                                 **override))
        constants = dict(kernel.spec.defines)
        assert constants['STAGED'] == int(limit > 0)
        logits = cases.poisoned(cp, (5, 1008), 'f32')
        on(stream, cp, lambda kernel=kernel, logits=logits, constants=constants: device.launch(
            kernel, (3,), constants['WARPS'] * 32,
            (logits, x, made.codes, made.scales, made.row_scales, 5, 63, 1008, cases.SOFTCAP),
            stream, head_nvfp4.shared_bytes(constants)))
        outs.append(logits)
    assert all(bool((out == outs[0]).all()) for out in outs) and bool(
        cp.isfinite(outs[0]).all())
