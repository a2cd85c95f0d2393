# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The small launches that join a drafter to its target: taps, states, joined inputs, norms.

The twins are rounding.stored, embed_ref and rms_norm_ref around NumPy's own concatenation, as
draft_table.py has them. All have bf16 rows but for the residuals, which are f32.
"""

from __future__ import annotations

from typing import Any, Literal

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.shapes import check

Mode = Literal['add', 'set', 'leave']
_MODES: tuple[Mode, ...] = ('add', 'set', 'leave')


def draft_tap(features: Any, residual: Any, first: int, stream: Any) -> None:
    """Enqueue features[:, first .. first + H - 1] (T, N) = residual (T, H) f32, rounded."""
    sizes = check('draft_tap', features=features, residual=residual)
    assert first % 8 == 0 and first + sizes['H'] <= sizes['N'], (first, sizes)
    _launch('draft_tap', sizes, (features, residual, sizes['N'], first), sizes['T'], stream)


def draft_keep(pages: Any, normed: Any, sequences: Any, positions: Any, page_table: Any,
               stream: Any) -> None:
    """Enqueue a copy of rows normed (T, H) to their slots of pages (P, S, H).

    sequences (T,) i32 is each row's row of page_table (B, max_pages) i32, -1 for padding.
    """
    sizes = check('draft_keep', pages=pages, normed=normed, sequences=sequences,
                  positions=positions, page_table=page_table)
    _launch('draft_keep', sizes, (pages, normed, sequences, positions, page_table, sizes['maxP']),
            sizes['T'], stream, page_size=sizes['S'])


def draft_join(x: Any, states: Any, token_ids: Any, starts: Any, page_table: Any, table: Any,
               scale: float, stream: Any, *, overlap: bool = True) -> None:
    """Enqueue x (B, 2 H) = the scaled embeddings of token_ids (B,) i32 beside a state each.

    states: (B, H), or pages (P, S, H) of which the slot of starts[b] - 1 is taken; table (V, H).
    Without overlap it is the first launch of a pass: see embed.embed.
    """
    sizes = check('draft_join', x=x, token_ids=token_ids, starts=starts, page_table=page_table,
                  table=table)
    hidden, paged = sizes['H'], len(states.shape) == 3
    assert sizes['2H'] == 2 * hidden and states.shape[-1] == hidden, (x.shape, states.shape)
    _launch('draft_join', sizes, (x, states, token_ids, starts, page_table, table, sizes['maxP'],
                                  float(scale)),
            sizes['B'], stream, overlap, page_size=states.shape[1] if paged else 1,
            from_pages=paged)


def draft_add_norm(residual: Any, normed: Any, branch: Any, weight: Any, eps: float,
                   stream: Any, mode: Mode = 'add') -> None:
    """Enqueue normed (T, H) = rms(residual + branch; weight), and residual (T, H) f32 is the sum.

    mode 'set': of the branch alone, which becomes the residual; 'leave': the same without a
    residual.
    """
    sizes = check('draft_add_norm', normed=normed, branch=branch, weight=weight)
    assert mode == 'leave' or residual.shape == branch.shape, (residual.shape, branch.shape)
    _launch('draft_add_norm', sizes, (residual, normed, branch, weight, float(eps)), sizes['T'],
            stream, mode=mode)


def _launch(entry: str, sizes: dict[str, int], args: tuple[Any, ...], num_rows: int, stream: Any,
            overlap: bool = True, **constants: Any) -> None:
    kernel = device.compiled(spec(entry, sizes['H'], **constants))
    device.launch(kernel, (num_rows,), -(-sizes['H'] // 256) * 32, args, stream,
                  overlap=overlap)


def spec(entry: str, hidden_size: int, *, page_size: int = 1, from_pages: bool = False,
         mode: Mode = 'set') -> KernelSpec:
    """What is compiled for H columns."""
    assert hidden_size % 8 == 0 and hidden_size <= 8192, hidden_size
    return KernelSpec.of('draft_rows', entry, H=hidden_size, S=page_size,
                         FROM_PAGES=int(from_pages), MODE=_MODES.index(mode))


def bytes_moved(num_tokens: int, hidden_size: int, row_bytes: int) -> int:
    """row_bytes read and written for each of a row's H numbers."""
    return num_tokens * hidden_size * row_bytes
