# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A model that says what a script tells it to: for tests of the engine and of every front end.

Same interface as models/gemma4.py. Its K/V pages hold token ids instead of keys and values, and it
knows nothing but what it reads back through the page tables: a wrong table, a page that was freed
too early, a lost row or a page of another sequence ends in `PageFault`, never in a silent answer.
Knows no text, no sampling and no request.

    model = ScriptedModel(lambda prompt: [7, 8, 9], vocab_size=4096)

answers every prompt with 7, 8, 9 and then 106 (end of turn). The script sees the prompt's ids, so
that a test decides the answer by what it asks. The logits are one-hot: `PEAK` for the scripted id
and 0 for the others, far enough apart that temperatures up to 2 follow the script as well, and
near enough that a logit bias of -100 bans an id. `step_delay_s` makes steps slow (cancel tests);
`on_step` sees every batch before it runs, may wait, and may raise (fault injection).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch, Int32, Role, Span
from gemma_thor_ros.models.page_planes import Planes

UInt64 = npt.NDArray[np.uint64]

PEAK = 80.0
END_OF_TURN = 106
_POISON = -1
_CACHED_ANSWERS = 256


class PageFault(RuntimeError):
    """The page tables do not lead to the sequence's own history."""


class ScriptError(RuntimeError):
    """A token of the script was refused where the answer has to follow it."""


@dataclass(frozen=True)
class ScriptedConfig:
    """The part of a model's config that the engine reads."""

    sliding_window: int


