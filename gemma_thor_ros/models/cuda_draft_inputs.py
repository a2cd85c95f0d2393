# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The static arrays of a draft pass on a CUDA device: what it starts from, and what it chooses.

Written by the host before the pass, or by draft_accept from a verify step's tokens. Knows no
draft model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Int32
from gemma_thor_ros.models.config import FULL, SLIDING
from gemma_thor_ros.models.drafter import DraftSpan
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.draft_pick import PARTS, RecordLayout, draft_confidence
from gemma_thor_ros.ops.sample import (
    POSITION_BYTE,
    RECORD_BYTES,
    Needs,
    SampleRow,
    SampleSettings,
    pack_rows,
    sample,
    scratch_sizes,
)
from gemma_thor_ros.ops.slot_copy import Slots
from gemma_thor_ros.ops.staging import StepBuffer

AT_ONCE = 4                              # sequences of one pass
_LIST_ENTRIES = 1 << 14                  # of all settings' lists; longer ones are left out
_ANY_ROW = SampleRow(SampleSettings(temperature=0.0), 0)


@dataclass(frozen=True)
class Place:
    """Where a sequence stands: its newest token lies between two positions, often the same.

    token_id -1 and unequal positions: only the device knows yet.
    """

    token_id: int
    position: int
    last_position: int
    sliding_pages: Int32
    full_pages: Int32

    def is_of(self, span: DraftSpan) -> bool:
        """Whether a span is of the same sequence: it still has the same pages, or more.

        Sliding pages come and go with the window.
        """
        held = self.full_pages >= 0
        return (self.full_pages.shape == span.full_pages.shape
                and np.array_equal(self.full_pages[held], span.full_pages[held]))


