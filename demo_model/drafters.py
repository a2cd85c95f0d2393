# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The two drafters of the demo model in torch, for training: DFlash blocks and the MTP assistant.

Parameters carry the names of the released drafters with dots as underscores. Many anchors of a
dialogue are drafted at once: an anchor at position n knows the rows before n of the base model and
the token at n. Serving does not use this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from demo_model.network import rms

_FAR = float('-inf')
_POSITIONS = 4096


@dataclass(frozen=True)
class DFlashConfig:
    """Sizes; the hidden size, table and soft cap are the base model's."""

    hidden_size: int = 256
    intermediate_size: int = 128
    num_hidden_layers: int = 4
    num_sliding_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 128
    sliding_window: int = 512
    block_size: int = 8
    target_layer_ids: tuple[int, ...] = (0, 1, 3, 5)
    mask_token_id: int = 4
    rope_theta: float = 1e6
    final_logit_softcapping: float = 30.0

    def is_full(self, layer: int) -> bool:
        """Whether a layer sees everything, the block in both directions: the last ones."""
        return layer >= self.num_sliding_layers


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


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, scale: float) -> Tensor:
    """q (G, R, Q, D) on k, v (G, K, KV, D); hidden (G, R, K) 0 or -inf -> (G, R, Q * D)."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=hidden[:, None], scale=scale)
    return out.transpose(1, 2).flatten(2)


class _Named(nn.Module):  # type: ignore[misc,unused-ignore]
    """Holds parameters by the names that they have on disk."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self.low = torch.float32         # of products and attention
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


def context_rows(taps: Tensor, fc: Tensor, norm: Tensor, low: torch.dtype) -> Tensor:
    """Tapped rows (T, taps * H) -> what all draft layers read of them (T, H)."""
    return rms(functional.linear(taps.to(low), fc.to(low)), norm).to(low)


