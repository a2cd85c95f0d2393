# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The pages that hold K and V of every layer, allocated once.

Position p of a sequence lies in page `page_table[p // page_size]`, slot `p % page_size`. Which
page belongs to whom is engine/page_pool's affair; nothing here allocates after construction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.config import FULL, SLIDING, ModelConfig
from gemma_thor_ros.models.page_planes import Planes

Array = npt.NDArray[Any]


def bytes_per_page(config: ModelConfig, page_size: int, element_bytes: int) -> tuple[int, int]:
    """Bytes of one sliding page and of one full page, K and V of all layers that write such.

    `element_bytes` is the size of one stored number: 4 for float32, on a CUDA device 2 or 1.
    """
    sizes = []
    for geometry in (config.sliding, config.full):
        num_layers = sum(layer < config.first_shared_layer
                         for layer in config.layers_of(geometry.layer_type))
        row = geometry.num_kv_heads * geometry.head_dim
        sizes.append(2 * num_layers * page_size * row * element_bytes)
    return sizes[0], sizes[1]


class KVCache:
    """K and V pages of all layers: `k_pages[layer]` and `v_pages[layer]`, each (P, S, KV, D).

    Layers that share K and V have the very arrays of the layer that writes them.

    P is `num_sliding_pages` in sliding layers and `num_full_pages` in full ones. The values are
    already rounded to the cache type when they arrive; `dtype` is what they are stored in: on a
    CUDA device their bits, uint16 for bf16 and uint8 for e4m3. zeros makes an array there, stream
    is what orders its copies.
    """

    def __init__(self, config: ModelConfig, num_sliding_pages: int, num_full_pages: int,
                 page_size: int, dtype: npt.DTypeLike,
                 zeros: Callable[[tuple[int, ...], np.dtype[Any]], Array] = np.zeros,
                 stream: Any = None) -> None:
        self.config = config
        self.page_size = page_size
        self.num_pages = {SLIDING: num_sliding_pages, FULL: num_full_pages}
        self.dtype = np.dtype(dtype)
        self._stream = stream
        self.k_pages: list[Array] = []
        self.v_pages: list[Array] = []
        for layer in range(config.num_hidden_layers):
            source = config.kv_layer(layer)
            if source != layer:
                self.k_pages.append(self.k_pages[source])
                self.v_pages.append(self.v_pages[source])
                continue
            geometry = config.geometry(layer)
            shape = (self.num_pages[geometry.layer_type], page_size,
                     geometry.num_kv_heads, geometry.head_dim)
            self.k_pages.append(zeros(shape, self.dtype))
            self.v_pages.append(zeros(shape, self.dtype))

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages."""
        own = slice(self.config.first_shared_layer)
        return sum(pages.nbytes for pages in (*self.k_pages[own], *self.v_pages[own]))

    def planes(self) -> Planes:
        """K and V of the layers that have pages of their own."""
        found: dict[str, list[Array]] = {SLIDING: [], FULL: []}
        for layer in range(self.config.first_shared_layer):
            found[self.config.geometry(layer).layer_type] += [self.k_pages[layer],
                                                              self.v_pages[layer]]
        return Planes(tuple(found[SLIDING]), tuple(found[FULL]), self._stream)
