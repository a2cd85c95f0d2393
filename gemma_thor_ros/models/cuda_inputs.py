# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The inputs of a step on a CUDA device: static arrays, written before its first launch.

Rows, spans and the page tables of up to 16 sequences, and where images stand in a prompt. A table
is sent only where it differs from what the device has. What a verify step starts from its graph
takes from memory of the host by itself. Knows no weights and no kernels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.config import FULL, SLIDING
from gemma_thor_ros.ops.cuda_table import MAX_ROWS
from gemma_thor_ros.ops.sample import RECORD_BYTES
from gemma_thor_ros.ops.slot_copy import Slots
from gemma_thor_ros.ops.staging import StepBuffer

Int32 = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
_UNSENT = -2                             # no entry of any table
Zeros = Callable[[tuple[int, ...], npt.DTypeLike], Any]
BUCKETS = (1, 2, 4, 8, 16)
_CONTROL_BYTES = 4 * 7 * MAX_ROWS        # ids, sequences, positions, spans of four numbers
PROMPT_BUCKETS = (16, 32, 64, 128, 192, 256)     # rows of a prompt that graphs are made for
STEP_BYTES = _CONTROL_BYTES + MAX_ROWS * RECORD_BYTES    # and the settings of all choices
_PADDING = np.zeros((7, MAX_ROWS), np.int32)
_PADDING[:2] = -1
_PLACES = np.arange(MAX_ROWS, dtype=np.int32)


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one span: rows first .. first + num_rows - 1 of the batch."""

    span: Span
    first: int
    num_rows: int

    @cached_property
    def position(self) -> int:
        """Position of the first row."""
        return self.span.start_position + self.first - self.span.start_row

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Positions [start, stop) of the images among its rows; none is cut."""
        end = self.position + self.num_rows
        return tuple(block for block in self.span.blocks if self.position <= block[0] < end)


@dataclass(frozen=True)
class Pass:
    """Pieces that run together: generated rows, at most MAX_ROWS, or one piece of a prompt."""

    role: Role
    pieces: tuple[Piece, ...]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Rows of each piece."""
        return tuple([piece.num_rows for piece in self.pieces])

    @cached_property
    def num_rows(self) -> int:
        """Rows of all pieces."""
        return sum(self.counts)

    @cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """The batch's rows in the order of the pass."""
        found = [np.arange(piece.first, piece.first + piece.num_rows) for piece in self.pieces]
        return found[0] if len(found) == 1 else np.concatenate(found)

    @cached_property
    def key(self) -> Key:
        """The sizes that its launches are made for."""
        if self.role is Role.PREFILL:
            images = any(piece.blocks for piece in self.pieces)
            rows = self.num_rows if images else prompt_bucket(self.num_rows)
            return Key(rows, 1, rows, True, images)
        return _decode_key(self.num_rows, len(self.pieces), max(self.counts))


@dataclass(frozen=True)
class Key:
    """Sizes of a pass: rows, sequences, the most rows of one, whether of a prompt, with images."""

    num_rows: int
    num_sequences: int
    max_rows: int
    prompt: bool = False
    images: bool = False

    @property
    def takes(self) -> bool:
        """Whether a graph that chooses the tokens takes its inputs from the host by itself.

        Those of one row of each sequence are often made on the device instead.
        """
        return self.max_rows > 1 and not self.prompt


@lru_cache(512)
def _decode_key(num_rows: int, num_sequences: int, max_rows: int) -> Key:
    return Key(bucket(num_rows), bucket(num_sequences), bucket(max_rows))


def bucket(count: int) -> int:
    """The least bucket that holds `count`."""
    return BUCKETS[bisect_left(BUCKETS, count)]


def prompt_bucket(count: int) -> int:
    """The least bucket that holds so many prompt rows; beyond the last one as many as there are.

    A long prompt leaves a piece of any size once, what follows a cached prefix is short and comes
    at every turn.
    """
    return next((size for size in PROMPT_BUCKETS if size >= count), count)


def cut_passes(batch: Batch, prompt_rows: int) -> list[Pass]:
    """Generated rows together, MAX_ROWS at a time, spans whole; then each prompt in pieces.

    prompt_rows: the most rows of a piece, and of an image, which is never cut.
    """
    passes: list[Pass] = []
    together: list[Piece] = []
    used = 0
    for span in batch.spans:
        if span.role is not Role.DECODE:
            continue
        assert span.num_rows <= MAX_ROWS, span.num_rows
        if used + span.num_rows > MAX_ROWS:
            passes.append(Pass(Role.DECODE, tuple(together)))
            together, used = [], 0
        together.append(Piece(span, span.start_row, span.num_rows))
        used += span.num_rows
    if together:
        passes.append(Pass(Role.DECODE, tuple(together)))
    for span in batch.spans:
        at = 0 if span.role is Role.PREFILL else span.num_rows
        while at < span.num_rows:
            end = _end_of_piece(span, at, prompt_rows)
            passes.append(Pass(Role.PREFILL, (Piece(span, span.start_row + at, end - at),)))
            at = end
    return passes


