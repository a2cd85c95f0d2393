# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Dialogues to token ids through the package's own renderer, with the tokens to learn marked.

What a served prompt holds and what is trained on must be the same, so nothing here writes markup.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demo_model.dialogue import Dialogue, draw_dialogue
from demo_model.phrasing import TOKENIZER_FILE
from demo_model.tools import demo_tools
from gemma_thor_ros.text.prompt import render
from gemma_thor_ros.text.segments import encode_segments
from gemma_thor_ros.text.tokenizer import Tokenizer

MAX_TOKENS = 2048
_NEWLINE, _TURN, _TURN_END, _CALL_END, _RESPONSE, _RESPONSE_END, _CHANNEL, _CHANNEL_END = (
    107,
    105,
    106,
    49,
    50,
    51,
    100,
    101,
)


@dataclass
class Encoded:
    """Token ids, which of them the model must produce, and where the last answer begins."""

    ids: npt.NDArray[np.uint16]
    learn: npt.NDArray[np.bool_]
    answer_start: int


class Encoder:
    """Renders and tokenizes; keeps the tokenizer and the ids of the role words."""

    def __init__(self, path: Path = TOKENIZER_FILE) -> None:
        self.tokenizer = Tokenizer.from_file(path)
        self.model_ids = self.tokenizer.encode('model\n')
        self.primer = [_CHANNEL, *self.tokenizer.encode('thought\n'), _CHANNEL_END]

    def prompt(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        thinking: bool = False,
        variant: str = 'large',
    ) -> list[int]:
        """The ids that a server would send for these messages."""
        return encode_segments(
            render(messages, tools, variant=variant, enable_thinking=thinking), self.tokenizer
        )

    def dialogue(self, dialogue: Dialogue) -> Encoded:
        """Ids of prompt and answers; with thinking only the last model turn is learnt."""
        segments = render(
            dialogue.messages,
            dialogue.tools,
            variant=dialogue.variant,
            enable_thinking=dialogue.thinking,
            add_generation_prompt=False,
        )
        ids = encode_segments(segments, self.tokenizer)
        if ids[-1] == _NEWLINE and ids[-2] == _TURN_END:
            ids.pop()
        last_turn = len(ids) - 1 - ids[::-1].index(_TURN)
        body = last_turn + 1 + len(self.model_ids)
        primer = (
            not dialogue.thinking
            and dialogue.variant == 'large'
            and dialogue.messages[-2]['role'] != 'tool'
        )
        if primer:
            ids[body:body] = self.primer
        array = np.asarray(ids, dtype=np.uint16)
        learn = np.zeros(len(ids), dtype=np.bool_)
        start = body
        inside = False
        position = 0                     # everything before it is marked
        marks = (array == _TURN) | (array == _TURN_END) | (array == _RESPONSE)
        for mark in np.flatnonzero(marks).tolist():
            if mark < position:
                continue
            learn[position:mark] = inside
            if ids[mark] == _TURN:
                position = mark + 1
                inside = ids[position : position + len(self.model_ids)] == self.model_ids
                position += len(self.model_ids) if inside else 0
                if inside and position == body:
                    position += len(self.primer) if primer else 0
                    start = position
                elif dialogue.thinking:
                    inside = False
            elif ids[mark] == _TURN_END:
                learn[mark] = inside
                inside = False
                position = mark + 1
            elif inside:
                learn[mark] = ids[mark - 1] == _CALL_END
                inside = _RESPONSE_END in ids[mark:]
                if not inside:
                    position = len(ids)
                    break
                start = position = ids.index(_RESPONSE_END, mark) + 1
        learn[position:] = inside
        if dialogue.thinking and dialogue.messages[-2]['role'] == 'tool':
            start += len(self.primer) - 1  # the prompt opens the thought
        return Encoded(array, learn, start)


def encode_chunk(
    seed: int, count: int, held: bool = False, demo_share: float = 0.0
) -> list[Encoded]:
    """`count` dialogues of one seed, longest allowed length MAX_TOKENS.

    demo_share: of dialogues with the demo robot's own tools, beside those that the generator draws.
    """
    encoder = _encoder()
    rng = random.Random(seed)
    out: list[Encoded] = []
    while len(out) < count:
        tools = demo_tools() if rng.random() < demo_share else None
        encoded = encoder.dialogue(draw_dialogue(rng, held, tools))
        if len(encoded.ids) <= MAX_TOKENS:
            out.append(encoded)
    return out


_cached: list[Encoder] = []


def _encoder() -> Encoder:
    if not _cached:
        _cached.append(Encoder())
    return _cached[0]
