# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The seam between a model on a CUDA device and what runs in its shadow: a drafter there.

The shadow's launches go to the model's stream and into its graphs, behind the layers that they
read. Knows no drafter, no kernels and no graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gemma_thor_ros.models.cuda_inputs import Pass, StepInputs
from gemma_thor_ros.ops.sample import SampleRow


@dataclass(frozen=True)
class ShadowRows:
    """Where the rows of a pass are: arrays of the device, the same ones for passes of one size.

    sequences (T,) i32 is each row's row of the tables (B, max_pages) i32 by layer type, -1 for
    padding; positions (T,) i32. prompt: the rows are of prompts.
    """

    sequences: Any
    positions: Any
    tables: dict[str, Any]
    prompt: bool


class Shadow(Protocol):
    """What CudaGemma4 calls."""

    @property
    def layers(self) -> frozenset[int]:
        """Layers that it taps."""

    def tap(self, layer: int, residual: Any) -> None:
        """Enqueue a copy of what it needs of a tapped layer's output (T, H) f32."""

    def keep(self, normed: Any, rows: ShadowRows) -> None:
        """Enqueue what it keeps of the rows; normed (T, H) bf16 is what the head reads."""

    def ahead(self, step: Pass, firsts: Sequence[SampleRow], inputs: StepInputs, tokens: Any,
              kv_cache: Any) -> None:
        """Enqueue the next drafts behind a verify pass whose tokens (T,) i32 are being chosen.

        firsts: of each sequence what its first row is chosen by.
        """
