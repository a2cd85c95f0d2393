# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Where a draft starts, and what the drafter thinks of its drafts; the choice itself is sample's.

`draft_accept` follows a verify step on the device, so that the next draft need not wait for the
host; `draft_confidence` is the softmax of the row at its token. Both have their twins here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.sample import POSITION_BYTE, RECORD_BYTES, TEMPERATURE_BYTE
from gemma_thor_ros.ops.shapes import check

PARTS = 64                               # of a row, side by side

Int32 = npt.NDArray[np.int32]


class RecordLayout(NamedTuple):
    """Where the sampler's record of draft s of sequence b lies, and the place of its token.

    Record b * row_stride + s * step_stride, for s below num_steps; its token takes the position
    of the newest token + offset + s.
    """

    row_stride: int
    step_stride: int
    num_steps: int
    offset: int


def draft_accept_ref(token_ids: Int32, tokens: Int32, spans: Int32) -> Int32:
    """(B, 2): the newest token of each sequence and its position, behind a verify step.

    token_ids (T,) its inputs, tokens (T,) what the target chose in each row, spans (B, 4) {first
    row, rows, position of the first, 0}; (-1, 0) for spans without rows.
    """
    found = np.zeros((spans.shape[0], 2), np.int32)
    for b, (first, rows, position, _) in enumerate(spans.tolist()):
        kept = 0
        while kept + 1 < rows and tokens[first + kept] == token_ids[first + kept + 1]:
            kept += 1
        found[b] = (tokens[first + kept], position + kept + 1) if rows else (-1, 0)
    return found


def draft_accept(draft_ids: Any, starts: Any, newest: Any, draft_spans: Any, records: Any,
                 token_ids: Any, tokens: Any, spans: Any, layout: RecordLayout,
                 stream: Any) -> None:
    """Enqueue the start of a draft behind a verify step whose tokens are just being chosen.

    draft_ids (B * n,) i32 gets every n-th entry; starts (B,) and newest (B, 2) as in the twin;
    draft_spans (B, 4) {b, 1, position of the last key, 0}; records of `layout` get positions. It
    comes behind copies, so it does not overlap what was before them.
    """
    sizes = check('draft_accept', starts=starts, newest=newest, draft_spans=draft_spans,
                  records=records, spans=spans)
    assert draft_ids.shape[0] % sizes['B'] == 0 and sizes['record'] == RECORD_BYTES, sizes
    last = (sizes['B'] - 1) * layout.row_stride + (layout.num_steps - 1) * layout.step_stride
    assert last < sizes['R'], (sizes, layout)
    device.launch(device.compiled(spec('draft_accept')), (sizes['B'],), 32,
                  (draft_ids, starts, newest, draft_spans, records, token_ids, tokens, spans,
                   draft_ids.shape[0] // sizes['B'], *layout), stream, overlap=False)


def draft_confidence_ref(logits: npt.NDArray[Any], tokens: Int32,
                         temperatures: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(R,) softmax(logits / temperature) at the tokens; temperature 0 counts as 1."""
    wide = logits.astype(np.float64) / np.where(temperatures > 0, temperatures, 1.0)[:, None]
    masses = np.exp(wide - wide.max(axis=1, keepdims=True))
    rows = np.arange(tokens.size)
    return np.where(tokens < 0, 0.0, masses[rows, np.maximum(tokens, 0)] / masses.sum(axis=1))


def draft_confidence(confidence: Any, scratch: tuple[Any, Any], logits: Any, tokens: Any,
                     records: Any, stream: Any) -> None:
    """Enqueue confidence (R,) f32 of tokens (R,) i32 in logits (R, V) f32.

    scratch: shares (R, PARTS) f32 and tickets (R,) u32, which are zeros.
    """
    shares, tickets = scratch
    sizes = check('draft_confidence', confidence=confidence, shares=shares, tickets=tickets,
                  logits=logits, tokens=tokens, records=records)
    assert sizes['parts'] == PARTS and sizes['V'] % 4 == 0, sizes
    device.launch(device.compiled(spec('draft_confidence')), (PARTS, sizes['R']), 256,
                  (confidence, shares, tickets, logits, tokens, records, sizes['V']), stream)


def spec(entry: str) -> KernelSpec:
    """What is compiled: nothing of it depends on a model."""
    return KernelSpec.of('draft_pick', entry, RECORD=RECORD_BYTES, POSITION=POSITION_BYTE,
                         TEMPERATURE=TEMPERATURE_BYTE, PARTS=PARTS)


def bytes_moved(num_rows: int, vocab_size: int) -> int:
    """The logits once."""
    return 4 * num_rows * vocab_size
