# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Gemma 4's control tokens: their texts, their ids and what each is for.

The texts and ids are facts of the released vocabulary. Nothing here reads a tokenizer file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

QUOTE = '<|"|>'
TOOL, TOOL_END = '<|tool>', '<tool|>'
CALL, CALL_END = '<|tool_call>', '<tool_call|>'
RESPONSE, RESPONSE_END = '<|tool_response>', '<tool_response|>'
CHANNEL, CHANNEL_END = '<|channel>', '<channel|>'
TURN, TURN_END = '<|turn>', '<turn|>'
BOS, EOS, THINK = '<bos>', '<eos>', '<|think|>'
IMAGE, AUDIO, VIDEO = '<|image|>', '<|audio|>', '<|video|>'
IMAGE_BEGIN, IMAGE_END = '<|image>', '<image|>'

# name -> (text, id): every vocabulary of the family has these, at these ids.
CORE: dict[str, tuple[str, int]] = {
    'pad': ('<pad>', 0),
    'eos': (EOS, 1),
    'bos': (BOS, 2),
    'unk': ('<unk>', 3),
    'mask': ('<mask>', 4),
    'tool': (TOOL, 46),
    'tool_end': (TOOL_END, 47),
    'call': (CALL, 48),
    'call_end': (CALL_END, 49),
    'response': (RESPONSE, 50),
    'response_end': (RESPONSE_END, 51),
    'quote': (QUOTE, 52),
    'think': (THINK, 98),
    'channel': (CHANNEL, 100),
    'channel_end': (CHANNEL_END, 101),
    'turn': (TURN, 105),
    'turn_end': (TURN_END, 106),
}

# name -> (text, id in the released vocabulary, config.json keys): absent in models without media,
# and at other ids in small vocabularies.
MEDIA: dict[str, tuple[str, int, tuple[str, ...]]] = {
    'multimodal': ('[multimodal]', 5, ()),
    'image_begin': (IMAGE_BEGIN, 255999, ('boi_token_id',)),
    'image': (IMAGE, 258880, ('image_token_id',)),
    'image_end': (IMAGE_END, 258882, ('eoi_token_id', 'eoi_token_index')),
    'audio_begin': ('<|audio>', 256000, ('boa_token_id',)),
    'audio': (AUDIO, 258881, ('audio_token_id',)),
    'audio_end': ('<audio|>', 258883, ('eoa_token_id', 'eoa_token_index')),
    'video': (VIDEO, 258884, ('video_token_id',)),
}

# Every text that is a control token in some vocabulary of the family.
CONTROL_TEXTS: tuple[str, ...] = tuple(
    [text for text, _ in CORE.values()] + [text for text, _, _ in MEDIA.values()])


@dataclass(frozen=True)
class ControlTokens:
    """Ids of the control tokens by name; -1 where the vocabulary has no such token."""

    pad: int = 0
    eos: int = 1
    bos: int = 2
    unk: int = 3
    mask: int = 4
    tool: int = 46
    tool_end: int = 47
    call: int = 48
    call_end: int = 49
    response: int = 50
    response_end: int = 51
    quote: int = 52
    think: int = 98
    channel: int = 100
    channel_end: int = 101
    turn: int = 105
    turn_end: int = 106
    multimodal: int = -1
    image_begin: int = -1
    image: int = -1
    image_end: int = -1
    audio_begin: int = -1
    audio: int = -1
    audio_end: int = -1
    video: int = -1

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end an answer: end of sequence, end of turn, start of a tool response."""
        return frozenset((self.eos, self.turn_end, self.response))

    def by_text(self) -> dict[str, int]:
        """Map each control text that this vocabulary has to its id."""
        texts = {name: text for name, (text, _) in CORE.items()}
        texts.update((name, text) for name, (text, _, _) in MEDIA.items())
        ids = {texts[field.name]: int(getattr(self, field.name)) for field in fields(self)}
        return {text: token_id for text, token_id in ids.items() if token_id >= 0}
