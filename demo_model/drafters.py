# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The two drafters of the demo model in torch, for training: DFlash blocks and the MTP assistant.

Parameters carry the names of the released drafters with dots as underscores. Many anchors of a
dialogue are drafted at once: an anchor at position n knows the rows before n of the base model and
the token at n. Serving does not use this file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from demo_model.network import rms

_FAR = float('-inf')


@dataclass(frozen=True)
class DFlashConfig:
    """Sizes; the hidden size, table and soft cap are the base model's."""

    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 128
    sliding_window: int = 512
    block_size: int = 8
    target_layer_ids: tuple[int, ...] = (1, 3, 4, 5)
    mask_token_id: int = 4
    rope_theta: float = 1e6
    final_logit_softcapping: float = 30.0

    def is_full(self, layer: int) -> bool:
        """Whether a layer sees everything, the block in both directions: only the last."""
        return layer == self.num_hidden_layers - 1


@dataclass(frozen=True)
class MtpConfig:
    """Sizes; heads and head dims are the base model's, whose K and V the layers read."""

    backbone_hidden_size: int = 256
    hidden_size: int = 128
    intermediate_size: int = 384
    full: tuple[bool, ...] = (False, True)
    num_attention_heads: int = 4
    head_dim: int = 256
    global_head_dim: int = 512
    sliding_window: int = 512
    vocab_size: int = 4096


