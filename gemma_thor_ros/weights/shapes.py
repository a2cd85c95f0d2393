# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which text weights a config.json asks for, and their shapes.

Reads only the fields that decide shapes. Whether the model can be served is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemma_thor_ros.schema import ConfigError

Shape = tuple[int, ...]

# What a layer that reads another layer's K and V has no use for.
KV_OF_SHARED_LAYERS = ('self_attn.k_proj', 'self_attn.v_proj', 'self_attn.k_norm',
                       'self_attn.v_norm')

_LIMIT = 1 << 31                         # no axis of any real tensor comes near


@dataclass(frozen=True)
class TextShapes:
    """The sizes in `text_config` that shapes follow from; field names are those of config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_global_key_value_heads: int
    head_dim: int
    global_head_dim: int
    attention_k_eq_v: bool
    num_experts: int                     # 0: no MoE block
    moe_intermediate_size: int
    full_layers: tuple[bool, ...]        # one entry a layer
    hidden_size_per_layer_input: int     # 0: no per-layer embeddings, like the next
    vocab_size_per_layer_input: int
    num_kv_shared_layers: int            # the last ones have no K and V of their own
    use_double_wide_mlp: bool            # and an MLP twice as wide

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TextShapes:
        """From a decoded config.json; raises ConfigError naming the field."""
        text = config.get('text_config', config)
        if not isinstance(text, Mapping):
            raise ConfigError('config.json: text_config is no object')
        num_layers = axis(text, 'num_hidden_layers')
        if num_layers > 1024:
            raise ConfigError(f'config.json: num_hidden_layers is {num_layers}, the limit is 1024')
        is_moe = text.get('enable_moe_block') is True
        num_key_value_heads = axis(text, 'num_key_value_heads')
        full_layers = _full_layers(text, num_layers)
        override = _full_layer_override(text)
        shares = text.get('attention_k_eq_v') is True
        num_global = axis(text, 'num_global_key_value_heads', num_key_value_heads)
        unified = str(text.get('model_type', config.get('model_type'))).startswith(
            'gemma4_unified')
        # gemma4 means 256 where the field is absent
        inputs = count(text, 'hidden_size_per_layer_input', 0 if unified else 256)
        return cls(
            vocab_size=axis(text, 'vocab_size'),
            hidden_size=axis(text, 'hidden_size'),
            intermediate_size=axis(text, 'intermediate_size'),
            num_attention_heads=axis(text, 'num_attention_heads'),
            num_key_value_heads=num_key_value_heads,
            # Without k_eq_v the family ignores num_global_key_value_heads.
            num_global_key_value_heads=axis(override, 'num_key_value_heads',
                                            num_global if shares else num_key_value_heads),
            head_dim=axis(text, 'head_dim'),
            global_head_dim=axis(override, 'head_dim', axis(text, 'global_head_dim', 512)),
            attention_k_eq_v=shares,
            num_experts=axis(text, 'num_experts') if is_moe else 0,
            moe_intermediate_size=axis(text, 'moe_intermediate_size') if is_moe else 0,
            full_layers=full_layers,
            hidden_size_per_layer_input=inputs,
            vocab_size_per_layer_input=axis(text, 'vocab_size_per_layer_input', 262_144)
            if inputs else 0,
            num_kv_shared_layers=count(text, 'num_kv_shared_layers', 0),
            use_double_wide_mlp=text.get('use_double_wide_mlp') is True)

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.full_layers)

    def has_kv(self, index: int) -> bool:
        """Tell whether a layer has K and V of its own."""
        return index < self.num_layers - self.num_kv_shared_layers

    def surplus(self) -> set[str]:
        """Canonical names that some files hold and nothing uses: K and V of sharing layers."""
        return {f'layers.{index}.{name}' for index in range(self.num_layers)
                if not self.has_kv(index) for name in KV_OF_SHARED_LAYERS}

    def layer(self, index: int) -> dict[str, Shape]:
        """Canonical name without 'layers.N.' -> shape, for one layer. Linears are (out, in)."""
        full, owner = self.full_layers[index], self.has_kv(index)
        hidden, intermediate = self.hidden_size, self.intermediate_size
        if self.use_double_wide_mlp and not owner:
            intermediate *= 2
        head_dim = self.global_head_dim if full else self.head_dim
        shares = full and self.attention_k_eq_v      # V comes from the K projection
        kv_heads = self.num_global_key_value_heads if full else self.num_key_value_heads
        shapes: dict[str, Shape] = {
            'self_attn.q_proj': (self.num_attention_heads * head_dim, hidden),
            'self_attn.k_proj': (kv_heads * head_dim, hidden),
            'self_attn.v_proj': (kv_heads * head_dim, hidden),
            'self_attn.o_proj': (hidden, self.num_attention_heads * head_dim),
            'self_attn.q_norm': (head_dim,),
            'self_attn.k_norm': (head_dim,),
            'mlp.gate_proj': (intermediate, hidden),
            'mlp.up_proj': (intermediate, hidden),
            'mlp.down_proj': (hidden, intermediate),
            'input_layernorm': (hidden,),
            'post_attention_layernorm': (hidden,),
            'pre_feedforward_layernorm': (hidden,),
            'post_feedforward_layernorm': (hidden,),
            'layer_scalar': (1,),
        }
        if shares:
            del shapes['self_attn.v_proj']
        if not owner:
            for name in KV_OF_SHARED_LAYERS:
                shapes.pop(name, None)
        if self.hidden_size_per_layer_input:
            shapes.update({
                'per_layer_input_gate': (self.hidden_size_per_layer_input, hidden),
                'per_layer_projection': (hidden, self.hidden_size_per_layer_input),
                'post_per_layer_input_norm': (hidden,),
            })
        if self.num_experts:
            experts, inner = self.num_experts, self.moe_intermediate_size
            shapes.update({
                'experts.gate_proj': (experts, inner, hidden),
                'experts.up_proj': (experts, inner, hidden),
                'experts.down_proj': (experts, hidden, inner),
                'router.proj': (experts, hidden),
                'router.scale': (hidden,),
                'router.per_expert_scale': (experts,),
                'post_feedforward_layernorm_1': (hidden,),
                'post_feedforward_layernorm_2': (hidden,),
                'pre_feedforward_layernorm_2': (hidden,),
            })
        return shapes

    def all(self) -> dict[str, Shape]:
        """Canonical name -> shape of every text weight, in the model's order."""
        shapes: dict[str, Shape] = {'embed_tokens': (self.vocab_size, self.hidden_size)}
        if self.hidden_size_per_layer_input:
            columns = self.num_layers * self.hidden_size_per_layer_input
            shapes['embed_tokens_per_layer'] = (self.vocab_size_per_layer_input, columns)
            shapes['per_layer_model_projection'] = (columns, self.hidden_size)
            shapes['per_layer_projection_norm'] = (self.hidden_size_per_layer_input,)
        for index in range(self.num_layers):
            shapes.update({f'layers.{index}.{name}': shape
                           for name, shape in self.layer(index).items()})
        shapes['norm'] = (self.hidden_size,)
        return shapes


