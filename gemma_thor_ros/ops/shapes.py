# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The axis letters, and the shapes and types that each CUDA op takes; checked at its door.

T tokens (rows of a step), R logit rows, H hidden, I intermediate, N out features, M in features,
E experts, K experts of a token, V vocabulary, Q and KV heads, D head dim, P pages, S page size,
B sequences, L layers, G columns that share a scale, C column tiles. In vision ops P patches.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np

# bf16 numbers travel as their bits.
DTYPES = {'bf16': 'uint16', 'f32': 'float32', 'i32': 'int32', 'u32': 'uint32', 'u8': 'uint8',
          'u64': 'uint64'}

# op -> argument -> (axes, type or types). A letter means one size in all arguments of a call.
SHAPES: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    'gemm_nvfp4': {'out': (('T', 'N'), 'bf16'), 'x': (('T', 'M'), 'bf16')},
    'gemm_bf16': {'out': (('T', 'N'), 'bf16'), 'x': (('T', 'M'), 'bf16'),
                  'weight': (('N', 'M'), 'bf16')},
    'gated_bf16': {'out': (('T', 'I'), 'bf16'), 'x': (('T', 'M'), 'bf16'),
                   'weight': (('2I', 'M'), 'bf16')},
    'head_bf16': {'logits': (('R', 'V'), 'f32'), 'x': (('R', 'H'), 'bf16'),
                  'weight': (('V', 'H'), 'bf16')},
    'head_nvfp4': {'logits': (('R', 'V'), 'f32'), 'x': (('R', 'H'), 'bf16')},
    'moe_nvfp4_gate_up': {'inner': (('T', 'K', 'I'), 'bf16'), 'x': (('T', 'H'), 'bf16'),
                          'expert_ids': (('T', 'K'), 'i32')},
    'moe_nvfp4_down': {'results': (('T', 'K', 'H'), 'bf16'), 'inner': (('T', 'K', 'I'), 'bf16'),
                       'expert_ids': (('T', 'K'), 'i32')},
    'moe_chain': {'results': (('T', 'K', 'H'), 'bf16'), 'inner': (('T', 'K', 'I'), 'bf16'),
                  'x': (('T', 'H'), 'bf16'), 'expert_ids': (('T', 'K'), 'i32'),
                  'arrivals': (('N',), 'u32')},
    'dense_parts': {'parts': (('T', 'J', 'H'), 'f32'), 'inner': (('T', 'M'), 'bf16')},
    'moe_nvfp4_combine': {'out': (('T', 'H'), 'f32'), 'results': (('T', 'K', 'H'), 'bf16'),
                          'expert_ids': (('T', 'K'), 'i32'),
                          'expert_weights': (('T', 'K'), 'f32')},
    'embed': {'hidden': (('T', 'H'), 'f32'), 'token_ids': (('T',), 'i32'),
              'table': (('V', 'H'), 'bf16')},
    'geglu': {'out': (('T', 'I'), 'bf16'), 'gate_up': (('T', '2I'), 'bf16')},
    'rms_norm': {'x': (('T', 'H'), 'f32')},
    'rms_norm_add': {'x': (('T', 'H'), 'f32'), 'a': (('T', 'H'), 'bf16|f32'),
                     'weight_a': (('H',), 'f32')},
    'rms_norm_sum': {'a': (('T', 'H'), 'bf16|f32'), 'weight_a': (('H',), 'f32'),
                     'weight_b': (('H',), 'f32')},
    'rms_norm_parts': {'a': (('T', 'J', 'H'), 'f32'), 'weight_a': (('H',), 'f32'),
                       'weight_b': (('H',), 'f32')},
    'experts_sum': {'results': (('T', 'K', 'H'), 'bf16'), 'expert_ids': (('T', 'K'), 'i32'),
                    'expert_weights': (('T', 'K'), 'f32')},
    'kv_append': {'q': (('T', 'Q', 'D'), 'bf16'), 'k_pages': (('P', 'S', 'KV', 'D'), 'bf16|u8'),
                  'v_pages': (('P', 'S', 'KV', 'D'), 'bf16|u8'), 'qkv': (('T', 'N'), 'bf16'),
                  'q_norm': (('D',), 'f32'), 'k_norm': (('D',), 'f32'),
                  'sequences': (('T',), 'i32'), 'positions': (('T',), 'i32'),
                  'page_table': (('B', 'maxP'), 'i32')},
    'attention_decode': {
        'out': (('T', 'Q', 'D'), 'bf16'), 'q': (('T', 'Q', 'D'), 'bf16'),
        'k_pages': (('P', 'S', 'KV', 'D'), 'bf16|u8'),
        'v_pages': (('P', 'S', 'KV', 'D'), 'bf16|u8'), 'spans': (('B', 'four'), 'i32'),
        'page_table': (('B', 'maxP'), 'i32')},
    'attention_append': {
        'out': (('T', 'Q', 'D'), 'bf16'), 'qkv': (('T', 'N'), 'bf16'),
        'k_pages': (('P', 'S', 'KV', 'D'), 'bf16|u8'),
        'v_pages': (('P', 'S', 'KV', 'D'), 'bf16|u8'), 'spans': (('B', 'four'), 'i32'),
        'page_table': (('B', 'maxP'), 'i32'), 'q_norm': (('D',), 'f32'),
        'k_norm': (('D',), 'f32')},
    'moe_route': {'expert_ids': (('T', 'K'), 'i32'), 'expert_weights': (('T', 'K'), 'f32'),
                  'x': (('T', 'H'), 'bf16'), 'weight': (('E', 'H'), 'bf16'),
                  'per_expert_scale': (('E',), 'f32'), 'sequences': (('T',), 'i32')},
    'moe_route_add': {
        'expert_ids': (('T', 'K'), 'i32'), 'expert_weights': (('T', 'K'), 'f32'),
        'x': (('T', 'H'), 'f32'), 'normed_0': (('T', 'H'), 'bf16'),
        'normed_1': (('T', 'H'), 'bf16'), 'a': (('T', 'H'), 'bf16'),
        'weight_a': (('H',), 'f32'), 'w_0': (('H',), 'f32'), 'w_1': (('H',), 'f32'),
        'routed': (('H',), 'f32'), 'weight': (('E', 'H'), 'bf16'),
        'per_expert_scale': (('E',), 'f32'), 'sequences': (('T',), 'i32')},
    'draft_heads': {'heads': (('T', 'N'), 'bf16'), 'q_norm': (('D',), 'f32'),
                    'k_norm': (('D',), 'f32'), 'starts': (('B',), 'i32')},
    'draft_context': {
        'k_pages': (('L', 'P', 'S', 'KV', 'D'), 'bf16'),
        'v_pages': (('L', 'P', 'S', 'KV', 'D'), 'bf16'), 'kv': (('T', 'N'), 'bf16'),
        'k_norms': (('L', 'D'), 'f32'), 'sequences': (('T',), 'i32'),
        'positions': (('T',), 'i32'), 'page_table': (('B', 'maxP'), 'i32')},
    'draft_attention': {
        'out': (('T', 'Q', 'D'), 'bf16'), 'qkv': (('T', 'N'), 'bf16'),
        'k_pages': (('P', 'S', 'KV', 'D'), 'bf16'), 'v_pages': (('P', 'S', 'KV', 'D'), 'bf16'),
        'page_table': (('B', 'maxP'), 'i32'), 'starts': (('B',), 'i32')},
    'draft_tap': {'features': (('T', 'N'), 'bf16'), 'residual': (('T', 'H'), 'f32')},
    'draft_keep': {'pages': (('P', 'S', 'H'), 'bf16'), 'normed': (('T', 'H'), 'bf16'),
                   'sequences': (('T',), 'i32'), 'positions': (('T',), 'i32'),
                   'page_table': (('B', 'maxP'), 'i32')},
    'draft_join': {'x': (('B', '2H'), 'bf16'), 'token_ids': (('B',), 'i32'),
                   'starts': (('B',), 'i32'), 'page_table': (('B', 'maxP'), 'i32'),
                   'table': (('V', 'H'), 'bf16')},
    'draft_add_norm': {'normed': (('T', 'H'), 'bf16'), 'branch': (('T', 'H'), 'bf16'),
                       'weight': (('H',), 'f32')},
    'draft_accept': {'starts': (('B',), 'i32'), 'newest': (('B', 'two'), 'i32'),
                     'draft_spans': (('B', 'four'), 'i32'),
                     'records': (('R', 'record'), 'u8'), 'spans': (('B', 'four'), 'i32')},
    'draft_confidence': {'confidence': (('R',), 'f32'), 'shares': (('R', 'parts'), 'f32'),
                         'tickets': (('R',), 'u32'),
                         'logits': (('R', 'V'), 'f32'), 'tokens': (('R',), 'i32'),
                         'records': (('R', 'record'), 'u8')},
    'attention_blocks': {'blocks': (('T', 'two'), 'i32')},
    'vision_numbers': {'out': (('P', 'M'), 'bf16'), 'patches': (('P', 'M'), 'u8')},
    'vision_widen': {'out': (('P', 'M'), 'f32'), 'x': (('P', 'M'), 'bf16')},
    'vision_positions': {'x': (('P', 'M'), 'f32')},
    'vision_pool': {'out': (('N', 'M'), 'f32'), 'x': (('P', 'M'), 'f32')},
    'vision_standardize': {'x': (('P', 'M'), 'f32'), 'bias': (('M',), 'f32'),
                           'scale': (('M',), 'f32')},
    'vision_bias': {'x': (('P', 'M'), 'f32'), 'bias': (('M',), 'f32')},
    'vision_clip': {'x': (('P', 'M'), 'bf16')},
    'vision_heads': {'qkv': (('P', 'three', 'N', 'D'), 'bf16'), 'q_norm': (('D',), 'f32'),
                     'k_norm': (('D',), 'f32'), 'cos': (('places', 'quarter'), 'f32'),
                     'sin': (('places', 'quarter'), 'f32')},
    'vision_attention': {'out': (('P', 'N', 'D'), 'bf16'),
                         'qkv': (('P', 'three', 'N', 'D'), 'bf16')},
    'layer_norm': {'x': (('T', 'H'), 'bf16|f32'), 'weight': (('H',), 'f32'),
                   'bias': (('H',), 'f32')},
    'sample': {'tokens': (('R',), 'i32'), 'logits': (('R', 'V'), 'f32'),
               'records': (('R', 'record'), 'u8'), 'ids': (('list',), 'i32'),
               'values': (('list',), 'f32'), 'masks': (('M', 'words'), 'u32')},
}


