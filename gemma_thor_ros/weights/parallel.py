# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Several threads for array work whose results are taken in order. Knows nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar('Item')
Result = TypeVar('Result')


def bounded_map(function: Callable[[Item], Result], items: Iterable[Item],
                num_threads: int) -> Iterator[Result]:
    """map() on threads, results in order; at most 2 * num_threads of them exist at a time.

    NumPy lets go of the interpreter lock in its loops, so threads are enough.
    """
    with ThreadPoolExecutor(num_threads) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= 2 * num_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
