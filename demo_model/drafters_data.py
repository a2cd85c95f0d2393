# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What drafters learn from: the base model's own greedy answers and its hidden rows.

A dialogue of the generator is put through the base model once. Where its greedy choice equals the
dialogue's token, token after token from the answer's start, the dialogue is the greedy answer; what
follows the first difference is left out of training, and generated anew for the evaluation.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from demo_model.dialogue import Dialogue, draw_dialogue
from demo_model.encode import MAX_TOKENS, Encoded, Encoder
from demo_model.network import DemoConfig, DemoModel, attention_input, rms
from demo_model.tools import demo_tools
from gemma_thor_ros.weights.canonical import to_float
from gemma_thor_ros.weights.checkpoint import open_checkpoint

_STOPS = (1, 106, 50)
_DEMO_SHARE = 0.35                       # dialogues with the demo robot's own tools


@dataclass
class Sample:
    """One dialogue: ids (L,), hidden rows of the kept layers, and how far each position's answer goes.

    run_ends[n] is the end of the greedy run that position n lies in, 0 outside of all.
    """

    ids: Tensor                          # (L,) int64
    hidden: Tensor                       # (layers, L, H) bf16
    run_ends: Tensor                     # (L,) int64


class Base:
    """The base model as a teacher: frozen, with the rows of some layers to be looked at."""

    def __init__(self, folder: Path, layers: tuple[int, ...], device: torch.device) -> None:
        text = open_checkpoint(folder)
        fields = {**text.config, **text.config.get('text_config', {})}
        names = DemoConfig.__dataclass_fields__
        self.config = DemoConfig(**{name: fields[name] for name in names if name in fields})
        self.model = DemoModel(self.config, low=torch.bfloat16).requires_grad_(False)
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
        chosen = [self.model.logits(part).argmax(-1) for part in last.split(4096)]
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

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def greedy_from(self, ids: list[int], start: int, max_new: int = 96) -> list[int]:
        """The greedy answer after ids[:start], from a guess at it: what follows in ids.

        The rest of a wrong guess is replaced by what the model would say at every place, which is
        mostly right at once, and looked at again.
        """
        right = start
        while True:
            _, chosen = self.run(torch.tensor([ids], device=self.device))
            told = chosen[0].tolist()
            wrong = next((n for n in range(right, len(ids)) if told[n - 1] != ids[n]), len(ids))
            if wrong == len(ids) and (ids[-1] in _STOPS or len(ids) >= start + max_new):
                return ids
            ids = (ids[:wrong] + told[wrong - 1 :])[: start + max_new]
            right = wrong + 1
            stop = next((n for n in range(wrong, len(ids)) if ids[n] in _STOPS), len(ids))
            ids = ids[: stop + 1]


def layers_to_keep(config: DemoConfig, taps: tuple[int, ...]) -> tuple[int, ...]:
    """The taps, the last layer, and the layers before those whose K and V are shared."""
    kinds = [config.is_full(layer) for layer in range(config.num_hidden_layers)]
    last = {full: max(i for i, kind in enumerate(kinds) if kind is full) for full in (False, True)}
    return tuple(sorted({*taps, len(kinds) - 1, last[False] - 1, last[True] - 1}))


def collect(
    base: Base, count: int, seed: int, longest: int, seconds: float, device: torch.device
) -> list[Sample]:
    """Up to `count` dialogues of at most `longest` tokens, within a time; kept on `device`."""
    rng = random.Random(seed)
    encoder = Encoder()
    samples: list[Sample] = []
    begin = time.monotonic()
    num_tokens = 65536 if base.device.type == 'cuda' else 4096
    while len(samples) < count and time.monotonic() - begin < seconds:
        encoded: list[Encoded] = []
        while len(encoded) < num_tokens // 64:
            tools = demo_tools() if rng.random() < _DEMO_SHARE else None
            one = encoder.dialogue(draw_dialogue(rng, False, tools))
            if len(one.ids) <= longest:
                encoded.append(one)
        encoded.sort(key=lambda one: len(one.ids))
        while encoded:
            rows = max(1, num_tokens // len(encoded[min(8, len(encoded) - 1)].ids))
            samples += _look(base, encoded[:rows], device)
            encoded = encoded[rows:]
    return samples


def _look(base: Base, batch: list[Encoded], device: torch.device) -> list[Sample]:
    length = len(batch[-1].ids)
    ids = torch.zeros((len(batch), length), dtype=torch.long)
    for row, one in enumerate(batch):
        ids[row, : len(one.ids)] = torch.from_numpy(one.ids.astype(np.int64))
    hidden, chosen = base.run(ids.to(base.device))
    right = (chosen[:, :-1].cpu() == ids[:, 1:]).numpy()
    samples = []
    for row, one in enumerate(batch):
        size = len(one.ids)
        ends = torch.from_numpy(_run_ends(one.learn, right[row, : size - 1]))
        kept = hidden[:, row, :size].to(device, torch.bfloat16).clone()
        samples.append(Sample(ids[row, :size].to(device), kept, ends.to(device)))
    return samples


def _run_ends(learn: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(L,) the end of the greedy run at each position; right[n] tells of the token at n + 1."""
    ends = np.zeros(len(learn), dtype=np.int64)
    position = 0
    while position < len(learn):
        if not learn[position]:
            position += 1
            continue
        stop = position
        while stop < len(learn) and learn[stop]:
            stop += 1
        end = position
        while end < stop and right[end - 1]:
            end += 1
        ends[position:end] = end
        position = stop
    return ends


def held_out(count: int, seed: int, demo: bool, calls: bool) -> list[tuple[list[int], int]]:
    """Held-out dialogues as (ids, where the last answer begins): demo tools or drawn anew.

    calls: whether the last answer is a tool call or words.
    """
    rng = random.Random(f'drafts {seed}')
    encoder = Encoder()
    out: list[tuple[list[int], int]] = []
    while len(out) < count:
        dialogue: Dialogue = draw_dialogue(
            rng, True, demo_tools() if demo else None, 1 if demo else 0
        )
        if dialogue.thinking or bool(dialogue.messages[-1].get('tool_calls')) is not calls:
            continue
        encoded = encoder.dialogue(dialogue)
        if len(encoded.ids) <= MAX_TOKENS - 96:
            out.append((encoded.ids.tolist(), encoded.answer_start))
    return out


def scaled_rows(base: Base, ids: Tensor) -> Tensor:
    """Embeddings as the base model reads them."""
    return functional.embedding(ids, base.table) * base.embed_scale
