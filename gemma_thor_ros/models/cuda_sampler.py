# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Chooses tokens on the device: sends the sampler's settings, launches it, takes the tokens.

The launches are part of a step's graph; the last of them writes the tokens to memory of the host.
Knows no batch and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.cuda_table import MAX_ROWS
from gemma_thor_ros.ops.sample import (
    POSITION_BYTE,
    RECORD_BYTES,
    RESULT_ROWS,
    TURN_BYTE,
    TURNS,
    Needs,
    SampleRow,
    SampleSettings,
    pack_rows,
    sample,
    scratch_sizes,
)
from gemma_thor_ros.ops.staging import StepBuffer

Int32 = npt.NDArray[np.int32]
_LIST_ENTRIES = 1 << 16                  # of all rows' lists; longer ones get arrays of their own
_ANY_ROW = SampleRow(SampleSettings(temperature=0.0), 0)
assert RESULT_ROWS == MAX_ROWS


@dataclass(frozen=True)
class Chosen:
    """Tokens on their way to the host: read `tokens` once the stream is past them."""

    low: int                             # first row of logits
    picks: npt.NDArray[np.int64]         # rows from there on that are wanted
    result: Int32                        # (MAX_ROWS,) pinned
    needs: Needs

    @property
    def tokens(self) -> Int32:
        """A copy of the wanted rows' tokens."""
        return self.result[self.picks]


