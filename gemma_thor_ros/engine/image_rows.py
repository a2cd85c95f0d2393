# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Soft tokens of the images in a step's rows: computed once for an image, as far as memory goes.

An image runs alone and gives the same bits each time, so what is kept saves time and changes
nothing: for the choices of one call, for a prompt that was dropped and comes again. The engine
thread's own.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol

from gemma_thor_ros.engine.plan import Plan
from gemma_thor_ros.models.batch import SoftRows
from gemma_thor_ros.schema import PromptImage

KEPT_BYTES = 64 << 20                    # of soft tokens; an image of the 31B has about 6 MB


class Vision(Protocol):
    """What the engine needs of models/vision.Vision."""

    def encode(self, patches: Any, columns: int) -> Any:
        """The soft tokens (N, H) of one image, an array of their own."""


class ImageRows:
    """The soft tokens of one engine's images."""

    def __init__(self, vision: Vision, kept_bytes: int = KEPT_BYTES) -> None:
        self.num_encoded = 0
        self._vision = vision
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[bytes, Any] = OrderedDict()     # last used last
        self._num_bytes = 0

    def of(self, plan: Plan) -> tuple[SoftRows, ...]:
        """The soft rows of a plan's batch."""
        found = []
        for part, span in zip(plan.parts, plan.batch.spans, strict=True):
            for image in part.sequence.request.images:
                if (image.start, image.stop) in span.blocks:
                    row = span.start_row + image.start - span.start_position
                    found.append(SoftRows(row, self._soft_tokens(image)))
        return tuple(found)

    def _soft_tokens(self, image: PromptImage) -> Any:
        kept = self._kept.get(image.digest)
        if kept is not None:
            self._kept.move_to_end(image.digest)
            return kept
        self.num_encoded += 1
        soft = self._vision.encode(image.patches, image.columns)
        if soft.shape[0] != image.num_tokens:
            raise ValueError(f'an image has {soft.shape[0]} soft tokens, its prompt has room for '
                             f'{image.num_tokens}')
        self._kept[image.digest] = soft
        self._num_bytes += soft.nbytes
        while self._num_bytes > self._kept_bytes and len(self._kept) > 1:
            self._num_bytes -= self._kept.popitem(last=False)[1].nbytes
        return soft