def _end_of_piece(span: Span, at: int, prompt_rows: int) -> int:
    """Where the piece of a prompt that begins at row `at` of its span ends, cutting no image."""
    end = min(at + prompt_rows, span.num_rows)
    for start, stop in span.blocks:
        low, high = start - span.start_position, stop - span.start_position
        if low < end < high:
            assert low > at, f'an image has {high - low} rows, a piece at most {prompt_rows}'
            return low
    return end


class StepInputs:
    """Static arrays of the device, and a copy of what they hold."""

    def __init__(self, page_size: int, max_pages: int, window: int, prompt_rows: int, zeros: Zeros,
                 buffer: StepBuffer, slots: Slots) -> None:
        """max_pages: of one sequence. window: keys that a row of a sliding layer sees.

        slots: of STEP_BYTES each, what `put` writes and `take` reads.
        """
        self._prompt_rows = prompt_rows
        self._prompt = zeros((4 + 3 * prompt_rows,), np.int32)
        self._blocks = zeros((prompt_rows, 2), np.int32)
        self.page_size = page_size
        self.max_pages = max_pages
        self._window = window
        self._buffer = buffer
        # one copy writes all of a step of generated rows
        self._step = zeros((STEP_BYTES,), np.uint8)
        self.control = self._step[:_CONTROL_BYTES].view(np.int32).reshape(7, MAX_ROWS)
        self.token_ids, self.sequences, self.positions = (self.control[i] for i in range(3))
        self.spans = self.control[3:].reshape(MAX_ROWS, 4)
        self.records = self._step[_CONTROL_BYTES:].reshape(MAX_ROWS, RECORD_BYTES)
        self.tables = {kind: zeros((MAX_ROWS, max_pages), np.int32) for kind in (SLIDING, FULL)}
        self._mirror = {kind: np.full((MAX_ROWS, max_pages), _UNSENT, np.int32)
                        for kind in (SLIDING, FULL)}
        self.slots = slots
        self._places = [_SlotViews(place) for place in slots.inputs]

    def rows(self, key: Key) -> tuple[Any, Any, Any, Any]:
        """token_ids, sequences and positions (T,), spans (B, 4) of passes of these sizes."""
        count = key.num_rows
        if not key.prompt:
            return (self.token_ids[:count], self.sequences[:count], self.positions[:count],
                    self.spans[:key.num_sequences])
        starts = [4 + i * self._prompt_rows for i in range(3)]
        arrays = [self._prompt[start:start + count] for start in starts]
        return arrays[0], arrays[1], arrays[2], self._prompt[:4].reshape(1, 4)

    def blocks(self, key: Key) -> Any:
        """(T, 2) first and end position of each row's image or of the row, None without images."""
        return self._blocks[:key.num_rows] if key.images else None

    def _send_prompt(self, pieces: Sequence[Piece], token_ids: Int32) -> None:
        """One piece, or none: then all rows are padding."""
        control = np.zeros(4 + 3 * self._prompt_rows, np.int32)
        ids, sequences, positions = control[4:].reshape(3, -1)
        sequences[:] = -1
        for piece in pieces:
            rows = slice(piece.num_rows)
            control[:3] = 0, piece.num_rows, piece.position
            ids[rows], sequences[rows] = token_ids, 0
            positions[rows] = np.arange(piece.position, piece.position + piece.num_rows)
            for kind, pages in (SLIDING, piece.span.sliding_pages), (FULL, piece.span.full_pages):
                self._send_table(kind, 0, pages, self._needed(kind, piece))
            if piece.blocks:
                self._send_blocks(piece)
        self._buffer.send(self._prompt, control)

    def _send_blocks(self, piece: Piece) -> None:
        first = np.arange(piece.position, piece.position + piece.num_rows, dtype=np.int32)
        blocks = np.stack([first, first + 1], axis=1)
        for start, stop in piece.blocks:
            blocks[start - piece.position:stop - piece.position] = start, stop
        self._buffer.send(self._blocks[:piece.num_rows], blocks)

    def send(self, step: Pass, token_ids: Int32, records: Bytes | None) -> None:
        """Enqueue the copies for a pass; token_ids in its order, records: of all MAX_ROWS choices.

        Call between the buffer's begin and end.
        """
        if step.role is Role.PREFILL:
            self._send_prompt(step.pieces, token_ids)
            if records is not None:
                self._buffer.send(self.records, records)
            return
        self.send_tables(step)
        size = _CONTROL_BYTES if records is None else STEP_BYTES
        place = self._buffer.reserve(size)
        _SlotViews(place).fill(step, token_ids, records)
        self._buffer.send_reserved(self._step[:size], place)

    def put(self, step: Pass, token_ids: Int32, records: Bytes | None) -> None:
        """As `send` for generated rows whose graph begins with `take`: only tables are copied."""
        self.send_tables(step)
        self._places[self.slots.next_run()].fill(step, token_ids, records)

    def take(self) -> None:
        """Enqueue the first launch of a step, after which the arrays are what was put."""
        self.slots.take(self._step, STEP_BYTES)

    def send_tables(self, step: Pass) -> None:
        """Enqueue what a pass reads of its page tables, where the device has it otherwise."""
        for index, piece in enumerate(step.pieces):
            for kind, pages in (SLIDING, piece.span.sliding_pages), (FULL, piece.span.full_pages):
                self._send_table(kind, index, pages, self._needed(kind, piece))

    def holds(self, step: Pass) -> bool:
        """Whether the tables on the device are those that a pass needs."""
        for index, piece in enumerate(step.pieces):
            for kind, pages in (SLIDING, piece.span.sliding_pages), (FULL, piece.span.full_pages):
                low, high = self._needed(kind, piece)
                if self._mirror[kind][index, low:high].tobytes() != pages[low:high].tobytes():
                    return False
        return True

    def has_page(self, piece: Piece, position: int) -> bool:
        """Whether both tables of a sequence have a page for a position."""
        page = position // self.page_size
        return page < min(self.max_pages, piece.span.full_pages.size) and bool(
            piece.span.full_pages[page] >= 0 and piece.span.sliding_pages[page] >= 0)

    def _needed(self, kind: str, piece: Piece) -> tuple[int, int]:
        """Entries of a table that a piece reads or writes."""
        first = 0 if kind == FULL else max(0, piece.position - self._window + 1)
        return first // self.page_size, (piece.position + piece.num_rows - 1) // self.page_size + 1

    def _send_table(self, kind: str, index: int, pages: Int32, needed: tuple[int, int]) -> None:
        low, high = needed
        assert high <= min(self.max_pages, pages.size), (high, self.max_pages, pages.size)
        mirror = self._mirror[kind][index]
        if mirror[low:high].tobytes() == pages[low:high].tobytes():    # what was sent is no -1
            return
        assert pages[low:high].min() >= 0, 'a row has no page'
        mirror[low:high] = pages[low:high]
        mirror[high:] = _UNSENT
        self._buffer.send(self.tables[kind][index, low:high], mirror[low:high])