class CudaSampler:
    """Static arrays for up to MAX_ROWS rows of V logits, V a multiple of 4."""

    def __init__(self, vocab_size: int, stream: Any, buffer: StepBuffer) -> None:
        self.tokens = device.zeros(MAX_ROWS, np.int32)
        self.num_lists = 0               # how often the lists were made: graphs hold their places
        self._vocab_size = vocab_size
        self._stream = stream
        self._buffer = buffer
        sizes = scratch_sizes(MAX_ROWS, vocab_size)
        self._scratch = (device.zeros(sizes[0], np.uint32), device.zeros(sizes[1], np.uint64),
                         device.zeros(sizes[2], np.uint64))
        self._masks = device.zeros((MAX_ROWS, -(-vocab_size // 32)), np.uint32)
        self._ids: Any = None
        self._values: Any = None
        self._sent_ids: Int32 = np.empty(0, np.int32)    # what the device's lists hold
        self._sent_values: npt.NDArray[np.float32] = np.empty(0, np.float32)
        self._make_lists(_LIST_ENTRIES)
        # a turn is read before its next use: at most two steps are under way
        self._results = device.pinned(4 * TURNS * MAX_ROWS).view(np.int32).reshape(TURNS, -1)
        self._turn = 0
        # the last choice, where it depends on settings and positions alone
        self._known: tuple[SampleRow, ...] = ()
        self._chosen = Chosen(0, _places(1), self._results[0], Needs())
        self._records = np.zeros((MAX_ROWS, RECORD_BYTES), np.uint8)
        self._positions = self._records.view(np.uint32)[:0, 0]
        self._turns = self._records[:, TURN_BYTE]
        self._padding = pack_rows([_ANY_ROW] * MAX_ROWS, vocab_size).records

    def padding(self) -> npt.NDArray[np.uint8]:
        """(MAX_ROWS, RECORD_BYTES) settings of rows that nobody wants."""
        return self._padding.copy()

    def send(self, rows: Sequence[int], settings: Sequence[SampleRow],
             ) -> tuple[Chosen, npt.NDArray[np.uint8]]:
        """Enqueue the lists for a choice of some rows of the logits, ascending, not empty.

        Gives (MAX_ROWS, RECORD_BYTES) u8 too: the records, which the caller sends. Record i is of
        row rows[0] + i; rows that nobody wants are chosen too and dropped. Call between the
        buffer's begin and end.
        """
        low, count = rows[0], rows[-1] + 1 - rows[0]
        every: Sequence[SampleRow] = settings
        if count > len(settings):
            every = [_ANY_ROW] * count
            for row, setting in zip(rows, settings, strict=True):
                every[row - low] = setting
        if len(self._known) == count and self._as_before(every):
            return self._again(every, low)           # as most steps of an answer
        packed = pack_rows(every, self._vocab_size)
        num_ids = packed.ids.size
        if num_ids > self._ids.size:
            self._stream.synchronize()               # launches read the present ones
            self._make_lists(1 << (num_ids - 1).bit_length())
        # the lists seldom change from step to step
        if packed.ids is not self._sent_ids and not np.array_equal(packed.ids, self._sent_ids):
            self._buffer.send(self._ids[:num_ids], packed.ids)
            self._sent_ids = packed.ids
        if packed.values is not self._sent_values and not np.array_equal(
                packed.values, self._sent_values):
            self._buffer.send(self._values[:num_ids], packed.values)
            self._sent_values = packed.values
        if packed.has_masks:
            self._buffer.send(self._masks[:packed.masks.shape[0]], packed.masks)
        records = self.padding()
        records[:count] = packed.records
        picks = _places(count) if count == len(settings) else np.array(rows) - low
        chosen = self._next(low, picks, packed.needs)
        records[:, TURN_BYTE] = self._turn
        plain = count == len(settings) and not packed.has_masks and not any(
            row.seen_ids.size or row.counted_ids.size for row in settings)
        self._known = tuple(settings) if plain else ()
        self._chosen, self._records = chosen, records
        self._positions = records.view(np.uint32)[:count, POSITION_BYTE // 4]
        self._turns = records[:, TURN_BYTE]
        return chosen, records

    def _as_before(self, rows: Sequence[SampleRow]) -> bool:
        """Whether rows differ from the last ones, as many, in their positions alone."""
        for a, b in zip(rows, self._known, strict=True):
            if (a.settings is not b.settings or a.suppress_ids is not b.suppress_ids
                    or a.allowed is not None or a.seen_ids.size or a.counted_ids.size):
                return False
        return True

    def _again(self, rows: Sequence[SampleRow], low: int,
               ) -> tuple[Chosen, npt.NDArray[np.uint8]]:
        """As `send` for rows like the last ones: nothing else is packed anew."""
        self._positions[...] = [row.position & 0xFFFFFFFF for row in rows]
        chosen = self._next(low, self._chosen.picks, self._chosen.needs)
        self._turns[...] = self._turn
        return chosen, self._records

    def next_turn(self, chosen: Chosen) -> Chosen:
        """The same choice in the step after it."""
        return self._next(chosen.low, chosen.picks, chosen.needs)

    def _next(self, low: int, picks: npt.NDArray[np.int64], needs: Needs) -> Chosen:
        self._turn = (self._turn + 1) % TURNS
        return Chosen(low, picks, self._results[self._turn], needs)

    def launch(self, logits: Any, records: Any, needs: Needs, control: Any = None) -> None:
        """Enqueue the choice of all rows of logits (R, V) by records (R, RECORD_BYTES).

        self.tokens[i] is then the token of row i. control: as ops/sample.sample has it.
        """
        sample(self.tokens[:logits.shape[0]], logits,
               (records, self._ids, self._values, self._masks), self._scratch, self._stream, needs,
               self._results, control)

    def _make_lists(self, num_entries: int) -> None:
        self._ids = device.zeros(num_entries, np.int32)
        self._values = device.zeros(num_entries, np.float32)
        self._sent_ids = np.empty(0, np.int32)
        self._sent_values = np.empty(0, np.float32)
        self.num_lists += 1


@lru_cache(MAX_ROWS)
def _places(count: int) -> npt.NDArray[np.int64]:
    return np.arange(count)


def same_choice(a: SampleRow, b: SampleRow) -> bool:
    """Whether two rows whose choice depends on settings and position alone choose alike."""
    return (a.settings is b.settings and a.position == b.position and b.allowed is None
            and not b.seen_ids.size and not b.counted_ids.size
            and np.array_equal(a.suppress_ids, b.suppress_ids))
