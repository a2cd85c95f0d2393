# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the forward pass has to know of a checkpoint: sizes, layer types, rope, stop ids.

`ModelConfig` is only ever made by `ModelConfig.from_dict`, which admits a config.json or refuses
it by name (admission.py reads and checks the fields). Knows no files, no weights and no arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gemma_thor_ros.models import admission

SLIDING = 'sliding_attention'
FULL = 'full_attention'
# 'causal': nothing. 'in window': all of them, and of the earlier ones what the window has.
# 'whole': the whole image, window or not.
ImageBlocks = Literal['causal', 'in window', 'whole']


@dataclass(frozen=True)
class LayerGeometry:
    """Attention sizes that all layers of one type share."""

    layer_type: str              # SLIDING or FULL
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None           # keys a query sees, itself included; None: all earlier ones
    rope_theta: float
    num_rotary_pairs: int        # pairs (i, i + head_dim / 2) that rotate, the others pass through
    has_v_proj: bool             # False: V comes from the raw K projection

    @property
    def qkv_rows(self) -> int:
        """Rows of the fused q, k (and v) projection."""
        num_heads = self.num_q_heads + (2 if self.has_v_proj else 1) * self.num_kv_heads
        return num_heads * self.head_dim

    @property
    def group(self) -> int:
        """Query heads that share one kv head."""
        return self.num_q_heads // self.num_kv_heads


@dataclass(frozen=True)
class ModelConfig:
    """A Gemma 4 text decoder that this engine runs. Names are those of config.json."""

    model_type: str              # 'gemma4' or 'gemma4_unified'
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    num_global_key_value_heads: int
    head_dim: int
    global_head_dim: int
    sliding_window: int
    layer_types: tuple[str, ...]
    attention_k_eq_v: bool
    enable_moe_block: bool
    num_experts: int             # 0 without experts, like the next two
    top_k_experts: int
    moe_intermediate_size: int
    hidden_size_per_layer_input: int         # 0: no per-layer embeddings, like the next
    vocab_size_per_layer_input: int
    num_kv_shared_layers: int    # the last ones, which read K and V of an earlier layer
    use_double_wide_mlp: bool    # they have an MLP twice as wide
    max_position_embeddings: int
    rms_norm_eps: float
    final_logit_softcapping: float
    sliding_rope_theta: float
    full_rope_theta: float
    full_rotary_factor: float
    use_bidirectional_attention: str | None
    bos_token_id: int
    pad_token_id: int
    eos_token_ids: tuple[int, ...]           # what the files say, ascending
    stop_ids: tuple[int, ...]                # the same and the family's 1, 106, 50, ascending
    suppress_tokens: tuple[int, ...]         # never sampled
    media_token_ids: tuple[tuple[str, int], ...]   # (key of config.json, id): image, audio, video

    @classmethod
    def from_dict(cls, config: Mapping[str, Any],
                  generation_config: Mapping[str, Any] | None = None) -> ModelConfig:
        """Admit a checkpoint by its config.json (outer form or text only) or refuse it.

        `generation_config` is generation_config.json where the checkpoint has one. Raises
        ConfigError that names the field, what it holds and what would be right.
        """
        return cls(**admission.admitted_fields(config, generation_config))

    @property
    def sliding(self) -> LayerGeometry:
        """Geometry of the sliding layers."""
        return LayerGeometry(
            SLIDING, self.num_attention_heads, self.num_key_value_heads, self.head_dim,
            self.sliding_window, self.sliding_rope_theta, self.head_dim // 2, True)

    @property
    def full(self) -> LayerGeometry:
        """Geometry of the full layers."""
        pairs = int(self.full_rotary_factor * self.global_head_dim // 2)
        return LayerGeometry(
            FULL, self.num_attention_heads, self.num_global_key_value_heads, self.global_head_dim,
            None, self.full_rope_theta, pairs, not self.attention_k_eq_v)

    def geometry(self, layer: int) -> LayerGeometry:
        """Geometry of layer number `layer`."""
        return self.sliding if self.layer_types[layer] == SLIDING else self.full

    def image_blocks(self, layer_type: str) -> ImageBlocks:
        """What rows of an image see of its later rows in the layers of one type."""
        if self.use_bidirectional_attention != 'vision':
            return 'causal'
        if self.model_type == 'gemma4_unified':
            return 'whole'
        return 'in window' if layer_type == SLIDING else 'causal'

    @property
    def first_shared_layer(self) -> int:
        """The first layer without K and V of its own; num_hidden_layers when all have them."""
        return self.num_hidden_layers - self.num_kv_shared_layers

    def kv_layer(self, layer: int) -> int:
        """The layer whose K and V layer `layer` reads: itself, or the last earlier own one."""
        if layer < self.first_shared_layer:
            return layer
        kinds = self.layer_types[:self.first_shared_layer]
        return max(i for i, kind in enumerate(kinds) if kind == self.layer_types[layer])

    def mlp_size(self, layer: int) -> int:
        """Columns between the two halves of the dense MLP of a layer."""
        wide = self.use_double_wide_mlp and layer >= self.first_shared_layer
        return self.intermediate_size * (2 if wide else 1)

    @property
    def prompt_variant(self) -> Literal['large', 'small']:
        """Whose chat template: the models with per-layer embeddings (E2B, E4B) have 'small'."""
        return 'small' if self.hidden_size_per_layer_input else 'large'

    def layers_of(self, layer_type: str) -> tuple[int, ...]:
        """Numbers of the layers of one type, ascending."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == layer_type)

    @property
    def num_parameters(self) -> int:
        """Weights of the text decoder, the tied table counted once."""
        count = self.vocab_size * self.hidden_size + self.hidden_size
        inputs = self.hidden_size_per_layer_input
        if inputs:
            columns = self.num_hidden_layers * inputs
            count += (self.vocab_size_per_layer_input + self.hidden_size) * columns + inputs
        for layer in range(self.num_hidden_layers):
            shape = self.geometry(layer)
            own = self.kv_layer(layer) == layer
            rows = shape.qkv_rows if own else shape.num_q_heads * shape.head_dim
            count += self.hidden_size * (rows + shape.num_q_heads * shape.head_dim)
            count += (1 + own) * shape.head_dim + 4 * self.hidden_size + 1
            count += 3 * self.hidden_size * self.mlp_size(layer)
            count += 2 * self.hidden_size * inputs + (self.hidden_size if inputs else 0)
            if self.enable_moe_block:
                count += 3 * self.num_experts * self.hidden_size * self.moe_intermediate_size
                count += self.num_experts * (self.hidden_size + 1) + 4 * self.hidden_size
        return count
