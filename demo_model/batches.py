# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A stream of training batches of constant token count, made by worker processes while training runs.

Every dialogue is seen once. The order depends on the seed alone, not on the workers' pace.
"""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from demo_model.encode import encode_chunk

# 53,760 tokens divide by all of these lengths.
NUM_TOKENS = 53760
LENGTHS = (192, 256, 320, 384, 448, 512, 640, 768, 960, 1344, 1792, 2240)
Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _work(
    args: tuple[int, int, bool, float],
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    encoded = encode_chunk(*args)
    return (
        np.concatenate([one.ids for one in encoded]),
        np.concatenate([one.learn for one in encoded]),
        np.asarray([len(one.ids) for one in encoded]),
    )


class BatchStream:
    """Iterate over (ids (rows, length), targets (rows, length)); targets -100 are not learnt."""

    def __init__(
        self,
        seed: int,
        workers: int,
        chunk: int = 1000,
        num_tokens: int = NUM_TOKENS,
        chunks: int = 100000,
        demo_share: float = 0.0,
    ) -> None:
        context = multiprocessing.get_context('fork')
        self._pool = context.Pool(workers)
        self._num_tokens = num_tokens
        self._queue: queue.Queue[Batch] = queue.Queue(400)
        self._credit = threading.Semaphore(4 * workers)
        self._seeds = (
            (seed * 1_000_003 + index, chunk, False, demo_share) for index in range(chunks)
        )
        self._stopped = False
        self.dialogues = 0
        self._thread = threading.Thread(target=self._fill, daemon=True)
        self._thread.start()

    def _tasks(self) -> Iterator[tuple[int, int, bool, float]]:
        for task in self._seeds:
            self._credit.acquire()
            if self._stopped:
                return
            yield task

    def _fill(self) -> None:
        waiting: dict[int, list[tuple[npt.NDArray[np.uint16], npt.NDArray[np.bool_]]]] = {
            length: [] for length in LENGTHS
        }
        for ids, learn, lengths in self._pool.imap(_work, self._tasks()):
            ends = np.cumsum(lengths)
            for end, size in zip(ends.tolist(), lengths.tolist(), strict=True):
                bucket = next(length for length in LENGTHS if size <= length)
                rows = waiting[bucket]
                rows.append((ids[end - size : end], learn[end - size : end]))
                if len(rows) >= max(1, self._num_tokens // bucket):
                    self._put(_batch(rows, bucket))
                    waiting[bucket] = []
                if self._stopped:
                    return
            self.dialogues += len(lengths)
            self._credit.release()

    def _put(self, batch: Batch) -> None:
        while not self._stopped:
            try:
                self._queue.put(batch, timeout=0.5)
                return
            except queue.Full:
                continue

    def next(self, timeout: float = 120.0) -> Batch:
        """The next batch; waits for the workers if need be, and raises queue.Empty in the end."""
        return self._queue.get(timeout > 0, timeout)

    def stop(self) -> None:
        """End the workers."""
        self._stopped = True
        self._credit.release()
        self._pool.terminate()


def _batch(rows: list[tuple[npt.NDArray[np.uint16], npt.NDArray[np.bool_]]], length: int) -> Batch:
    ids = np.zeros((len(rows), length), dtype=np.int64)
    targets = np.full((len(rows), length), -100, dtype=np.int64)
    for row, (tokens, learn) in enumerate(rows):
        size = len(tokens)
        ids[row, :size] = tokens
        wanted = np.where(learn, tokens.astype(np.int64), -100)
        targets[row, : size - 1] = wanted[1:]
    return ids, targets