def axis(text: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A size in a config.json, a positive integer; ConfigError names the field."""
    value = text.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _LIMIT:
        raise ConfigError(f'config.json: {name} must be a positive integer, found {value!r}')
    return value


def count(text: Mapping[str, Any], name: str, default: int) -> int:
    """A number in a config.json that may be 0; ConfigError names the field."""
    value = text.get(name, default)
    if value is None or (value == 0 and not isinstance(value, bool)):
        return 0
    return axis({name: value}, name)


def _full_layer_override(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """The full layers' sizes where newer writers fold them into `per_layer_config`."""
    per_layer = text.get('per_layer_config')
    if not per_layer:
        return {}
    entries = list(per_layer.values()) if isinstance(per_layer, Mapping) else [None]
    first = entries[0]
    if not isinstance(first, Mapping) or any(entry != first for entry in entries):
        raise ConfigError('config.json: per_layer_config must map layers to equal objects')
    return first


def _full_layers(text: Mapping[str, Any], num_layers: int) -> tuple[bool, ...]:
    types = text.get('layer_types')
    if types is None:                    # the family's default: five sliding layers, a full one
        types = ['full_attention' if index % 6 == 5 else 'sliding_attention'
                 for index in range(num_layers)]
        types[-1] = 'full_attention'
    if not isinstance(types, list) or len(types) != num_layers:
        raise ConfigError(f'config.json: layer_types must be a list of {num_layers} entries')
    for entry in types:
        if entry not in ('full_attention', 'sliding_attention'):
            raise ConfigError(f'config.json: layer_types has {entry!r}; known are full_attention, '
                              'sliding_attention')
    return tuple(entry == 'full_attention' for entry in types)
