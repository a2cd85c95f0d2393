# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What common.cuh does to a tile, in NumPy: the same words, masks, rotations and lanes.

Written from the kernel's text and the instruction's register map, not from fragment_order.py.
"""
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.weights.number_formats import E2M1_VALUES

Array = npt.NDArray[Any]
FIELD = 0x81C081C0
SCALE_BASE = {True: 0x30003000, False: 0x70007000}


def rotated(word: Array, n: int) -> Array:
    """__funnelshift_l(w, w, n)."""
    return (word << np.uint32(n)) | (word >> np.uint32(32 - n))


def decode_bits(w0: Array, w1: Array, rotations: tuple[int, int] = (10, 12)) -> list[Array]:
    """decode_codes without the conversion: eight words of two bf16 each."""
    field, left_over = np.uint32(FIELD), np.uint32(0x06030603)
    fourth = (w0 & left_over) | ((w1 << np.uint32(2)) & ~left_over)
    four, six = np.uint32(4), np.uint32(6)
    return [w & field for w in (
        w0, w0 << four, rotated(w0, rotations[0]), fourth << six,
        w1, w1 << four, rotated(w1, rotations[0]), rotated(fourth, rotations[1]))]


def decode_hardware(w0: Array, w1: Array) -> list[Array]:
    """cvt.rn.bf16x2.e2m1x2 of each byte: the low nibble becomes the lower half."""
    bits = (E2M1_VALUES.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint32)
    registers = []
    for word in (w0, w1):
        for r in range(4):
            byte = (word >> np.uint32(8 * r)) & np.uint32(255)
            registers.append(bits[byte & 15] | (bits[byte >> 4] << np.uint32(16)))
    return registers


def decode_scales(word: Array, half: int, hardware: bool) -> tuple[Array, Array]:
    """The scales of rows g and g + 8 as bf16 bits."""
    pair = (word >> np.uint32(16 * half)) & np.uint32(0xFFFF)
    spread = (pair & np.uint32(255)) | ((pair >> np.uint32(8)) << np.uint32(16))
    both = spread * np.uint32(16) + np.uint32(SCALE_BASE[hardware])
    return both & np.uint32(0xFFFF), both >> np.uint32(16)


def bf16(bits: Array) -> Array:
    """Values of bf16 bits in float64."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def halves(register: Array) -> tuple[Array, Array]:
    """The two bf16 of a register."""
    return bf16(register & np.uint32(0xFFFF)), bf16(register >> np.uint32(16))


def product(codes: Array, scales: Array, x: Array, hardware: bool) -> Array:
    """x (8, M) times one matrix in fragment order -> (8, R * 16), sums in float64.

    Goes lane by lane through the registers of m16n8k16 and the bytes that a lane loads of x.
    """
    num_rows, num_columns = codes.shape[:2]
    wide = np.zeros((8, num_columns * 64))
    wide[:, :x.shape[1]] = x
    out = np.zeros((8, num_rows * 16))
    for tile in range(num_columns):
        for lane in range(32):
            g, t = lane >> 2, lane & 3
            for half in (0, 1):
                low, high = decode_scales(scales[:, tile, lane >> 1], half, hardware)
                words = codes[:, tile, lane, 2 * half], codes[:, tile, lane, 2 * half + 1]
                a = decode_hardware(*words) if hardware else decode_bits(*words)
                column = tile * 64 + 32 * half + 8 * t
                for step in (0, 1):
                    # B of this lane: columns (2t, 2t + 1) and (2t + 8, 2t + 9) of the k step
                    b = wide[:, column + 4 * step:column + 4 * step + 4]
                    for register in range(4):
                        scale = bf16(high if register & 1 else low)
                        row = g + 8 * (register & 1)
                        pair = halves(a[4 * step + register])
                        for parity in (0, 1):
                            weight = pair[parity] * scale
                            k = 2 * (register >> 1) + parity
                            out[:, row::16] += b[:, k, None] * weight
    return out
