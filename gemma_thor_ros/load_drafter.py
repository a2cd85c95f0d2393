# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Finds a model's drafter, checks that it fits, and makes it: load.py's hand for speculation.

Knows no engine and no settings' names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gemma_thor_ros.models.cuda_dflash import CudaDFlash
from gemma_thor_ros.models.cuda_draft import CudaDraftConfig, CudaDrafter, Network
from gemma_thor_ros.models.cuda_mtp import CudaMtp
from gemma_thor_ros.models.cuda_step import CudaGemma4
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
from gemma_thor_ros.ops.fragment_order import PackedMatrix
from gemma_thor_ros.ops.linear import StoredWeight
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.drafter import DrafterCheckpoint, open_drafter

DrafterChoice = Literal['auto', 'none', 'dflash', 'mtp']

_log = logging.getLogger(__name__)

QuantizeHead = Callable[[StoredWeight], PackedMatrix]

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

    def bytes_per_page(self, page_size: int, device: str) -> tuple[int, int]:
        """Bytes that it keeps beside a sliding page and beside a full page on a device."""
        if device == 'cuda':
            return CudaDraftConfig.of(self.config).bytes_per_page(page_size)
        return self.config.bytes_per_page(page_size)


def device_drafter(config: DFlashConfig | MtpConfig, weights: Mapping[str, StoredWeight],
                   model: CudaGemma4, *, context_length: int,
                   quantize_head: QuantizeHead | None = None) -> CudaDrafter:
    """A drafter on a model's device, attached to the model before that has a cache.

    quantize_head gives the table of an assistant in NVFP4 for its head; None: bf16.
    """
    target = DraftTarget(model.config, model.table, model.final_norm)
    network: Network
    if isinstance(config, MtpConfig):
        network = CudaMtp(config, weights, target, stream=model.stream,
                          context_length=context_length, scales_of=model.kv_scales,
                          quantize_head=quantize_head)
    else:
        network = CudaDFlash(config, weights, target, stream=model.stream,
                             prompt_rows=model.prompt_rows)
    drafter = CudaDrafter(network, model.vocab_size, model.stream, context_length,
                          model.graphs.enabled)
    model.attach(drafter)
    return drafter


def unfit_on_device(config: DFlashConfig | MtpConfig) -> str:
    """Why the CUDA kernels can't run a drafter, or ''."""
    sizes = config.hidden_size, config.intermediate_size
    if any(size % 8 for size in sizes):
        return f'hidden_size and intermediate_size are {sizes}; the kernels take multiples of 8'
    if isinstance(config, MtpConfig):
        for shape in (config.sliding, config.full):
            if shape.head_dim not in (256, 512) or shape.group > 16:
                return (f'it has head_dim {shape.head_dim} and {shape.group} query heads per kv '
                        'head; the kernels take head_dim 256 or 512 and at most 16')
        return ''
    group = config.num_attention_heads // config.num_key_value_heads
    if config.head_dim % 16 or config.head_dim > 128 or group > 8:
        return (f'it has head_dim {config.head_dim} and {group} query heads per kv head; the '
                'kernels take multiples of 16 up to 128, and at most 8')
    return ''


def find_drafter(choice: DrafterChoice, path: str, model_folder: Path, target: Any, *,
                 block_mask: BlockMask = 'auto', position: DraftPosition = 'newest',
                 device: str = 'cpu') -> FoundDrafter | None:
    """The drafter of a model, from `path` or from the model folder's dflash/ and mtp/.

    target: the model's ModelConfig. choice 'auto' takes what lies at `path`, else the first of the
    two folders that is there, else none. On 'cuda' it leaves out what the kernels can't run.
    Raises ConfigError that names the folder when a wanted drafter is missing, unsound, unfit for
    the device, or belongs to another model.
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
    reason = unfit_on_device(config) if device == 'cuda' else ''
    if not reason:
        return FoundDrafter(weights, config)
    if choice != 'auto':
        raise ConfigError(f'{present[0]}: this drafter does not run on CUDA: {reason}; set '
                          'engine.device to cpu, or speculation.drafter to auto or none')
    _log.info('the drafter is left out: %s', reason)
    return None
