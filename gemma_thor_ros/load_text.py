# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of a checkpoint and its grammars: load.py's hand for what is no weight.

Knows no settings and no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.text.grammar import Grammars
from gemma_thor_ros.text.tokenizer import Tokenizer


def read_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """Read a checkpoint's tokenizer; ConfigError when it has more tokens than the model."""
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f'{folder / "tokenizer.json"} has {tokenizer.vocab_size:,} tokens, config.json says '
            f'vocab_size {vocab_size:,}'
        )
    return tokenizer


class TextBeside:
    """A tokenizer and its grammars, read by a thread of its own from the first `check` on.

    They take seconds for 262,144 tokens, most of them in libraries that hold the interpreter's
    lock: whatever needs it meanwhile waits. Copying weights hardly does.
    """

    def __init__(self, read: Callable[[], Tokenizer], stop_ids: Sequence[int]) -> None:
        self._read = read
        self._stop_ids = stop_ids
        self._thread = ThreadPoolExecutor(1, 'gemma_thor_text')
        self._job: Future[tuple[Tokenizer, Grammars]] | None = None

    def check(self) -> None:
        """Start if need be; raises what has gone wrong up to now."""
        job = self._start()
        if job.done():
            job.result()

    def result(self) -> tuple[Tokenizer, Grammars]:
        """Wait for both."""
        return self._start().result()

    def close(self) -> None:
        """Start nothing more."""
        self._thread.shutdown(wait=False)

    def _start(self) -> Future[tuple[Tokenizer, Grammars]]:
        if self._job is None:
            self._job = self._thread.submit(self._work)
        return self._job

    def _work(self) -> tuple[Tokenizer, Grammars]:
        tokenizer = self._read()
        return tokenizer, Grammars(tokenizer, self._stop_ids)


def argument_at(tokenizer: Tokenizer, answer: tuple[int, ...], index: int) -> str:
    """Return the token at an index of a script if it is in the arguments of a call, else ''.

    A robot would act on arguments that nobody wrote. The name of a call, and all else, may be
    what a guide makes of it.
    """
    begin, end = (tokenizer.control_id(text) for text in ('<|tool_call>', '<tool_call|>'))
    before = answer[:index]
    begun = max((i for i, token in enumerate(before) if token == begin), default=-1)
    if begun < 0 or end in before[begun:] or '{' not in tokenizer.decode(before[begun:]):
        return ''
    call = tokenizer.decode(before[begun + 1:])
    return f'{tokenizer.decode(answer[index:index + 1])!r} behind {call!r}'
