# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which weights a drafter's config.json asks for, their shapes, and its kind.

Reads only the fields that decide shapes. Whether a drafter fits a model is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.shapes import Shape, TextShapes, axis

DrafterKind = Literal['dflash', 'mtp']

ASSISTANTS = ('gemma4_assistant', 'gemma4_unified_assistant')
_DFLASH = 'DFlashDraftModel'


def drafter_kind(config: Mapping[str, Any]) -> DrafterKind | None:
    """What kind of drafter a config.json describes; None when it is none."""
    architectures = config.get('architectures')
    if isinstance(architectures, list) and _DFLASH in architectures:
        return 'dflash'
    return 'mtp' if config.get('model_type') in ASSISTANTS else None


def drafter_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    """Canonical name -> shape of all weights of a drafter, linears (out, in).

    Names are those on disk without '.weight' and, for an assistant's own model, without 'model.'.
    Raises ConfigError naming the field, also when the config is not a drafter's.
    """
    kind = drafter_kind(config)
    if kind is None:
        raise ConfigError(f'config.json: model_type {config.get("model_type")!r} with '
                          f'architectures {config.get("architectures")!r} is no drafter; known '
                          f'are {_DFLASH} and model types {", ".join(ASSISTANTS)}')
    return _dflash_shapes(config) if kind == 'dflash' else _assistant_shapes(config)


def drafter_disk_name(kind: DrafterKind, name: str) -> str:
    """The on-disk module of a canonical name, without '.weight'."""
    outside = name in ('pre_projection', 'post_projection')
    return name if kind == 'dflash' or outside else f'model.{name}'


def _dflash_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    hidden = axis(config, 'hidden_size')
    inner = axis(config, 'intermediate_size')
    head_dim = axis(config, 'head_dim')
    q_rows = axis(config, 'num_attention_heads') * head_dim
    kv_rows = axis(config, 'num_key_value_heads') * head_dim
    nested = config.get('dflash_config')
    taps = {**config, **(nested if isinstance(nested, Mapping) else {})}.get('target_layer_ids')
    if not isinstance(taps, list) or not taps:
        raise ConfigError(f'config.json: target_layer_ids must be a list, found {taps!r}')
    shapes: dict[str, Shape] = {
        'fc': (hidden, len(taps) * hidden), 'hidden_norm': (hidden,), 'norm': (hidden,)}
    for layer in range(axis(config, 'num_hidden_layers')):
        shapes.update({f'layers.{layer}.{name}': shape for name, shape in {
            'self_attn.q_proj': (q_rows, hidden),
            'self_attn.k_proj': (kv_rows, hidden),
            'self_attn.v_proj': (kv_rows, hidden),
            'self_attn.o_proj': (hidden, q_rows),
            'self_attn.q_norm': (head_dim,),
            'self_attn.k_norm': (head_dim,),
            'mlp.gate_proj': (inner, hidden),
            'mlp.up_proj': (inner, hidden),
            'mlp.down_proj': (hidden, inner),
            'input_layernorm': (hidden,),
            'post_attention_layernorm': (hidden,),
        }.items()})
    return shapes


def _assistant_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    text = TextShapes.from_config(config)
    backbone = axis(config, 'backbone_hidden_size')
    # all layers share K and V: the model's own, without the tensors that make them
    shapes = {name: shape for name, shape in text.all().items()
              if not name.endswith(('.k_proj', '.v_proj', '.k_norm'))}
    shapes['pre_projection'] = (text.hidden_size, 2 * backbone)
    shapes['post_projection'] = (backbone, text.hidden_size)
    return shapes