def rotate(x: Tensor, positions: Tensor, theta: float, num_pairs: int) -> Tensor:
    """Rope on x (..., heads, D) at positions (...): pairs (i, i + D / 2), the first ones only."""
    dim = x.shape[-1]
    frequency = torch.zeros(dim // 2, device=x.device)
    steps = torch.arange(num_pairs, device=x.device).float()
    frequency[:num_pairs] = theta ** (-2 * steps / dim)
    angle = (positions.float()[..., None] * frequency)[..., None, :]
    cos, sin = angle.cos(), angle.sin()
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Tensor:
    """q (G, R, Q, D) on k, v (G, K, KV, D); visible (G, R, K) -> (G, R, Q * D)."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    bias = torch.zeros(visible.shape, device=q.device, dtype=q.dtype).masked_fill(~visible, _FAR)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias[:, None], scale=scale)
    return out.transpose(1, 2).flatten(2).float()


class _Named(nn.Module):  # type: ignore[misc,unused-ignore]
    """Holds parameters by the names that they have on disk."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self.parameters_by_name: dict[str, nn.Parameter] = {}

    def add(self, name: str, shape: tuple[int, ...], std: float = 0.0, fill: float = 1.0) -> None:
        """Normal values where std is given, else a constant."""
        noise = torch.randn(shape, generator=self._generator)
        parameter = nn.Parameter(noise * std if std else torch.full(shape, fill))
        self.register_parameter(name.replace('.', '_'), parameter)
        self.parameters_by_name[name] = parameter

    def linear(self, name: str, x: Tensor) -> Tensor:
        """x W^T of a parameter without bias."""
        return functional.linear(x, self.parameters_by_name[name + '.weight'])

    def norm(self, name: str, x: Tensor) -> Tensor:
        """The weighted norm of a parameter, in float32."""
        return rms(x, self.parameters_by_name[name + '.weight'])


class DFlash(_Named):
    """Drafts a block at once from the base model's tapped layers."""

    def __init__(self, config: DFlashConfig, seed: int = 0) -> None:
        super().__init__(seed)
        self.config = c = config
        h, dim = c.hidden_size, c.head_dim
        taps = len(c.target_layer_ids)
        self.add('fc.weight', (h, taps * h), (taps * h) ** -0.5)
        self.add('hidden_norm.weight', (h,))
        self.add('norm.weight', (h,))
        for layer in range(c.num_hidden_layers):
            at = f'layers.{layer}.'
            self.add(at + 'self_attn.q_proj.weight', (c.num_attention_heads * dim, h), h**-0.5)
            self.add(at + 'self_attn.k_proj.weight', (c.num_key_value_heads * dim, h), h**-0.5)
            self.add(at + 'self_attn.v_proj.weight', (c.num_key_value_heads * dim, h), h**-0.5)
            self.add(at + 'self_attn.o_proj.weight', (h, c.num_attention_heads * dim), 0.02)
            self.add(at + 'self_attn.q_norm.weight', (dim,))
            self.add(at + 'self_attn.k_norm.weight', (dim,))
            self.add(at + 'mlp.gate_proj.weight', (c.intermediate_size, h), h**-0.5)
            self.add(at + 'mlp.up_proj.weight', (c.intermediate_size, h), h**-0.5)
            self.add(at + 'mlp.down_proj.weight', (h, c.intermediate_size), 0.02)
            self.add(at + 'input_layernorm.weight', (h,))
            self.add(at + 'post_attention_layernorm.weight', (h,))

    def forward(
        self, taps: Tensor, anchors: Tensor, tokens: Tensor, embed: Tensor, scale: float
    ) -> Tensor:
        """Hidden rows (G, A, block - 1, H) under the final norm, for the tokens after each anchor.

        taps (G, L, taps * H) of all rows; anchors (G, A) positions and tokens (G, A) their ids;
        embed (V, H) the base model's table, scale its factor.
        """
        c = self.config
        groups, length = taps.shape[:2]
        count, block = anchors.shape[1], c.block_size
        steps = torch.arange(block, device=taps.device)
        at = (anchors[..., None] + steps).flatten(1)                       # (G, A * block)
        ids = torch.full((groups, count, block), c.mask_token_id, device=taps.device)
        ids[..., 0] = tokens
        x = functional.embedding(ids.flatten(1), embed).float() * scale
        context = self.norm('hidden_norm', self.linear('fc', taps))
        where = torch.arange(length, device=taps.device).expand(groups, length)
        visible = self._visible(anchors, length)
        for layer in range(c.num_hidden_layers):
            name = f'layers.{layer}.'
            y = self.norm(name + 'input_layernorm', x)
            q = self._heads(name + 'self_attn.q', y, at)
            keys = torch.cat((context, y), 1)
            k = self._heads(name + 'self_attn.k', keys, torch.cat((where, at), 1))
            v = self.linear(name + 'self_attn.v_proj', keys).unflatten(-1, (-1, c.head_dim))
            attended = _attend(
                q.to(v.dtype), k.to(v.dtype), v, visible[c.is_full(layer)], c.head_dim**-0.5
            )
            x = x + self.linear(name + 'self_attn.o_proj', attended)
            y = self.norm(name + 'post_attention_layernorm', x)
            inner = functional.silu(self.linear(name + 'mlp.gate_proj', y))
            x = x + self.linear(
                name + 'mlp.down_proj', inner * self.linear(name + 'mlp.up_proj', y)
            )
        return self.norm('norm', x.unflatten(1, (count, block))[:, :, 1:])

    def logits(self, hidden: Tensor, embed: Tensor) -> Tensor:
        """Soft-capped logits of rows."""
        cap = self.config.final_logit_softcapping
        return cap * torch.tanh(functional.linear(hidden, embed).float() / cap)

    def _heads(self, name: str, x: Tensor, positions: Tensor) -> Tensor:
        c = self.config
        heads = self.linear(name + '_proj', x).unflatten(-1, (-1, c.head_dim))
        return rotate(self.norm(name + '_norm', heads), positions, c.rope_theta, c.head_dim // 2)

    def _visible(self, anchors: Tensor, length: int) -> dict[bool, Tensor]:
        """What the block rows see, (G, A * block, L + A * block), by full or sliding."""
        block, window = self.config.block_size, self.config.sliding_window
        count = anchors.shape[1]
        steps = torch.arange(block, device=anchors.device)
        rows = (anchors[..., None] + steps).flatten(1)[..., None]          # (G, A * block, 1)
        starts = anchors.repeat_interleave(block, 1)[..., None]
        keys = torch.arange(length, device=anchors.device)
        before = keys < starts
        owner = torch.arange(count * block, device=anchors.device) // block
        own = (owner[:, None] == owner).expand(len(anchors), -1, -1)
        later = steps.repeat(count)
        causal = own & (later[:, None] >= later)
        return {
            True: torch.cat((before, own), 2),
            False: torch.cat((before & (rows - keys < window), causal), 2),
        }


class Mtp(_Named):
    """Drafts token after token from the base model's last hidden row, reading its K and V."""

    def __init__(self, config: MtpConfig, seed: int = 0) -> None:
        super().__init__(seed)
        self.config = c = config
        h, wide = c.hidden_size, c.intermediate_size
        self.add('model.embed_tokens.weight', (c.vocab_size, h), h**-0.5)
        self.add('model.norm.weight', (h,), fill=2.0)
        self.add('pre_projection.weight', (h, 2 * c.backbone_hidden_size), 0.05)
        self.add('post_projection.weight', (c.backbone_hidden_size, h), h**-0.5)
        for layer, full in enumerate(c.full):
            at = f'model.layers.{layer}.'
            dim = c.global_head_dim if full else c.head_dim
            heads = c.num_attention_heads * dim
            self.add(at + 'self_attn.q_proj.weight', (heads, h), h**-0.5)
            self.add(at + 'self_attn.q_norm.weight', (dim,), fill=dim**-0.25)
            self.add(at + 'self_attn.o_proj.weight', (h, heads), heads**-0.5)
            self.add(at + 'mlp.gate_proj.weight', (wide, h), h**-0.5)
            self.add(at + 'mlp.up_proj.weight', (wide, h), h**-0.5)
            self.add(at + 'mlp.down_proj.weight', (h, wide), wide**-0.5)
            self.add(at + 'input_layernorm.weight', (h,))
            self.add(at + 'post_attention_layernorm.weight', (h,), fill=0.6)
            self.add(at + 'pre_feedforward_layernorm.weight', (h,))
            self.add(at + 'post_feedforward_layernorm.weight', (h,), fill=0.6)
            self.add(at + 'layer_scalar', (1,))

    def forward(
        self,
        embedded: Tensor,
        hidden: Tensor,
        positions: Tensor,
        anchors: Tensor,
        shared: dict[bool, tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """One step of each anchor: rows (G, A, h) under the final norm, and the next hidden (G, A, H).

        embedded (G, A, H) scaled embeddings of the newest tokens; hidden (G, A, H) the base model's
        normed row before, or what the step before gave; positions (G, A) for rope, the same in all
        steps; anchors (G, A) the number of keys seen; shared: by full or sliding, k and v (G, L, KV, D).
        """
        c = self.config
        x = self.linear('pre_projection', torch.cat((embedded, hidden), -1)).float()
        for layer, full in enumerate(c.full):
            at = f'model.layers.{layer}.'
            dim = c.global_head_dim if full else c.head_dim
            y = self.norm(at + 'input_layernorm', x)
            q = self.norm(
                at + 'self_attn.q_norm',
                self.linear(at + 'self_attn.q_proj', y).unflatten(-1, (-1, dim)),
            )
            q = rotate(q, positions, 1e6 if full else 1e4, dim // 8 if full else dim // 2)
            k, v = shared[full]
            keys = torch.arange(k.shape[1], device=k.device)
            visible = keys < anchors[..., None]
            if not full:
                visible = visible & (keys >= anchors[..., None] - c.sliding_window)
            attended = _attend(q.to(k.dtype), k, v, visible, 1.0)
            x = x + self.norm(
                at + 'post_attention_layernorm', self.linear(at + 'self_attn.o_proj', attended)
            )
            y = self.norm(at + 'pre_feedforward_layernorm', x)
            inner = functional.gelu(self.linear(at + 'mlp.gate_proj', y), approximate='tanh')
            inner = inner * self.linear(at + 'mlp.up_proj', y)
            x = x + self.norm(
                at + 'post_feedforward_layernorm', self.linear(at + 'mlp.down_proj', inner)
            )
            x = x * self.parameters_by_name[at + 'layer_scalar']
        rows = self.norm('model.norm', x)
        return rows, self.linear('post_projection', rows).float()

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of rows by the drafter's own table."""
        return functional.linear(rows, self.parameters_by_name['model.embed_tokens.weight']).float()
