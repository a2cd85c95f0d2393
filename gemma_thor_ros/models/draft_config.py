# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the draft models have to know of their checkpoints: DFlash blocks and MTP assistants.

A config is only ever made by `from_dict`, which admits a drafter for one target model or refuses
it by name. Knows no files, no weights and no arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gemma_thor_ros.models.admission import LAYER_TYPES, integer, number
from gemma_thor_ros.models.config import FULL, SLIDING, LayerGeometry, ModelConfig
from gemma_thor_ros.schema import ConfigError

MAX_DRAFTS = 15                          # a verify step has at most 16 rows
_MTP_DRAFTS = 8                          # the assistants are run with 2 to 4
_ELEMENT_BYTES = 4                       # the CPU keeps numbers as float32

BlockMask = Literal['auto', 'causal', 'bidirectional']
DraftPosition = Literal['newest', 'last_key']


@dataclass(frozen=True)
class DFlashConfig:
    """A DFlash drafter that fits its target. Names are those of config.json."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    layer_types: tuple[str, ...]
    sliding_window: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]    # ascending
    rms_norm_eps: float
    rope_theta: float
    final_logit_softcapping: float | None
    causal_layers: tuple[bool, ...]      # whether a block row sees no later ones, layer by layer

    name: ClassVar[str] = 'dflash'

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], target: ModelConfig,
                  block_mask: BlockMask = 'auto') -> DFlashConfig:
        """Admit a config.json for a target, or raise ConfigError with the field and its numbers.

        block_mask 'auto': as the config's is_causal says, else sliding layers causal and full
        ones bidirectional in the block.
        """
        _refuse_other_family(config, 'DFlashDraftModel')
        hidden_size = integer(config, 'hidden_size')
        if hidden_size != target.hidden_size:
            raise ConfigError(f'the drafter has hidden_size {hidden_size}, the model '
                              f'{target.hidden_size}: a DFlash drafter works for its own model '
                              'only')
        num_target = config.get('num_target_layers')
        if num_target is not None and num_target != target.num_hidden_layers:
            raise ConfigError(f'the drafter has num_target_layers {num_target}, the model has '
                              f'{target.num_hidden_layers} layers')
        vocab_size = integer(config, 'vocab_size', target.vocab_size)
        if vocab_size != target.vocab_size:
            raise ConfigError(f'the drafter has vocab_size {vocab_size}, the model '
                              f'{target.vocab_size}')
        num_q, num_kv = integer(config, 'num_attention_heads'), integer(
            config, 'num_key_value_heads')
        head_dim = integer(config, 'head_dim')
        if num_q % num_kv or head_dim % 2:
            raise ConfigError(f'the drafter has {num_q} heads over {num_kv} kv heads of head_dim '
                              f'{head_dim}: they must divide, and head_dim be even')
        _refuse_other_maths(config)
        kinds = _kinds(config)
        inner = {**config, **(config.get('dflash_config') or {})}
        block_size = integer(inner, 'block_size', minimum=2)
        if block_size > MAX_DRAFTS + 1:
            raise ConfigError(f'block_size is {block_size}, at most {MAX_DRAFTS + 1} rows are '
                              'verified')
        softcap = config.get('final_logit_softcapping', target.final_logit_softcapping)
        return cls(
            hidden_size=hidden_size,
            intermediate_size=integer(config, 'intermediate_size'),
            num_attention_heads=num_q, num_key_value_heads=num_kv, head_dim=head_dim,
            layer_types=kinds,
            sliding_window=integer(config, 'sliding_window') if SLIDING in kinds else 0,
            block_size=block_size,
            mask_token_id=_mask_token(inner, vocab_size),
            target_layer_ids=_target_layers(inner, target),
            rms_norm_eps=number(config, 'rms_norm_eps', 1e-6),
            rope_theta=_theta(config),
            final_logit_softcapping=None if softcap is None else number(
                {'final_logit_softcapping': softcap}, 'final_logit_softcapping', None),
            causal_layers=_causal(config, kinds, block_mask))

    @property
    def max_drafts(self) -> int:
        """All rows of the block but the first."""
        return self.block_size - 1

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers that it reads."""
        return self.target_layer_ids

    @property
    def window(self) -> int:
        """Keys in its sliding pages that the newest row sees."""
        return self.sliding_window

    def bytes_per_page(self, page_size: int) -> tuple[int, int]:
        """Bytes of K and V beside a sliding page and beside a full page."""
        row = 2 * page_size * self.num_key_value_heads * self.head_dim * _ELEMENT_BYTES
        return (row * self.layer_types.count(SLIDING), row * self.layer_types.count(FULL))


