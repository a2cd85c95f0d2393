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
    """Plan for max_sequences as far as the budget goes, then for checkpoints of prefixes.

    image_tokens: of one image at most, which are prefilled in one step whatever the chunk.
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
    count = min(config['engine.max_sequences'], budget / one)
    window, most = window_pages(page_size, longest), config['engine.max_checkpoints']
    # not below 0: where memory sets the count, what is left is 0 but for its rounding
    affordable = max(0.0, budget - count * one) // max(1, window * sliding_bytes)
    # Beyond these, checkpoints keep pages that no sequence needs at the moment.
    extra = int(min(most, affordable)) * window
    return Pages(int(sliding * count) + extra, int(full * count), most * window)


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