def check(op: str, sizes: dict[str, int] | None = None, **arrays: Any) -> dict[str, int]:
    """Hold the arguments of an op against its table; gives the sizes by letter.

    sizes: letters that are known from elsewhere, such as a weight's N and M. The arrays must be
    C-contiguous. Raises AssertionError: a mismatch is ours, not the user's.
    """
    for name, array in arrays.items():
        assert array.flags.c_contiguous, f'{op}: {name} is not contiguous'
    return dict(_sizes(op, tuple(sizes.items()) if sizes else (), tuple(
        [(name, array.shape, array.dtype) for name, array in arrays.items()])))


@lru_cache(4096)
def _sizes(op: str, given: tuple[tuple[str, int], ...],
           forms: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]) -> dict[str, int]:
    """What `check` gives; the same forms come again with every launch of an op."""
    known = {letter: (size, 'the weight') for letter, size in given}
    table = _table(op)
    assert {name for name, *_ in forms} == table.keys(), (op, forms, sorted(table))
    for name, shape, dtype in forms:
        axes, dtypes = table[name]
        assert dtype in dtypes, f'{op}: {name} is {dtype}, not {SHAPES[op][name][1]}'
        assert len(shape) == len(axes), (
            f'{op}: {name} has {len(shape)} axes, not {len(axes)} ({", ".join(axes)})')
        for letter, size in zip(axes, shape, strict=True):
            other, source = known.setdefault(letter, (size, name))
            assert size == other, f'{op}: {name} has {letter}={size} but {source} has {other}'
    return {letter: size for letter, (size, _) in known.items()}


@cache
def _table(op: str) -> dict[str, tuple[tuple[str, ...], frozenset[np.dtype[Any]]]]:
    """An op's arguments with their types as arrays have them: a step asks 400 times."""
    return {name: (axes, frozenset(np.dtype(DTYPES[kind]) for kind in dtype.split('|')))
            for name, (axes, dtype) in SHAPES[op].items()}
