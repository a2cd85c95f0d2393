# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The part `saved` of serving.py: a conversation's KV pages to a file and back.

Knows the engine alone; serving.py hands it the bed that the parts share.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from gemma_thor_ros.session_caches import read_cache, write_cache

TIMEOUT_S = 120.0
MAX_BYTES = 16 << 30


def saved(bed: Any, body: dict[str, Any]) -> None:
    """Save what is cached of a prompt, forget it, restore it, and ask again."""
    first = bed.alone([body])[0]
    ids, times = np.array(bed.ids(body), np.int32), [time.perf_counter()]
    prefix = bed.engine.save_prefix(ids, (), MAX_BYTES).result(TIMEOUT_S)
    if prefix is None:
        raise RuntimeError('nothing of the prompt is cached')
    times.append(time.perf_counter())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'prefix.kv'
        num_bytes, digest = write_cache(path, prefix, {})
        times.append(time.perf_counter())
        bed.engine._cache.clear()        # the engine is idle
        cold = bed.alone([body])[0]
        bed.engine._cache.clear()
        times.append(time.perf_counter())
        read = read_cache(path, digest, {}, MAX_BYTES)
        times.append(time.perf_counter())
        cached = bed.engine.restore_prefix(read).result(TIMEOUT_S)
        times.append(time.perf_counter())
    again = bed.alone([body])[0]
    if not first.token_ids == cold.token_ids == again.token_ids:
        bed.faults.append(f'restored pages give {again.token_ids}, fresh ones {cold.token_ids}')
    context = {'path': 'engine', 'prompt_tokens': ids.size, 'cached_tokens': cached}
    bed.add('saved_mb', [num_bytes / 2**20], 'MB', **context)
    for name, at in (('copy_out_s', 0), ('write_s', 1), ('read_and_check_s', 3),
                     ('copy_in_s', 4)):
        bed.add(name, [times[at + 1] - times[at]], 's', **context)
    for name, answer in (('cold', cold), ('restored', again)):
        bed.add('ttft_ms', [(answer.times[0] - answer.submitted) * 1e3], 'ms', **context,
                prefix=name)