class ScriptedKVCache:
    """Pages of both geometries: per slot a token id, its role and a hash of the history so far."""

    def __init__(self, num_sliding_pages: int, num_full_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.sliding_ids = np.full((num_sliding_pages, page_size), _POISON, np.int32)
        self.sliding_hashes = np.zeros((num_sliding_pages, page_size), np.uint64)
        self.full_ids = np.full((num_full_pages, page_size), _POISON, np.int32)
        self.full_hashes = np.zeros((num_full_pages, page_size), np.uint64)
        self.full_generated = np.zeros((num_full_pages, page_size), np.bool_)

    def poison(self, geometry: str, page_ids: Sequence[int]) -> None:
        """Make pages ('sliding' or 'full') unreadable; fits the engine's on_pages_freed."""
        ids, hashes = ((self.sliding_ids, self.sliding_hashes) if geometry == 'sliding'
                       else (self.full_ids, self.full_hashes))
        ids[list(page_ids)] = _POISON
        hashes[list(page_ids)] = 0

    def planes(self) -> Planes:
        """Everything that a page holds."""
        return Planes((self.sliding_ids, self.sliding_hashes),
                      (self.full_ids, self.full_hashes, self.full_generated))


class ScriptedModel:
    """`script(prompt ids) -> answer ids`, served through the model interface.

    Give `sliding_window` the size that the test needs; the default is Gemma 4's. `num_steps` and
    `num_rows` count what was run. `must_follow(answer, index)` says what stands at an index of an
    answer that may not be left there, '' where it may; without it the script may be left anywhere,
    and what follows is any token that was let through.
    """

    def __init__(self, script: Callable[[tuple[int, ...]], Sequence[int]], vocab_size: int, *,
                 sliding_window: int = 1024, end_id: int = END_OF_TURN, step_delay_s: float = 0.0,
                 on_step: Callable[[int, Batch], None] | None = None,
                 must_follow: Callable[[tuple[int, ...], int], str] | None = None) -> None:
        self.script = script
        self.vocab_size = vocab_size
        self.config = ScriptedConfig(sliding_window)
        self.end_id = end_id
        self.step_delay_s = step_delay_s
        self.on_step = on_step
        self.must_follow = must_follow
        self.num_steps = 0
        self.num_rows = 0
        self._answers: dict[bytes, tuple[int, ...]] = {}

    def new_kv_cache(self, num_sliding_pages: int, num_full_pages: int, page_size: int,
                     ) -> ScriptedKVCache:
        """Empty pages; all of them poisoned until they are written."""
        return ScriptedKVCache(num_sliding_pages, num_full_pages, page_size)

    def forward(self, batch: Batch, kv_cache: ScriptedKVCache) -> npt.NDArray[np.float32]:
        """Write the rows to their pages, read the history back, give (R, V) float32 logits.

        Raises PageFault, ScriptError, and whatever `on_step` or the script raises.
        """
        step = self.num_steps
        self.num_steps += 1
        self.num_rows += batch.token_ids.size
        if self.on_step is not None:
            self.on_step(step, batch)
        if self.step_delay_s > 0.0:
            time.sleep(self.step_delay_s)
        logits = np.zeros((batch.logit_rows.size, self.vocab_size), np.float32)
        row = 0                                          # next row of logits
        for span in batch.spans:
            write_pages(span, batch, kv_cache)
            history, generated = read_pages(span, kv_cache, self.config.sliding_window)
            while row < batch.logit_rows.size:
                position = (int(batch.logit_rows[row]) - span.start_row) + span.start_position
                if position >= history.size:
                    break
                self.fill_logits(logits[row], history[:position + 1], generated[:position + 1])
                row += 1
        return logits

    def fill_logits(self, logits: npt.NDArray[np.float32], history: Int32,
                    generated: npt.NDArray[np.bool_]) -> None:
        """Write one row (V,), zeros on entry, for the token after `history` (n,).

        `generated` marks the decode-role part of the history. Tests override this for models with
        other logits than one-hot; what it reads went through the pages.
        """
        answer, index = self._answer(history, generated)
        logits[answer[index] if index < len(answer) else self.end_id] = PEAK

    def rest(self, history: Int32, generated: npt.NDArray[np.bool_]) -> tuple[int, ...]:
        """The tokens of the answer after `history`: what a drafter that is right drafts."""
        answer, index = self._answer(history, generated)
        return (*answer[index:], self.end_id)

    def _answer(self, history: Int32, generated: npt.NDArray[np.bool_],
                ) -> tuple[tuple[int, ...], int]:
        """The whole answer to a history's prompt, and how much of it the history has."""
        num_prompt = history.size - int(generated.sum())
        key = history[:num_prompt].tobytes()
        answer = self._answers.get(key)
        if answer is None:
            answer = tuple(self.script(tuple(history[:num_prompt].tolist())))
            if len(self._answers) >= _CACHED_ANSWERS:
                self._answers.clear()
            self._answers[key] = answer
        if self.must_follow is not None:
            self._check_followed(answer, history[num_prompt:].tolist())
        return answer, history.size - num_prompt

    def _check_followed(self, answer: tuple[int, ...], generated: list[int]) -> None:
        pairs = enumerate(zip(answer, generated, strict=False))
        index = next((i for i, (wanted, got) in pairs if wanted != got), -1)
        assert self.must_follow is not None, 'the caller has looked'
        where = self.must_follow(answer, index) if index >= 0 else ''
        if where:
            raise ScriptError(
                f'the script can not be followed at its token {index}, {where}: it was refused '
                f'there, and token {generated[index]} came instead. Guided calls have '
                'their arguments in alphabetical order, and within their limits')


def write_pages(span: Span, batch: Batch, kv_cache: ScriptedKVCache) -> None:
    """Write the rows of a span. Raises PageFault when they or the pages are not in order."""
    start, end = span.start_position, span.start_position + span.num_rows
    rows = slice(span.start_row, span.start_row + span.num_rows)
    token_ids = batch.token_ids[rows]
    positions = np.arange(start, end)
    if not np.array_equal(batch.positions[rows], positions):
        raise PageFault(f'rows of positions {start} to {end - 1} hold {batch.positions[rows]}')
    before = np.uint64(0)
    if start:
        page, slot = divmod(start - 1, kv_cache.page_size)
        before = kv_cache.full_hashes[_pages(span.full_pages, page, page + 1, 'full')[0], slot]
    hashes = before + np.cumsum(_mixed(token_ids, positions))
    first, last = start // kv_cache.page_size, (end - 1) // kv_cache.page_size
    local, slots = positions // kv_cache.page_size - first, positions % kv_cache.page_size
    pages = _pages(span.full_pages, first, last + 1, 'full')[local]
    kv_cache.full_ids[pages, slots] = token_ids
    kv_cache.full_hashes[pages, slots] = hashes
    kv_cache.full_generated[pages, slots] = span.role is Role.DECODE
    pages = _pages(span.sliding_pages, first, last + 1, 'sliding')[local]
    kv_cache.sliding_ids[pages, slots] = token_ids
    kv_cache.sliding_hashes[pages, slots] = hashes


def read_pages(span: Span, kv_cache: ScriptedKVCache, window: int,
               ) -> tuple[Int32, npt.NDArray[np.bool_]]:
    """The checked history up to the span's last row: token ids (n,), generated marks (n,)."""
    size = kv_cache.page_size
    end = span.start_position + span.num_rows
    num_pages = (end + size - 1) // size
    pages = _pages(span.full_pages, 0, num_pages, 'full')
    history = kv_cache.full_ids[pages].reshape(-1)[:end]
    hashes = kv_cache.full_hashes[pages].reshape(-1)[:end]
    generated = kv_cache.full_generated[pages].reshape(-1)[:end]
    _same(hashes, np.cumsum(_mixed(history, np.arange(end))), 0, 'full')
    first_visible = max(0, span.start_position - (window - 1))
    first_page = first_visible // size
    pages = _pages(span.sliding_pages, first_page, num_pages, 'sliding')
    visible = slice(first_visible - first_page * size, end - first_page * size)
    _same(kv_cache.sliding_hashes[pages].reshape(-1)[visible], hashes[first_visible:],
          first_visible, 'sliding')
    _same(kv_cache.sliding_ids[pages].reshape(-1)[visible], history[first_visible:],
          first_visible, 'sliding')
    if np.any(generated[:-1] & ~generated[1:]):
        raise PageFault(f'a prompt row follows a generated one before position {end}')
    return history, generated


def _pages(table: Int32, first: int, end: int, geometry: str) -> Int32:
    pages = table[first:end]
    if pages.size != end - first or np.any(pages < 0):
        raise PageFault(f'{geometry} pages {first} to {end - 1} of the table are '
                        f'{pages.tolist()}: some were freed or never given')
    return pages


def _same(found: npt.NDArray[np.generic], wanted: npt.NDArray[np.generic], first: int,
          geometry: str) -> None:
    if not np.array_equal(found, wanted):
        position = first + int(np.argmax(found != wanted))
        raise PageFault(
            f'{geometry} page contents at position {position} are not of this sequence')


def _mixed(token_ids: Int32, positions: npt.NDArray[np.int_]) -> UInt64:
    """A hash per (token, position) whose running sum tells one history from another."""
    x: UInt64 = token_ids.astype(np.uint64) << np.uint64(32)
    x += positions.astype(np.uint64)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(32))
