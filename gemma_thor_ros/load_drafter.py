# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Finds a model's drafter, checks that it fits, and makes it: load.py's hand for speculation.

Knows no engine and no settings' names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gemma_thor_ros.models.dflash import DFlash
from gemma_thor_ros.models.draft_config import (
    BlockMask,
    DFlashConfig,
    DraftPosition,
    MtpConfig,
)
from gemma_thor_ros.models.draft_target import DraftTarget
from gemma_thor_ros.models.drafter import Drafter
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.models.mtp import Mtp
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.drafter import DrafterCheckpoint, open_drafter

DrafterChoice = Literal['auto', 'none', 'dflash', 'mtp']

_KINDS = ('dflash', 'mtp')               # the order of preference of 'auto'


@dataclass(frozen=True)
class FoundDrafter:
    """A drafter whose headers fit a model: its config, and weights that are not read yet."""

    weights: DrafterCheckpoint
    config: DFlashConfig | MtpConfig

    def make(self, model: Gemma4, num_threads: int = 1) -> Drafter:
        """Read the weights; the drafter shares the model's table and final norm."""
        target = DraftTarget(model.config, model.table, model.final_norm)
        kinds: dict[str, Callable[..., Any]] = {'dflash': DFlash, 'mtp': Mtp}
        drafter: Drafter = kinds[self.config.name](
            self.config, self.weights, target, model.dtype, model.rounding,
            num_threads=num_threads)
        return drafter


def find_drafter(choice: DrafterChoice, path: str, model_folder: Path, target: Any, *,
                 block_mask: BlockMask = 'auto',
                 position: DraftPosition = 'newest') -> FoundDrafter | None:
    """The drafter of a model, from `path` or from the model folder's dflash/ and mtp/.

    target: the model's ModelConfig. choice 'auto' takes what lies at `path`, else the first of the
    two folders that is there, else none. Raises ConfigError that names the folder when a wanted
    drafter is missing, unsound, or belongs to another model.
    """
    if choice == 'none':
        return None
    wanted = _KINDS if choice == 'auto' else (choice,)
    folders = [Path(path)] if path else [model_folder / kind for kind in wanted]
    present = [folder for folder in folders if folder.is_dir()]
    if not present:
        if choice == 'auto' and not path:
            return None
        raise ConfigError(f'{folders[0]}: no such folder; a {choice} drafter is asked for')
    weights = open_drafter(present[0])
    if weights.kind not in wanted:
        raise ConfigError(f'{present[0]}: holds a {weights.kind} drafter, {choice} is asked for')
    config: DFlashConfig | MtpConfig
    try:
        if weights.kind == 'dflash':
            config = DFlashConfig.from_dict(weights.config, target, block_mask)
        else:
            config = MtpConfig.from_dict(weights.config, target, position)
    except ConfigError as error:
        raise ConfigError(f'{present[0] / "config.json"}: {error}') from error
    return FoundDrafter(weights, config)