@dataclass(frozen=True)
class MtpConfig:
    """An MTP assistant that fits its target. Names are those of config.json."""

    hidden_size: int
    backbone_hidden_size: int
    intermediate_size: int
    vocab_size: int
    layer_types: tuple[str, ...]
    rms_norm_eps: float
    sliding: LayerGeometry               # the target's heads, the assistant's own rope
    full: LayerGeometry
    shared_layers: tuple[tuple[str, int], ...]   # layer type, target layer whose K and V it reads
    last_layer: int                      # the target's, whose output the first draft starts from
    position: DraftPosition              # rope position of all drafts of a round

    name: ClassVar[str] = 'mtp'

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], target: ModelConfig,
                  position: DraftPosition = 'newest') -> MtpConfig:
        """Admit a config.json for a target, or raise ConfigError with the field and its numbers.

        position: drafts stand at the newest token's position, or at the last committed key's.
        """
        if config.get('model_type') not in ('gemma4_assistant', 'gemma4_unified_assistant'):
            raise ConfigError(f'model_type {config.get("model_type")!r} is no assistant of this '
                              'family (gemma4_assistant, gemma4_unified_assistant)')
        backbone = integer(config, 'backbone_hidden_size')
        if backbone != target.hidden_size:
            raise ConfigError(f'the assistant has backbone_hidden_size {backbone}, the model '
                              f'hidden_size {target.hidden_size}: it belongs to another model')
        if config.get('use_ordered_embeddings'):
            raise ConfigError('use_ordered_embeddings is true (the assistants of E2B and E4B), '
                              'which is not supported yet')
        text = config.get('text_config')
        if not isinstance(text, Mapping):
            raise ConfigError(f'text_config is {text!r}: this assistant has no layers')
        own = _assistant_text(text)
        if own.vocab_size != target.vocab_size:
            raise ConfigError(f'the assistant has vocab_size {own.vocab_size}, the model '
                              f'{target.vocab_size}')
        return cls(
            hidden_size=own.hidden_size, backbone_hidden_size=backbone,
            intermediate_size=own.intermediate_size, vocab_size=own.vocab_size,
            layer_types=own.layer_types, rms_norm_eps=own.rms_norm_eps,
            sliding=_same_heads(own.sliding, target.sliding, SLIDING in own.layer_types),
            full=_same_heads(own.full, target.full, FULL in own.layer_types),
            shared_layers=_shared_layers(own.layer_types, target),
            last_layer=target.num_hidden_layers - 1, position=position)

    def geometry(self, kind: str) -> LayerGeometry:
        """Heads, window and rope of the layers of one type."""
        return self.sliding if kind == SLIDING else self.full

    @property
    def max_drafts(self) -> int:
        """The most drafts of a round."""
        return _MTP_DRAFTS

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's last layer."""
        return (self.last_layer,)

    @property
    def window(self) -> int:
        """It keeps nothing of its own."""
        return 0

    def bytes_per_page(self, page_size: int) -> tuple[int, int]:
        """It keeps nothing of its own."""
        return (0, 0)


def _refuse_other_family(config: Mapping[str, Any], architecture: str) -> None:
    found = config.get('architectures')
    if not isinstance(found, list) or architecture not in found:
        raise ConfigError(f'architectures is {found!r}, expected [{architecture!r}]')


def _refuse_other_maths(config: Mapping[str, Any]) -> None:
    activation = config.get('hidden_act', 'silu')
    if activation != 'silu':
        raise ConfigError(f'hidden_act is {activation!r}, expected silu')
    if config.get('attention_bias'):
        raise ConfigError('attention_bias is true, expected false')