class _SlotViews:
    """The parts of a step's inputs in memory of the host."""

    def __init__(self, place: Bytes) -> None:
        self._control = place[:_CONTROL_BYTES].view(np.int32).reshape(7, MAX_ROWS)
        self._spans = self._control[3:].reshape(MAX_ROWS, 4)
        self._records = place[_CONTROL_BYTES:].reshape(-1, RECORD_BYTES)
        self._counts: tuple[int, ...] | None = None      # rows of the pieces that are written
        self._ids = self._starts = self._control[0, :0]
        self._positions: list[tuple[Int32, Int32]] = []  # of a piece, and what its first is added

    def fill(self, step: Pass, token_ids: Int32, records: Bytes | None) -> None:
        """Write a pass of generated rows, and the settings (MAX_ROWS, RECORD_BYTES)."""
        if step.counts != self._counts:  # else rows and their sequences are those of the last one
            self._lay_out(step.counts)
        for index, (to, places) in enumerate(self._positions):
            first = step.pieces[index].position
            np.add(places, first, to)
            self._starts[index] = first
        self._ids[...] = token_ids
        if records is not None:
            self._records[...] = records

    def _lay_out(self, counts: tuple[int, ...]) -> None:
        control, row = self._control, 0
        control[...] = _PADDING
        self._positions = []
        for index, count in enumerate(counts):
            rows = slice(row, row + count)
            control[1, rows] = index
            self._spans[index, :2] = row, count
            self._positions.append((control[2, rows], _PLACES[:count]))
            row += count
        self._ids, self._starts = control[0, :row], self._spans[:len(counts), 2]
        self._counts = counts


def wanted_rows(step: Pass, batch: Batch) -> list[tuple[int, int]]:
    """(row in the pass, logit row of the batch) of the pass's rows that want logits."""
    if batch.logit_rows.size == batch.token_ids.size == step.num_rows <= MAX_ROWS:
        return _every(step.num_rows)
    place = {row: index for index, row in enumerate(batch.logit_rows.tolist())}
    return [(row, place[token]) for row, token in enumerate(step.rows.tolist())
            if token in place]


@lru_cache(MAX_ROWS)
def _every(num_rows: int) -> list[tuple[int, int]]:
    return [(row, row) for row in range(num_rows)]


def advanced(step: Pass) -> Pass:
    """The pass of the next token of each sequence, with the tables as they are."""
    return Pass(step.role, tuple(Piece(
        Span(piece.span.role, piece.span.start_row, 1, piece.span.start_position + 1,
             piece.span.sliding_pages, piece.span.full_pages), piece.first, 1)
        for piece in step.pieces))


def same_rows(step: Pass, other: Sequence[Piece]) -> bool:
    """Whether pieces are those of a pass: as many rows at the same places and positions."""
    return len(step.pieces) == len(other) and all(
        (a.first, a.num_rows, a.position) == (b.first, b.num_rows, b.position)
        for a, b in zip(step.pieces, other, strict=True))
