# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What drafters learn from: the base model's own greedy answers and its hidden rows.

The generator's dialogues go through the base model once each, in batches of a few fixed shapes.
Where the base's greedy choice equals the dialogue's token, the dialogue is its greedy answer: such
a stretch, and the choice that ends it, are learnt. For the evaluation the answer is made anew.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from demo_model.batches import BatchStream
from demo_model.network import DemoConfig, DemoModel, attention_input, rms
from gemma_thor_ros.weights.canonical import to_float
from gemma_thor_ros.weights.checkpoint import open_checkpoint

_CALL, _CALL_END = 48, 49
_IN_CALLS = 0.3                          # how much earlier than words calls are drawn


@dataclass
class Seen:
    """One batch after the base model: what anchors are drawn from. All on the device.

    chosen[:, n] is the greedy token after position n; ends[:, n] the last position that a draft
    from an anchor at n can learn, 0 where no anchor may lie.
    """

    ids: Tensor                          # (G, L) int64
    hidden: Tensor                       # (layers, G, L, H) bf16
    chosen: Tensor                       # (G, L) int64
    ends: Tensor                         # (G, L) int64
    in_call: Tensor                      # (G, L) bool


class Base:
    """The base model as a teacher: frozen, with the rows of some layers to be looked at."""

    def __init__(
        self,
        folder: Path,
        layers: tuple[int, ...],
        device: torch.device,
        low: torch.dtype = torch.float32,
    ) -> None:
        text = open_checkpoint(folder)
        fields = {**text.config, **text.config.get('text_config', {})}
        names = DemoConfig.__dataclass_fields__
        self.config = DemoConfig(**{name: fields[name] for name in names if name in fields})
        self.model = DemoModel(self.config, low=low).requires_grad_(False)
        weights = text.text_weights()
        for name, parameter in self.model.parameters_by_name.items():
            value = torch.from_numpy(np.array(to_float(weights[name], np.float32)))
            parameter.copy_(value.reshape(parameter.shape))
        self.model.to(device)
        self.layers = layers
        self.device = device
        self.embed_scale = float(torch.tensor(self.config.hidden_size**0.5).bfloat16())

    @property
    def table(self) -> Tensor:
        """The embedding table (V, H)."""
        return self.model.parameters_by_name['embed_tokens'].detach()

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def run(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids (G, L) -> rows of the kept layers (layers, G, L, H) and greedy next ids (G, L)."""
        rows: list[Tensor] = []
        right = self.model.pieces['ffn']

        def keep(*args: Tensor) -> tuple[Tensor, Tensor]:
            x, balance = right(*args)
            rows.append(x)
            return x, balance

        self.model.pieces['ffn'] = keep
        try:
            last, _ = self.model(ids)
        finally:
            self.model.pieces['ffn'] = right
        chosen = [self.model.logits(part).argmax(-1) for part in last.split(16384)]
        kept = torch.stack([rows[layer].unflatten(0, ids.shape) for layer in self.layers])
        return kept, torch.cat(chosen).unflatten(0, ids.shape)

    def taps(self, hidden: Tensor, wanted: tuple[int, ...]) -> Tensor:
        """(layers, G, L, H) -> the wanted layers side by side, (G, L, taps * H) in float32."""
        return torch.cat([hidden[self.layers.index(layer)] for layer in wanted], -1).float()

    def last_hidden(self, hidden: Tensor) -> Tensor:
        """The last layer's rows under the final norm."""
        index = self.layers.index(self.config.num_hidden_layers - 1)
        return rms(hidden[index], self.model.parameters_by_name['norm'])

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def shared_kv(self, hidden: Tensor) -> dict[bool, tuple[Tensor, Tensor]]:
        """K and V (G, L, KV, D) of the last full and the last sliding layer, from the layer before."""
        out = {}
        c, p = self.config, self.model.parameters_by_name
        groups, length = hidden.shape[1:3]
        for full in (False, True):
            layer = max(i for i in range(c.num_hidden_layers) if c.is_full(i) is full)
            x = hidden[self.layers.index(layer - 1)].float().flatten(0, 1)
            at = f'layers.{layer}.self_attn.'
            angles = self.model.angles_full if full else self.model.angles_sliding
            angle = angles[:length].repeat(groups, 1)
            _, k, v = attention_input(
                x, p[f'layers.{layer}.input_layernorm'], p[at + 'q_proj'], p[at + 'k_proj'],
                p.get(at + 'v_proj'), p[at + 'q_norm'], p[at + 'k_norm'], angle.cos(), angle.sin(),
                c.global_head_dim if full else c.head_dim, self.model.low,
            )  # fmt: skip
            out[full] = (k.unflatten(0, (groups, length)), v.unflatten(0, (groups, length)))
        return out


def layers_for_mtp(config: DemoConfig) -> tuple[int, ...]:
    """The last layer, and the layers before those whose K and V are shared."""
    kinds = [config.is_full(layer) for layer in range(config.num_hidden_layers)]
    last = {full: max(i for i, kind in enumerate(kinds) if kind is full) for full in (False, True)}
    return tuple(sorted({len(kinds) - 1, last[False] - 1, last[True] - 1}))


class Teacher:
    """The newest batches of a stream, seen by the base model, and draws of anchors among them."""

    def __init__(
        self, base: Base, stream: BatchStream, kept: int, spacing: int, draws: int
    ) -> None:
        """Keep `kept` batches on the device; take a new one, if there is one, every `draws` steps.

        spacing: tokens of a dialogue for each anchor of a step.
        """
        self._base = base
        self._stream = stream
        self._kept = kept
        self._spacing = spacing
        self._draws = draws
        self._steps = 0
        self._seen: list[Seen] = []
        self._oldest = 0
        self._turns: list[int] = []
        self.batches = 0
        self.tokens = 0

    def next(self) -> tuple[Seen, Tensor]:
        """A batch and anchors (G, L / spacing) in it."""
        seen = None if self._steps % self._draws else self._new()
        self._steps += 1
        if seen is None:
            if not self._turns:
                self._turns = torch.randperm(len(self._seen)).tolist()
            seen = self._seen[self._turns.pop()]
        return seen, draw_anchors(seen, seen.ids.shape[1] // self._spacing)

    def _new(self) -> Seen | None:
        try:
            pair = self._stream.next(0.0 if self._seen else 120.0)
        except queue.Empty:
            return None
        seen = look(self._base, *(torch.from_numpy(array) for array in pair))
        self.batches += 1
        self.tokens += seen.ids.numel()
        if len(self._seen) < self._kept:
            self._seen.append(seen)
        else:
            self._seen[self._oldest] = seen
            self._oldest = (self._oldest + 1) % self._kept
        return seen


def draw_anchors(seen: Seen, count: int) -> Tensor:
    """(G, count) different positions: those that may be anchors first, the more so in calls."""
    order = torch.rand(seen.ends.shape, device=seen.ends.device) + _IN_CALLS * seen.in_call
    order += 2 * (seen.ends > 0)
    return order.topk(count, 1).indices.clamp(min=1)


@torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
def look(base: Base, ids: Tensor, targets: Tensor) -> Seen:
    """A batch's ids and targets (G, L; -100: not the model's) through the base model."""
    ids, targets = (t.to(base.device, non_blocking=True) for t in (ids, targets))
    hidden, chosen = base.run(ids)
    begun, ended = ((ids == mark).cumsum(1) for mark in (_CALL, _CALL_END))
    return Seen(
        ids, hidden.to(torch.bfloat16), chosen, run_ends(targets, chosen), begun > ended
    )


def run_ends(targets: Tensor, chosen: Tensor) -> Tensor:
    """(G, L) the last position whose token follows from an anchor at n, 0 where n is none.

    Position q is the last when the base would write another token there, or when nothing of the
    model's follows it. An anchor is a token of the model's with another behind it.
    """
    length = targets.shape[1]
    at = torch.arange(length, device=targets.device)
    own = functional.pad(targets[:, :-1] != -100, (1, 0))           # the model writes position n
    right = functional.pad(chosen[:, :-1] == targets[:, :-1], (1, 0))
    follows = targets != -100                                       # the model writes n + 1
    last = torch.where(own & (~right | ~follows), at, length)
    nearest = last.flip(1).cummin(1).values.flip(1)                 # at or behind n
    after = functional.pad(nearest[:, 1:], (0, 1), value=length)
    return torch.where(own & follows & (after < length), after, 0)


def scaled_rows(base: Base, ids: Tensor) -> Tensor:
    """Embeddings as the base model reads them."""
    return functional.embedding(ids, base.table) * base.embed_scale
