# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What a drafter borrows from its target, and the loading that both draft models share.

Knows no engine and no files: weights come as a mapping from canonical names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.ops.linear import StoredWeight
from gemma_thor_ros.ops.rounding import round_to_bf16
from gemma_thor_ros.schema import ConfigError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class DraftTarget:
    """The target's tied table (V, H) in the device's form and its final norm (H,)."""

    config: ModelConfig
    table: Any
    norm: Any

    @cached_property
    def embed_scale(self) -> float:
        """sqrt(H) as the target rounds it: drafters read the same scaled embeddings."""
        root = np.array([self.config.hidden_size ** 0.5], np.float64)
        return float(round_to_bf16(root)[0])


def get_weight(weights: Mapping[str, StoredWeight], name: str) -> StoredWeight:
    """A weight by its canonical name; ConfigError when the drafter lacks it."""
    try:
        return weights[name]
    except KeyError:
        raise ConfigError(f'the drafter has no tensor {name}') from None