def keys_values(
    y: Tensor, wk: Tensor, wv: Tensor, norm: Tensor, cos: Tensor, sin: Tensor, low: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Rows (T, H) -> k, normed and turned, and v, both (T, KV, D)."""
    k = functional.linear(y, wk.to(low)).unflatten(-1, (-1, norm.shape[0]))
    v = functional.linear(y, wv.to(low)).unflatten(-1, (-1, norm.shape[0]))
    return _turn(rms(k, norm), cos, sin).to(low), v


def block_input(
    x: Tensor, norm: Tensor, wq: Tensor, q_norm: Tensor, wk: Tensor, wv: Tensor, k_norm: Tensor,
    cos: Tensor, sin: Tensor, low: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Block rows (T, H) -> q (T, Q, D), k and v (T, KV, D)."""
    y = rms(x, norm).to(low)
    q = functional.linear(y, wq.to(low)).unflatten(-1, (-1, q_norm.shape[0]))
    return _turn(rms(q, q_norm), cos, sin).to(low), *keys_values(y, wk, wv, k_norm, cos, sin, low)


def block_output(
    x: Tensor, attended: Tensor, wo: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor,
    low: torch.dtype,
) -> Tensor:  # fmt: skip
    """The residual (T, H) after attention and after the MLP."""
    x = x + functional.linear(attended, wo.to(low))
    y = rms(x, norm).to(low)
    inner = functional.silu(functional.linear(y, gate.to(low)))
    inner = inner * functional.linear(y, up.to(low))
    return x + functional.linear(inner, down.to(low))


def block_logits(
    x: Tensor, norm: Tensor, embed: Tensor, cap: float, low: torch.dtype
) -> Tensor:
    """Soft-capped logits (R, V) of rows (R, H)."""
    logits = functional.linear(rms(x, norm).to(low), embed.to(low)).float()
    return cap * torch.tanh(logits / cap)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (T, heads, D), cos and sin (T, D / 2)."""
    first, second = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class DFlash(_Named):
    """Drafts a block at once from the base model's tapped layers."""

    def __init__(self, config: DFlashConfig, seed: int = 0) -> None:
        super().__init__(seed)
        self.config = c = config
        self.pieces: dict[str, Callable[..., Any]] = {
            'context': context_rows,
            'keys': keys_values,
            'input': block_input,
            'output': block_output,
        }
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
        steps = torch.arange(dim // 2).float()
        angles = torch.arange(_POSITIONS)[:, None] * c.rope_theta ** (-2 * steps / dim)
        self.register_buffer('angles', angles, persistent=False)

    def compile_pieces(self) -> None:
        """Compile what sees flat rows; attention stays as it is."""
        self.pieces = {
            name: torch.compile(piece, dynamic=False) for name, piece in self.pieces.items()
        }

    def forward(
        self, taps: Tensor, anchors: Tensor, tokens: Tensor, embed: Tensor, scale: float
    ) -> Tensor:
        """Residual rows (G, A, block - 1, H) for the tokens after each anchor.

        taps (G, L, taps * H) of all rows; anchors (G, A) positions and tokens (G, A) their ids;
        embed (V, H) the base model's table, scale its factor.
        """
        c, p, low = self.config, self.parameters_by_name, self.low
        groups, length = taps.shape[:2]
        count, block = anchors.shape[1], c.block_size
        steps = torch.arange(block, device=taps.device)
        at = anchors[..., None] + steps                                    # (G, A, block)
        ids = torch.full_like(at, c.mask_token_id)
        ids[..., 0] = tokens
        x = functional.embedding(ids.flatten(), embed).float() * scale     # (G * A * block, H)
        context = self.pieces['context'](
            taps.flatten(0, 1), p['fc.weight'], p['hidden_norm.weight'], low
        )
        angle = self.angles[at.flatten()]
        cos, sin = angle.cos(), angle.sin()
        angle = self.angles[:length].repeat(groups, 1)
        context_cos, context_sin = angle.cos(), angle.sin()
        hidden = self._hidden(anchors, length)
        for layer in range(c.num_hidden_layers):
            name = f'layers.{layer}.'
            wq, wk, wv, wo, q_norm, k_norm = (
                p[f'{name}self_attn.{part}.weight']
                for part in ('q_proj', 'k_proj', 'v_proj', 'o_proj', 'q_norm', 'k_norm')
            )
            known = self.pieces['keys'](context, wk, wv, k_norm, context_cos, context_sin, low)
            q, *own = self.pieces['input'](
                x, p[name + 'input_layernorm.weight'], wq, q_norm, wk, wv, k_norm, cos, sin, low
            )
            k, v = (
                torch.cat((old.unflatten(0, (groups, -1)), new.unflatten(0, (groups, -1))), 1)
                for old, new in zip(known, own, strict=True)
            )
            attended = _attend(
                q.unflatten(0, (groups, -1)), k, v, hidden[c.is_full(layer)], c.head_dim**-0.5
            )
            x = self.pieces['output'](
                x, attended.flatten(0, 1), wo, p[name + 'post_attention_layernorm.weight'],
                *(p[f'{name}mlp.{part}_proj.weight'] for part in ('gate', 'up', 'down')), low,
            )  # fmt: skip
        return x.unflatten(0, (groups, count, block))[:, :, 1:]

    def logits(self, rows: Tensor, embed: Tensor) -> Tensor:
        """Soft-capped logits of residual rows."""
        cap = self.config.final_logit_softcapping
        return block_logits(rows, self.parameters_by_name['norm.weight'], embed, cap, self.low)

    def _hidden(self, anchors: Tensor, length: int) -> dict[bool, Tensor]:
        """0 where block rows see a key, else -inf: (G, A * block, L + A * block), by full or sliding."""
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
        visible = {
            True: torch.cat((before, own), 2),
            False: torch.cat((before & (rows - keys < window), causal), 2),
        }
        return {
            full: torch.zeros(seen.shape, device=seen.device, dtype=self.low).masked_fill_(
                ~seen, _FAR
            )
            for full, seen in visible.items()
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
            bias = torch.zeros(visible.shape, device=k.device, dtype=k.dtype)
            attended = _attend(q.to(k.dtype), k, v, bias.masked_fill_(~visible, _FAR), 1.0)
            x = x + self.norm(
                at + 'post_attention_layernorm', self.linear(at + 'self_attn.o_proj', attended.float())
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
