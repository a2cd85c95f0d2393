# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Finds a checkpoint's vision part, or why its images are refused: load.py's hand for it.

A text model whose vision part can't be read still serves text: an image is then refused with the
reason. Knows no settings' names and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemma_thor_ros.engine.image_rows import KEPT_BYTES
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.vision import workspace_bytes
from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.ops import vision_cuda
from gemma_thor_ros.prompt_images import VisionInfo
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.checkpoint import Checkpoint
from gemma_thor_ros.weights.vision import VisionWeights

_TOKENS = ('image_token_id', 'boi_token_id', 'eoi_token_id')


@dataclass(frozen=True)
class FoundVision:
    """What the model will see with: `part` is Gemma4's argument, None where it sees nothing.

    Its config has the most soft tokens of an image that the settings allow.
    """

    info: VisionInfo
    part: tuple[VisionConfig, VisionWeights] | None = None

    @property
    def device_bytes(self) -> int:
        """Device memory that it needs: weights, soft tokens that are kept, and what an image needs
        under way, twice: the graph of the size that comes again and again has its own.
        """
        if self.part is None:
            return 0
        config, weights = self.part
        return weights.device_bytes + 2 * workspace_bytes(config) + KEPT_BYTES


def find_vision(checkpoint: Checkpoint, model: ModelConfig, device: str,
                soft_tokens: str) -> FoundVision:
    """The vision part of a checkpoint; `soft_tokens` 'auto' or of an image at most.

    Never raises ConfigError: what is wrong becomes the reason for which images are refused.
    """
    try:
        config = VisionConfig.from_dict(checkpoint.config)
        if config is None:
            return FoundVision(VisionInfo())
        reason = _unfit(config, model, device)
        weights = None if reason else VisionWeights(checkpoint)
        if device == 'cuda' and weights is not None and weights.unlike_device():
            reason = (f'{weights.unlike_device()}; on CUDA the matrices of the vision part are '
                      'bf16, NVFP4 or MLX affine')
        if not reason and weights is not None:
            most = config.soft_tokens if soft_tokens == 'auto' else int(soft_tokens)
            # a thin image has all its soft tokens, and so all its patches, in one row
            longest = most * config.pooling_kernel_size
            if longest > config.num_positions:
                raise ConfigError(
                    f'image.soft_tokens is {most}: an image may be {longest} patches long, the '
                    f'position table has {config.num_positions} rows')
            return FoundVision(VisionInfo(config.patch_side, most),
                               (replace(config, soft_tokens=most), weights))
    except ConfigError as error:
        reason = str(error)
    return FoundVision(VisionInfo(reason=reason))


def _unfit(config: VisionConfig, model: ModelConfig, device: str) -> str:
    """Why a sound vision part can't be used, or ''."""
    if device == 'cuda' and vision_cuda.unfit(config):
        return vision_cuda.unfit(config) + '; engine.device cpu takes others'
    ids = dict(model.media_token_ids)
    missing = [key for key in _TOKENS if key not in ids]
    if missing:
        return f'config.json has no {", ".join(missing)}'
    return ''
