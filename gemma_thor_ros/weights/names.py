# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How checkpoints spell the tensors of Gemma 4, and which part of the model each belongs to.

Knows names only. docs/weights.md has the same as tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

# Text prefixes in the order of their frequency; the plain 'model.' is that of text-only exports.
TEXT_PREFIXES = ('model.language_model.', 'language_model.model.', 'language_model.', 'model.', '')

_VISION = ('vision_tower.', 'vision_embedder.', 'embed_vision.', 'multi_modal_projector.')
_AUDIO = ('audio_tower.', 'embed_audio.')
_TEXT = ('layers.', 'embed_tokens.', 'embed_tokens_per_layer.', 'norm.',
         'per_layer_model_projection.', 'per_layer_projection_norm.')

# Tensors beside a weight that weight-only inference leaves aside: activation and KV cache scales.
SURPLUS_SUFFIXES = ('input_global_scale', 'input_scale', 'k_scale', 'v_scale', 'q_scale')

# Endings of the tensors that make up one module, in any format that inspect recognises.
WEIGHT_SUFFIXES = ('weight', 'weight_packed', 'weight_scale', 'weight_global_scale',
                   'weight_scale_2', 'weight_scale_inv', 'weight_shape', 'weight_zero_point',
                   'scales', 'biases', 'bias', *SURPLUS_SUFFIXES)

# Parameters that are stored under their own name, without '.weight'.
_BARE = ('layer_scalar', 'scale', 'per_expert_scale')


class Part(Enum):
    """The part of the model that a tensor belongs to."""

    TEXT = 'text'
    VISION = 'vision'
    AUDIO = 'audio'
    HEAD = 'head'                        # an untied or duplicated lm_head
    UNKNOWN = 'unknown'


def part_of(name: str, text_prefix: str) -> Part:
    """Classify an on-disk name."""
    outer = name.removeprefix('model.')
    if outer.startswith(_VISION):
        return Part.VISION
    if outer.startswith(_AUDIO):
        return Part.AUDIO
    if name.rpartition('.')[0].endswith('lm_head'):
        return Part.HEAD
    if name.startswith(text_prefix) and name.removeprefix(text_prefix).startswith(_TEXT):
        return Part.TEXT
    return Part.UNKNOWN


def find_text_prefix(names: Iterable[str]) -> str | None:
    """The prefix under which the text layers lie; None when no name looks like one."""
    counts = dict.fromkeys(TEXT_PREFIXES, 0)
    for name in names:
        for prefix in TEXT_PREFIXES:
            if name.startswith(prefix) and name.removeprefix(prefix).startswith(_TEXT):
                counts[prefix] += 1
                break
    prefix = max(TEXT_PREFIXES, key=lambda candidate: counts[candidate])
    return prefix if counts[prefix] else None


def module_of(name: str) -> str:
    """The module that an on-disk tensor belongs to; a bare parameter is its own."""
    module, _, suffix = name.rpartition('.')
    return module if module and suffix in WEIGHT_SUFFIXES else name


def kind_of(module: str) -> str:
    """A module's name without layer and expert numbers: 'self_attn.q_proj', 'experts.up_proj'."""
    return '.'.join(piece for piece in module.split('.')
                    if not piece.isdigit() and piece not in ('layers', 'moe'))


def parameter(module: str) -> str:
    """On-disk name of a module's own parameter: most have '.weight', a few stand alone."""
    return module if module.rpartition('.')[2] in _BARE else f'{module}.weight'
