# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo model in torch, for training: Gemma 4's maths with names that map to a checkpoint's.

Tokens lie flat (T, H) with T = rows * length constant over all length buckets, so that the compiled
pieces are built once; only attention sees (rows, length). All experts are evaluated as one wide
product with gate 0 for those that are not chosen. Serving does not use this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class DemoConfig:
    """Sizes; names as in config.json."""

    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    num_global_key_value_heads: int = 1
    head_dim: int = 256
    global_head_dim: int = 512
    intermediate_size: int = 384
    num_experts: int = 8
    top_k_experts: int = 2
    moe_intermediate_size: int = 128
    sliding_window: int = 512
    final_logit_softcapping: float = 30.0
    rms_norm_eps: float = 1e-6

    def is_full(self, layer: int) -> bool:
        """Whether a layer attends to everything: every sixth, and the last."""
        return (layer + 1) % 6 == 0 or layer == self.num_hidden_layers - 1


def rms(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Root-mean-square norm over the last axis in float32."""
    x = x.float()
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def _linear(x: Tensor, weight: Tensor, low: torch.dtype) -> Tensor:
    return functional.linear(x.to(low), weight.to(low))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (T, heads, D); cos, sin (T, D / 2); pairs are i and i + D / 2."""
    first, second = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def attention_input(
    x: Tensor,
    norm: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor | None,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    dim: int,
    low: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """(T, H) -> q (T, Q, D), k (T, KV, D), v (T, KV, D) in the low precision."""
    y = rms(x, norm)
    raw_k = _linear(y, wk, low).unflatten(-1, (-1, dim))
    raw_v = raw_k if wv is None else _linear(y, wv, low).unflatten(-1, (-1, dim))
    q = _rotate(rms(_linear(y, wq, low).unflatten(-1, (-1, dim)), q_norm), cos, sin)
    k = _rotate(rms(raw_k, k_norm), cos, sin)
    return q.to(low), k.to(low), rms(raw_v).to(low)


def attention_output(
    x: Tensor, attended: Tensor, wo: Tensor, post: Tensor, low: torch.dtype
) -> Tensor:
    """Residual after attention."""
    return x + rms(_linear(attended, wo, low), post)


def feed_forward(
    x: Tensor,
    pre: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    post_1: Tensor,
    pre_2: Tensor,
    e_gate: Tensor,
    e_up: Tensor,
    e_down: Tensor,
    post_2: Tensor,
    router: Tensor,
    r_scale: Tensor,
    e_scale: Tensor,
    post: Tensor,
    scalar: Tensor,
    top_k: int,
    low: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Dense MLP and experts side by side; gives the new residual and the balance loss."""
    y = rms(x, pre)
    dense = _linear(
        functional.gelu(_linear(y, gate, low), approximate='tanh') * _linear(y, up, low), down, low
    )
    u = rms(x) * r_scale * x.shape[-1] ** -0.5
    p = functional.linear(u, router).softmax(-1)  # (T, E)
    best, ids = p.topk(top_k, -1)
    chosen = torch.zeros_like(p).scatter(1, ids, 1.0)
    gates = chosen * p / best.sum(-1, keepdim=True) * e_scale
    balance = p.shape[-1] * (chosen.mean(0) / top_k * p.mean(0)).sum()
    z = rms(x, pre_2)
    num_experts, inner, hidden = e_gate.shape
    wide = functional.gelu(_linear(z, e_gate.flatten(0, 1), low), approximate='tanh') * _linear(
        z, e_up.flatten(0, 1), low
    )
    wide = (wide.unflatten(-1, (num_experts, inner)) * gates[..., None].to(low)).flatten(-2)
    expert = _linear(wide, e_down.transpose(1, 2).reshape(num_experts * inner, hidden).t(), low)
    return (x + rms(rms(dense, post_1) + rms(expert, post_2), post)) * scalar, balance


def head_loss(
    hidden: Tensor,
    norm: Tensor,
    table: Tensor,
    targets: Tensor,
    weights: Tensor,
    cap: float,
    low: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Weighted and plain mean cross entropy of the chosen rows; targets -100 are padding."""
    logits = _linear(rms(hidden, norm), table, low).float()
    logits = cap * torch.tanh(logits / cap)
    each = functional.cross_entropy(logits, targets, ignore_index=-100, reduction='none')
    count = (targets != -100).sum()
    return (each * weights).sum() / weights.sum(), each.detach().sum() / count


class DemoModel(nn.Module):  # type: ignore[misc,unused-ignore]
    """Parameters by checkpoint name (dots become underscores) and the forward pass."""

    def __init__(
        self, config: DemoConfig, seed: int = 0, low: torch.dtype = torch.bfloat16
    ) -> None:
        super().__init__()
        self.config = config
        self.low = low
        self.pieces: dict[str, Callable[..., Any]] = {
            'input': attention_input,
            'output': attention_output,
            'ffn': feed_forward,
            'loss': head_loss,
        }
        generator = torch.Generator().manual_seed(seed)
        self.parameters_by_name: dict[str, nn.Parameter] = {}
        # What forward uses: the parameters, or others in their place (rounded, averaged).
        self.weights: Mapping[str, Tensor] = self.parameters_by_name

        def add(name: str, shape: tuple[int, ...], std: float = 0.0, fill: float = 1.0) -> None:
            data = (
                torch.randn(shape, generator=generator) * std if std else torch.full(shape, fill)
            )
            parameter = nn.Parameter(data)
            self.register_parameter(name.replace('.', '_'), parameter)
            self.parameters_by_name[name] = parameter

        c = config
        h = c.hidden_size
        add('embed_tokens', (c.vocab_size, h), h**-0.5)
        add('norm', (h,))
        for layer in range(c.num_hidden_layers):
            at = f'layers.{layer}.'
            full = c.is_full(layer)
            dim = c.global_head_dim if full else c.head_dim
            kv = c.num_global_key_value_heads if full else c.num_key_value_heads
            add(at + 'self_attn.q_proj', (c.num_attention_heads * dim, h), h**-0.5)
            add(at + 'self_attn.k_proj', (kv * dim, h), h**-0.5)
            if not full:
                add(at + 'self_attn.v_proj', (kv * dim, h), h**-0.5)
            add(
                at + 'self_attn.o_proj',
                (h, c.num_attention_heads * dim),
                (c.num_attention_heads * dim) ** -0.5,
            )
            add(at + 'self_attn.q_norm', (dim,), fill=dim**-0.25)  # the attention scale is 1.0
            add(at + 'self_attn.k_norm', (dim,), fill=dim**-0.25)
            inner, experts, wide = c.moe_intermediate_size, c.num_experts, c.intermediate_size
            add(at + 'mlp.gate_proj', (wide, h), h**-0.5)
            add(at + 'mlp.up_proj', (wide, h), h**-0.5)
            add(at + 'mlp.down_proj', (h, wide), wide**-0.5)
            add(at + 'experts.gate_proj', (experts, inner, h), h**-0.5)
            add(at + 'experts.up_proj', (experts, inner, h), h**-0.5)
            add(at + 'experts.down_proj', (experts, h, inner), inner**-0.5)
            add(at + 'router.proj', (experts, h), 0.5)
            add(at + 'router.scale', (h,))
            add(at + 'router.per_expert_scale', (experts,))
            add(at + 'input_layernorm', (h,))
            add(at + 'post_attention_layernorm', (h,), fill=0.6)
            add(at + 'pre_feedforward_layernorm', (h,))
            add(at + 'pre_feedforward_layernorm_2', (h,))
            add(at + 'post_feedforward_layernorm_1', (h,), fill=0.7)
            add(at + 'post_feedforward_layernorm_2', (h,), fill=0.7)
            add(at + 'post_feedforward_layernorm', (h,), fill=0.6)
            add(at + 'layer_scalar', (1,))
        steps = torch.arange(128).float()
        positions = torch.arange(4096).float()
        sliding = 10000.0 ** (-2 * steps / c.head_dim)
        full_freq = torch.zeros(c.global_head_dim // 2)
        full_freq[: c.global_head_dim // 8] = 1e6 ** (
            -2 * torch.arange(c.global_head_dim // 8).float() / c.global_head_dim
        )
        self.register_buffer(
            'angles_sliding', positions[:, None] * sliding[None], persistent=False
        )
        self.register_buffer('angles_full', positions[:, None] * full_freq[None], persistent=False)

    def compile_pieces(self) -> None:
        """Compile the flat pieces; attention stays as it is."""
        self.pieces = {
            name: torch.compile(piece, dynamic=False) for name, piece in self.pieces.items()
        }

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids (rows, length) -> residual (T, H) before the last norm, and the balance loss."""
        c = self.config
        rows, length = ids.shape
        p = self.weights
        x = functional.embedding(ids.flatten(), p['embed_tokens']) * float(
            torch.tensor(c.hidden_size**0.5).bfloat16()
        )
        cos_sin = {}
        for kind, angles in (('sliding', self.angles_sliding), ('full', self.angles_full)):
            angle = angles[:length].repeat(rows, 1)
            cos_sin[kind] = (angle.cos(), angle.sin())
        i, j = (torch.arange(length, device=ids.device) for _ in range(2))
        visible = (i[:, None] >= j[None]) & (i[:, None] - j[None] < c.sliding_window)
        balance = x.new_zeros(())
        for layer in range(c.num_hidden_layers):
            at = f'layers.{layer}.'
            full = c.is_full(layer)
            dim = c.global_head_dim if full else c.head_dim
            cos, sin = cos_sin['full' if full else 'sliding']
            q, k, v = self.pieces['input'](
                x,
                p[at + 'input_layernorm'],
                p[at + 'self_attn.q_proj'],
                p[at + 'self_attn.k_proj'],
                None if full else p[at + 'self_attn.v_proj'],
                p[at + 'self_attn.q_norm'],
                p[at + 'self_attn.k_norm'],
                cos,
                sin,
                dim,
                self.low,
            )
            q, k, v = (t.unflatten(0, (rows, length)).transpose(1, 2) for t in (q, k, v))
            if full:
                attended = _attend_one_head(q, k[:, 0], v[:, 0])
            else:
                group = q.shape[1] // k.shape[1]
                k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
                if length <= c.sliding_window:
                    attended = functional.scaled_dot_product_attention(
                        q, k, v, is_causal=True, scale=1.0
                    )
                else:
                    attended = functional.scaled_dot_product_attention(
                        q, k, v, attn_mask=visible, scale=1.0
                    )
            x = self.pieces['output'](
                x,
                attended.transpose(1, 2).reshape(rows * length, -1),
                p[at + 'self_attn.o_proj'],
                p[at + 'post_attention_layernorm'],
                self.low,
            )
            x, loss = self.pieces['ffn'](
                x,
                p[at + 'pre_feedforward_layernorm'],
                p[at + 'mlp.gate_proj'],
                p[at + 'mlp.up_proj'],
                p[at + 'mlp.down_proj'],
                p[at + 'post_feedforward_layernorm_1'],
                p[at + 'pre_feedforward_layernorm_2'],
                p[at + 'experts.gate_proj'],
                p[at + 'experts.up_proj'],
                p[at + 'experts.down_proj'],
                p[at + 'post_feedforward_layernorm_2'],
                p[at + 'router.proj'],
                p[at + 'router.scale'],
                p[at + 'router.per_expert_scale'],
                p[at + 'post_feedforward_layernorm'],
                p[at + 'layer_scalar'],
                c.top_k_experts,
                self.low,
            )
            balance = balance + loss
        return x, balance / c.num_hidden_layers

    def loss(self, hidden: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy of chosen rows of the residual: weighted, and plain without a gradient."""
        p = self.weights
        result: tuple[Tensor, Tensor] = self.pieces['loss'](
            hidden,
            p['norm'],
            p['embed_tokens'],
            targets,
            weights,
            self.config.final_logit_softcapping,
            self.low,
        )
        return result

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (R, V) of chosen rows, soft cap applied."""
        p = self.weights
        y = functional.linear(
            rms(hidden, p['norm']).to(self.low), p['embed_tokens'].to(self.low)
        ).float()
        cap = self.config.final_logit_softcapping
        return cap * torch.tanh(y / cap)


def _attend_one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of many query heads on one key head, for head sizes that have no fast kernel.

    q (rows, heads, length, D), k and v (rows, length, D).
    """
    length = q.shape[2]
    scores = torch.einsum('rhid,rjd->rhij', q, k)
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    weights = scores.float().masked_fill(hidden, float('-inf')).softmax(-1).to(q.dtype)
    return torch.einsum('rhij,rjd->rhid', weights, v)