class DraftInputs:
    """Up to AT_ONCE sequences: ids, positions, the spans of their last keys, page tables.

    And `records`, the settings of all choices. All but the tables comes in one piece: a pass takes
    it from memory of the host.
    """

    def __init__(self, ids_stride: int, mask_token_id: int, page_size: int, max_pages: int,
                 window: int, num_choices: int, buffer: StepBuffer, slots: Slots) -> None:
        """ids_stride: ids of a sequence, the newest token and masks behind it."""
        self.ids_stride = ids_stride
        self._page_size = page_size
        self._window = window
        self._buffer = buffer
        self._slots = slots
        num_ids = AT_ONCE * ids_stride
        self._control_bytes = control_bytes(ids_stride)
        self._all = device.zeros(slots.inputs.shape[1], np.uint8)
        control = self._all[:self._control_bytes].view(np.int32)
        self.ids = control[:num_ids]
        self.starts = control[num_ids:num_ids + AT_ONCE]
        self.spans = control[num_ids + AT_ONCE:num_ids + 5 * AT_ONCE].reshape(AT_ONCE, 4)
        self.records = self._all[self._control_bytes:][:num_choices * RECORD_BYTES].reshape(
            num_choices, RECORD_BYTES)
        self._nobody = np.zeros(self._control_bytes // 4, np.int32)
        self._nobody[:num_ids] = mask_token_id
        self._nobody[:num_ids:ids_stride] = -1
        self.tables = {kind: device.zeros((AT_ONCE, max_pages), np.int32)
                       for kind in (SLIDING, FULL)}
        self._mirror = {kind: np.full((AT_ONCE, max_pages), -1, np.int32)
                        for kind in (SLIDING, FULL)}

    def send(self, places: Sequence[Place], records: npt.NDArray[np.uint8]) -> int:
        """Write the inputs of the next pass, and enqueue tables that the device has otherwise.

        records (R, RECORD_BYTES): of the first choices. Gives the pass' place among the slots.
        """
        self._send_tables(places)
        place = self._slots.next_run()
        whole = self._slots.inputs[place]
        control = whole[:self._control_bytes].view(np.int32)
        control[...] = self._nobody
        ids, first_start = self.ids_stride, AT_ONCE * self.ids_stride
        for index, one in enumerate(places):
            control[index * ids] = one.token_id
            control[first_start + index] = one.position
            span = first_start + AT_ONCE + 4 * index
            control[span:span + 3] = index, 1, one.position - 1
        whole[self._control_bytes:self._control_bytes + records.size] = records.reshape(-1)
        return place

    def take(self, num_records: int) -> None:
        """Enqueue the pass' first launch, after which the arrays are what was sent."""
        num_bytes = self._control_bytes + num_records * RECORD_BYTES
        self._slots.take(self._all, -(-num_bytes // 16) * 16)

    def _send_tables(self, places: Sequence[Place]) -> None:
        stale = []
        for index, place in enumerate(places):
            # pages of the keys before the newest token
            high = (place.last_position - 1) // self._page_size + 1
            low = max(0, place.position - self._window) // self._page_size
            for kind, pages, first in ((SLIDING, place.sliding_pages, low),
                                       (FULL, place.full_pages, 0)):
                assert high <= pages.size, (high, pages.size)
                mirror = self._mirror[kind][index]
                if mirror[first:high].tobytes() != pages[first:high].tobytes():
                    assert pages[first:high].min() >= 0, (first, high)
                    mirror[first:high] = pages[first:high]
                    stale.append((self.tables[kind][index, first:high], mirror[first:high]))
        if stale:
            self._buffer.begin()
            for table, pages in stale:
                self._buffer.send(table, pages)
            self._buffer.end()


def control_bytes(ids_stride: int) -> int:
    """Bytes of a pass' inputs before the records."""
    return -(-4 * AT_ONCE * (ids_stride + 5) // 16) * 16


class DraftPicks:
    """The choices of a pass, by the target's own sampler, and the drafter's confidence in them.

    `out` holds all that the host reads: tokens (R,), confidences (R,), and newest (B, 2).
    """

    def __init__(self, num_rows: int, vocab_size: int, stream: Any, buffer: StepBuffer) -> None:
        self._vocab_size = vocab_size
        self._stream = stream
        self._buffer = buffer
        self._num_rows = num_rows
        self._results = device.zeros(result_bytes(num_rows), np.uint8)
        out = self._results.view(np.int32)
        self.tokens = out[:num_rows]
        self.newest = out[2 * num_rows:2 * num_rows + 2 * AT_ONCE].reshape(AT_ONCE, 2)
        self._confidence = out[num_rows:2 * num_rows].view(np.float32)
        self._ids = device.zeros(_LIST_ENTRIES, np.int32)
        self._values = device.zeros(_LIST_ENTRIES, np.float32)
        self._masks = device.zeros((1, -(-vocab_size // 32)), np.uint32)
        self._parts = (device.zeros((num_rows, PARTS), np.float32),
                       device.zeros(num_rows, np.uint32))
        self._scratch = tuple(device.zeros(size, dtype) for size, dtype in zip(
            scratch_sizes(num_rows, vocab_size), (np.uint32, np.uint64, np.uint64), strict=True))
        self._sent_ids: Int32 = np.empty(0, np.int32)
        self._sent_values: npt.NDArray[np.float32] = np.empty(0, np.float32)
        # the last choices, where they depend on settings and positions alone
        self._known: tuple[SampleRow, ...] = ()
        self._packed: tuple[Needs, npt.NDArray[np.uint8], RecordLayout, int] | None = None

    def send(self, firsts: Sequence[SampleRow], positions: Sequence[int], num_sequences: int,
             layout: RecordLayout) -> tuple[Needs, npt.NDArray[np.uint8]]:
        """Enqueue the lists of all choices; firsts and positions by sequence.

        Gives the records (R, RECORD_BYTES) too, which DraftInputs sends.
        """
        packed = self._packed
        if (packed is None or packed[2:] != (layout, num_sequences)
                or len(firsts) != len(self._known) or not all(
                    a.settings is b.settings and a.suppress_ids is b.suppress_ids
                    and not a.seen_ids.size and not a.counted_ids.size
                    for a, b in zip(firsts, self._known, strict=True))):
            packed = self._pack(firsts, num_sequences, layout)
        needs, records, _, _ = packed
        sequence, step, places = _places(num_sequences, layout)
        at = np.zeros(num_sequences, np.int32)
        at[:len(positions)] = positions
        records.view(np.int32)[places, POSITION_BYTE // 4] = at[sequence] + step
        return needs, records

    def _pack(self, firsts: Sequence[SampleRow], num_sequences: int, layout: RecordLayout,
              ) -> tuple[Needs, npt.NDArray[np.uint8], RecordLayout, int]:
        """Records without positions; enqueues their lists. Kept where they depend on no token."""
        rows = [replace(first, allowed=None) for first in firsts]
        rows += [_ANY_ROW] * (num_sequences - len(rows))
        packed = pack_rows(rows, self._vocab_size)
        if packed.ids.size > _LIST_ENTRIES:          # drafts are guesses: without lists then
            rows = [SampleRow(row.settings, row.position) for row in rows]
            rows = [replace(row, settings=replace(
                row.settings, bias_ids=_ANY_ROW.settings.bias_ids,
                bias_values=_ANY_ROW.settings.bias_values)) for row in rows]
            packed = pack_rows(rows, self._vocab_size)
        sequence, _, places = _places(num_sequences, layout)
        records = np.zeros((places.size, RECORD_BYTES), np.uint8)
        records[places] = packed.records[sequence]
        count = packed.ids.size
        if not (np.array_equal(packed.ids, self._sent_ids)
                and np.array_equal(packed.values, self._sent_values)):
            self._buffer.begin()
            self._buffer.send(self._ids[:count], packed.ids)
            self._buffer.send(self._values[:count], packed.values)
            self._buffer.end()
            self._sent_ids, self._sent_values = packed.ids, packed.values
        self._known = tuple(firsts)
        self._packed = None
        found = packed.needs, records, layout, num_sequences
        if not any(row.seen_ids.size or row.counted_ids.size for row in firsts):
            self._packed = found
        return found

    def choose(self, needs: Needs, all_records: Any, logits: Any, low: int) -> Any:
        """Enqueue the choices low .. low + R - 1 from logits (R, V) f32; their tokens (R,)."""
        rows = slice(low, low + logits.shape[0])
        tokens, records = self.tokens[rows], all_records[rows]
        sample(tokens, logits, (records, self._ids, self._values, self._masks), self._scratch,
               self._stream, needs)
        shares, tickets = self._parts
        draft_confidence(self._confidence[rows], (shares[rows], tickets[rows]), logits, tokens,
                         records, self._stream)
        return tokens

    def leave(self, slots: Slots) -> None:
        """Enqueue the pass' last launch, which hands the host its results."""
        slots.leave(self._results)

    def read(self, results: npt.NDArray[np.uint8]) -> tuple[Int32, npt.NDArray[np.float32]]:
        """Tokens and confidences (R,) in a pass' results."""
        size, out = self._num_rows, results.view(np.int32)
        return out[:size], out[size:2 * size].view(np.float32)

    def read_newest(self, results: npt.NDArray[np.uint8]) -> Int32:
        """(B, 2): the newest tokens and their positions."""
        first = 2 * self._num_rows
        return results.view(np.int32)[first:first + 2 * AT_ONCE].reshape(AT_ONCE, 2)


def result_bytes(num_rows: int) -> int:
    """Bytes of a pass' results: tokens, confidences, and where its sequences stand."""
    return -(-4 * (2 * num_rows + 2 * AT_ONCE) // 16) * 16


@lru_cache(64)
def _places(num_sequences: int, layout: RecordLayout) -> tuple[Int32, Int32, Int32]:
    """Of all choices: the sequence, how far behind the newest token, where its record lies."""
    sequence, step = np.indices((num_sequences, layout.num_steps), np.int32).reshape(2, -1)
    return (sequence, step + np.int32(layout.offset),
            sequence * layout.row_stride + step * layout.step_stride)
