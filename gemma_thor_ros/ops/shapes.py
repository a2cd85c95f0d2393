# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The axis letters, and the shapes and types that each CUDA op takes; checked at its door.

T tokens (rows of a step), R logit rows, H hidden, I intermediate, N out features, M in features,
E experts, K experts of a token, V vocabulary, Q and KV heads, D head dim, P pages, S page size,
B sequences, L layers, G columns that share a scale, C column tiles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# bf16 numbers travel as their bits.
DTYPES = {'bf16': 'uint16', 'f32': 'float32', 'i32': 'int32', 'u32': 'uint32', 'u8': 'uint8'}

# op -> argument -> (axes, type). A letter means the same size in every argument of a call.
SHAPES: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    'gemm_nvfp4': {'out': (('T', 'N'), 'bf16'), 'x': (('T', 'M'), 'bf16')},
    'gemm_bf16': {'out': (('T', 'N'), 'bf16'), 'x': (('T', 'M'), 'bf16'),
                  'weight': (('N', 'M'), 'bf16')},
    'head_bf16': {'logits': (('R', 'V'), 'f32'), 'x': (('R', 'H'), 'bf16'),
                  'weight': (('V', 'H'), 'bf16')},
    'head_nvfp4': {'logits': (('R', 'V'), 'f32'), 'x': (('R', 'H'), 'bf16')},
    'moe_nvfp4_gate_up': {'inner': (('T', 'K', 'I'), 'bf16'), 'x': (('T', 'H'), 'bf16'),
                          'expert_ids': (('T', 'K'), 'i32')},
    'moe_nvfp4_down': {'results': (('T', 'K', 'H'), 'bf16'), 'inner': (('T', 'K', 'I'), 'bf16'),
                       'expert_ids': (('T', 'K'), 'i32')},
    'moe_nvfp4_combine': {'out': (('T', 'H'), 'f32'), 'results': (('T', 'K', 'H'), 'bf16'),
                          'expert_ids': (('T', 'K'), 'i32'),
                          'expert_weights': (('T', 'K'), 'f32')},
}


def check(op: str, sizes: dict[str, int] | None = None, **arrays: Any) -> dict[str, int]:
    """Hold the arguments of an op against its table; gives the sizes by letter.

    sizes: letters that are known from elsewhere, such as a weight's N and M. The arrays must be
    C-contiguous. Raises AssertionError: a mismatch is ours, not the user's.
    """
    known = {letter: (size, 'the weight') for letter, size in (sizes or {}).items()}
    table = SHAPES[op]
    assert arrays.keys() == table.keys(), (op, sorted(arrays), sorted(table))
    for name, array in arrays.items():
        axes, dtype = table[name]
        assert np.dtype(array.dtype).name == DTYPES[dtype], (
            f'{op}: {name} is {array.dtype}, not {dtype}')
        assert len(array.shape) == len(axes), (
            f'{op}: {name} has {len(array.shape)} axes, not {len(axes)} ({", ".join(axes)})')
        assert array.flags.c_contiguous, f'{op}: {name} is not contiguous'
        for letter, size in zip(axes, array.shape, strict=True):
            other, source = known.setdefault(letter, (size, name))
            assert size == other, f'{op}: {name} has {letter}={size} but {source} has {other}'
    return {letter: size for letter, (size, _) in known.items()}
