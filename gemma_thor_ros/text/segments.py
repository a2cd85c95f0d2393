# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A prompt or an answer as a list of segments: ordinary text, or one control token.

The only place where a control token is told from text that looks like one. Knows no chat format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gemma_thor_ros.text.controls import CONTROL_TEXTS
from gemma_thor_ros.text.tokenizer import Tokenizer

_MARKER = re.compile('(' + '|'.join(re.escape(text) for text in CONTROL_TEXTS
                                    if text != '[multimodal]') + ')')


class Segment(NamedTuple):
    """A run of ordinary text, or (control) exactly one control token by its marker text."""

    text: str
    control: bool = False


def segments_text(segments: Iterable[Segment]) -> str:
    """The segments as one string, for reading and for comparison with other renderers."""
    return ''.join([segment.text for segment in segments])


def encode_segments(segments: Iterable[Segment], tokenizer: Tokenizer) -> list[int]:
    """Token ids of the segments: control ids from the table, each text run encoded as one string.

    Raises RequestError (UNSUPPORTED) for a control token that the vocabulary lacks.
    """
    ids: list[int] = []
    for text, control in segments:
        if control:
            ids.append(tokenizer.control_id(text))
        else:
            ids += tokenizer.encode(text)
    return ids


def join_text(segments: Iterable[Segment]) -> list[Segment]:
    """Merge neighbouring text segments and drop empty ones, so that each run is encoded whole."""
    joined: list[Segment] = []
    for segment in segments:
        if segment.control or not joined or joined[-1].control:
            if segment.text:
                joined.append(segment)
        else:
            joined[-1] = Segment(joined[-1].text + segment.text)
    return joined


def split_markers(raw: str) -> list[Segment]:
    """Read a string in which every marker text is a control token, as in logs of model output.

    Only for strings known to come from a model: text from users must never pass through here.
    """
    return [Segment(text, index % 2 == 1)
            for index, text in enumerate(_MARKER.split(raw)) if text]
