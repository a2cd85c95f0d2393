# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How many KV pages there will be, and in which type: load.py's memory plan.

Knows settings, shapes and bytes; no weights and no device.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.engine.page_pool import plan_pages, window_pages
from gemma_thor_ros.load_drafter import FoundDrafter
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.kv_cache import bytes_per_page
from gemma_thor_ros.ops.rounding import KvDtype
from gemma_thor_ros.schema import ConfigError

_SHORT = 8                               # of a context: what most sequences need at most


class Pages(NamedTuple):
    """Pages of the KV cache; checkpoints of prefixes may keep so many of the sliding ones."""

    sliding: int
    full: int
    checkpoints: int


def plan_memory(
    config: EngineConfig,
    model: ModelConfig,
    context: int,
    drafter: FoundDrafter | None,
    kv_dtype: KvDtype,
    device: str,
    image_tokens: int = 0,
) -> Pages:
    """Plan for one sequence of full context, then for max_sequences, then for checkpoints too.

    The others count with an eighth of the context first: a sequence needs its sliding pages at any
    length, and most are short. Then come the rest of their contexts and the checkpoints of
    prefixes. image_tokens: of one image at most, prefilled in one step whatever the chunk.
    """
    page_size = config['engine.page_size']
    longest = max(model.sliding_window, drafter.config.window if drafter else 0)
    sliding, full = plan_pages(
        context,
        1,
        page_size=page_size,
        window=longest,
        prefill_chunk=max(config['engine.prefill_chunk'], image_tokens),
    )
    sliding_bytes, full_bytes = bytes_per_page(model, page_size, _element_bytes(kv_dtype, device))
    if drafter is not None:
        more = drafter.bytes_per_page(page_size, device)
        sliding_bytes, full_bytes = sliding_bytes + more[0], full_bytes + more[1]
    one = sliding * sliding_bytes + full * full_bytes
    budget = config['engine.kv_memory'] * 2**30
    if one > budget:
        raise ConfigError(
            f'one sequence of {context:,} tokens needs {one / 2**30:.3f} GiB of KV pages, '
            f'engine.kv_memory is {config["engine.kv_memory"]:g} GiB: raise it or lower '
            'engine.context_length'
        )
    window, most = window_pages(page_size, longest), config['engine.max_checkpoints']
    others = config['engine.max_sequences'] - 1
    short = -(-full // _SHORT)
    # What memory there is goes to these in order; of the last ones all get the same share.
    steps = [(others * sliding, others * short),
             (most * window, others * (full - short))]
    left, num_sliding, num_full = budget - one, float(sliding), float(full)
    for more_sliding, more_full in steps:
        cost = more_sliding * sliding_bytes + more_full * full_bytes
        share = min(1.0, left / cost) if cost else 1.0
        num_sliding, num_full = num_sliding + share * more_sliding, num_full + share * more_full
        left = max(0.0, left - share * cost)
    return Pages(int(num_sliding), int(num_full), most * window)


def choose_kv_dtype(config: EngineConfig, device: str) -> KvDtype:
    """What K and V are stored as on a device; ConfigError for what CUDA has not."""
    asked: KvDtype | Literal['auto'] = config['engine.kv_dtype']
    if asked == 'auto':
        return 'fp8' if device == 'cuda' else 'float32'
    if asked == 'float32' and device == 'cuda':
        raise ConfigError('engine.kv_dtype is float32; on CUDA it is bf16 or fp8')
    return asked


def _element_bytes(kv_dtype: KvDtype, device: str) -> int:
    # the CPU keeps rounded numbers as float32
    return {'float32': 4, 'bf16': 2, 'fp8': 1}[kv_dtype if device == 'cuda' else 'float32']


def kv_bytes(
    config: EngineConfig,
    model: ModelConfig,
    pages: Pages,
    kv_dtype: KvDtype,
    device: str,
    drafter: FoundDrafter | None,
) -> int:
    """Bytes of all pages, and of what a drafter keeps beside them."""
    page_size = config['engine.page_size']
    sizes = bytes_per_page(model, page_size, _element_bytes(kv_dtype, device))
    more = drafter.bytes_per_page(page_size, device) if drafter else (0, 0)
    return pages.sliding * (sizes[0] + more[0]) + pages.full * (sizes[1] + more[1])