def _kinds(config: Mapping[str, Any]) -> tuple[str, ...]:
    num_layers = integer(config, 'num_hidden_layers')
    kinds = config.get('layer_types')
    if kinds is None:                    # the first published drafts have full layers only
        kinds = [FULL] * num_layers
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(
            kind not in LAYER_TYPES for kind in kinds):
        raise ConfigError(f'layer_types is {kinds!r}, expected {num_layers} entries of '
                          f'{" or ".join(LAYER_TYPES)}')
    return tuple(kinds)


def _mask_token(config: Mapping[str, Any], vocab_size: int) -> int:
    token = integer(config, 'mask_token_id', minimum=0)
    if token >= vocab_size:
        raise ConfigError(f'mask_token_id is {token}, vocab_size {vocab_size}')
    return token


def _target_layers(config: Mapping[str, Any], target: ModelConfig) -> tuple[int, ...]:
    layers = config.get('target_layer_ids')
    if not isinstance(layers, list) or not layers or any(
            isinstance(layer, bool) or not isinstance(layer, int) for layer in layers):
        raise ConfigError(f'target_layer_ids is {layers!r}, expected a list of layer numbers')
    if layers != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= target.num_hidden_layers:
        raise ConfigError(f'target_layer_ids is {layers}, expected ascending numbers below the '
                          f'{target.num_hidden_layers} layers of the model')
    return tuple(layers)


def _theta(config: Mapping[str, Any]) -> float:
    rope = config.get('rope_parameters') or {}
    kind = rope.get('rope_type', 'default')
    scaling = config.get('rope_scaling')
    if kind != 'default' or scaling is not None:
        raise ConfigError(f'rope_type is {kind!r} with rope_scaling {scaling!r}; a DFlash drafter '
                          'turns all pairs, unscaled')
    return number({**config, **rope}, 'rope_theta', 1e6)


def _causal(config: Mapping[str, Any], kinds: tuple[str, ...],
            block_mask: BlockMask) -> tuple[bool, ...]:
    told = config.get('is_causal')
    if block_mask != 'auto':
        told = block_mask == 'causal'
    if told is None:
        return tuple(kind == SLIDING for kind in kinds)
    return (bool(told),) * len(kinds)


def _assistant_text(text: Mapping[str, Any]) -> ModelConfig:
    """The assistant's layers, read as a model's; all of them share K and V."""
    num_layers = integer(text, 'num_hidden_layers')
    shared = integer(text, 'num_kv_shared_layers', num_layers, minimum=0) or num_layers
    if shared != num_layers:
        raise ConfigError(f'num_kv_shared_layers is {shared}, expected all {num_layers} layers of '
                          'an assistant')
    if text.get('enable_moe_block'):
        raise ConfigError('enable_moe_block is true: an assistant has dense layers')
    return ModelConfig.from_dict({**text, 'num_kv_shared_layers': 0})


def _same_heads(own: LayerGeometry, target: LayerGeometry, used: bool) -> LayerGeometry:
    mine = (own.num_q_heads, own.num_kv_heads, own.head_dim)
    theirs = (target.num_q_heads, target.num_kv_heads, target.head_dim)
    if used and mine[1:] != theirs[1:]:
        raise ConfigError(f'the assistant has {mine[1]} kv heads of {mine[2]} in '
                          f'{own.layer_type} layers, the model {theirs[1]} of {theirs[2]}: it '
                          "reads the model's K and V, so they must be equal")
    return own


def _shared_layers(kinds: tuple[str, ...],
                   target: ModelConfig) -> tuple[tuple[str, int], ...]:
    shared = []
    for kind in sorted(set(kinds)):
        layers = [layer for layer in target.layers_of(kind) if layer < target.first_shared_layer]
        if not layers:
            raise ConfigError(f'the assistant has {kind} layers, the model has none to share K '
                              'and V with')
        shared.append((kind, layers[-1]))
    return tuple(shared)
