# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the vision part has to know of a checkpoint, read from config.json or refused by name.

Two kinds: towers (26B, 31B, E2B, E4B), transformers over patches of 16 x 16 pixels, and the
embedder of the 12B, which takes patches of 48 x 48 straight to soft tokens. Knows no arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gemma_thor_ros.models.admission import integer, number
from gemma_thor_ros.schema import ConfigError

TOWER, EMBEDDER = 'gemma4_vision', 'gemma4_unified_vision'
TOKEN_SIDE = 48                          # pixels of a soft token; image/prepare.py scales to them
BUDGETS = (70, 140, 280, 560, 1120)


@dataclass(frozen=True)
class VisionConfig:
    """Sizes of a vision part. Names are those of vision_config where it has them."""

    kind: Literal['tower', 'embedder']
    text_hidden_size: int
    hidden_size: int             # of the tower; mm_embed_dim of the embedder
    patch_side: int              # pixels of a patch
    pooling_kernel_size: int     # patches of a soft token, each way
    num_positions: int           # rows of the position tables
    rms_norm_eps: float
    soft_tokens: int             # of an image, at most, unless a setting says otherwise
    num_hidden_layers: int = 0   # the rest: towers only
    num_attention_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    rope_theta: float = 0.0
    standardize: bool = False
    use_clipped_linears: bool = False

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> VisionConfig | None:
        """Read a config.json; None where it has no vision part.

        Raises ConfigError that names the field, what it holds and what would be right.
        """
        vision, text = config.get('vision_config'), config.get('text_config')
        if not isinstance(vision, Mapping) or not isinstance(text, Mapping):
            return None
        try:
            return cls._read(vision, integer(text, 'hidden_size'))
        except ConfigError as error:
            raise ConfigError(f'vision_config: {error}') from error

    @classmethod
    def _read(cls, vision: Mapping[str, Any], hidden_size: int) -> VisionConfig:
        kind = vision.get('model_type')
        patch, pooling = integer(vision, 'patch_size', 16), integer(
            vision, 'pooling_kernel_size', 3)
        if patch * pooling != TOKEN_SIDE:
            raise ConfigError(f'patch_size is {patch} and pooling_kernel_size {pooling}: a soft '
                              f'token stands for {TOKEN_SIDE} pixels each way')
        eps = number(vision, 'rms_norm_eps', 1e-6)
        if kind == EMBEDDER:
            width = integer(vision, 'mm_embed_dim', hidden_size)
            if integer(vision, 'output_proj_dims', width) != width:
                raise ConfigError(f'output_proj_dims is {vision["output_proj_dims"]}, '
                                  f'mm_embed_dim {width}; they must be equal')
            return cls('embedder', hidden_size, width, TOKEN_SIDE, 1,
                       integer(vision, 'mm_posemb_size', 1120), eps,
                       _budget(vision, 'num_soft_tokens'))
        if kind != TOWER:
            raise ConfigError(f'model_type is {kind!r}, supported are {TOWER} and {EMBEDDER}')
        _refuse_unsupported(vision)
        heads = integer(vision, 'num_attention_heads')
        head_dim = integer(vision, 'head_dim', integer(vision, 'hidden_size') // heads)
        if head_dim % 4:
            raise ConfigError(f'head_dim is {head_dim}: axial rope needs a multiple of 4')
        if integer(vision, 'num_key_value_heads', heads) != heads:
            raise ConfigError(f'num_key_value_heads is {vision["num_key_value_heads"]}, '
                              f'num_attention_heads {heads}; they must be equal')
        rope = vision.get('rope_parameters') or {}
        if rope.get('rope_type', 'default') not in ('default', 'axial'):
            raise ConfigError(f'rope_parameters.rope_type is {rope["rope_type"]!r}, expected '
                              "'default' or 'axial'")
        return cls(
            'tower', hidden_size, integer(vision, 'hidden_size'), patch, pooling,
            integer(vision, 'position_embedding_size', 10240), eps,
            _budget(vision, 'default_output_length'), integer(vision, 'num_hidden_layers'), heads,
            head_dim, integer(vision, 'intermediate_size'),
            number(rope, 'rope_theta', 100.0, 'rope_parameters.'),
            bool(vision.get('standardize', False)),
            bool(vision.get('use_clipped_linears', False)))


def _budget(vision: Mapping[str, Any], key: str) -> int:
    value = integer(vision, key, 280)
    if value not in BUDGETS:
        raise ConfigError(f'{key} is {value}, expected one of {", ".join(map(str, BUDGETS))}')
    return value


def _refuse_unsupported(vision: Mapping[str, Any]) -> None:
    activation = vision.get('hidden_activation', 'gelu_pytorch_tanh')
    if activation != 'gelu_pytorch_tanh':
        raise ConfigError(f'hidden_activation is {activation!r}, expected gelu_pytorch_tanh')
    if vision.get('attention_bias'):
        raise ConfigError('attention_bias is true, expected false')
