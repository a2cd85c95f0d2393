# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times what the engine adds to a step: a model that costs nothing, sampler and paging on.

    python bench/engine_step.py [--steps 2000] [--json]

Processor time of a decode step in microseconds, for 1 to 16 sequences, greedy and sampled: the
scheduler, the batch, the sampler on a vocabulary of 4,096 and the outboxes; no thread switches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gemma_thor_ros.engine import Engine
from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.schema import Request, SamplingParams

VOCAB_SIZE = 4096
PROMPT_TOKENS = 100
SAMPLINGS = {'greedy': 0.0, 'sampled': 1.0}


class Free:
    """Logits at once; the time they take to be made is not counted."""

    config = SimpleNamespace(sliding_window=512)
    vocab_size = VOCAB_SIZE

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._logits = rng.standard_normal((64, VOCAB_SIZE)).astype(np.float32)

    def new_kv_cache(self, *_: Any) -> None:
        """No pages are needed."""

    def forward(self, batch: Batch, _: Any) -> Any:
        """Logits (R, V) that do not depend on anything."""
        return self._logits[:batch.logit_rows.size]


def measure(num_sequences: int, temperature: float, num_steps: int) -> float:
    """Return the median processor time of a decode step in microseconds."""
    engine = Engine(Free(), page_size=16, num_sliding_pages=2000, num_full_pages=8000,
                    max_sequences=16, max_waiting=0, prefill_chunk=256,
                    context_length=PROMPT_TOKENS + num_steps + 10)
    engine.start(threaded=False)
    sampling = SamplingParams(temperature=temperature, max_tokens=num_steps + 5, ignore_eos=True)
    for i in range(num_sequences):
        engine.submit(Request(f'r{i}', tuple(range(PROMPT_TOKENS)), sampling))
    while engine.stats().prefill_tokens < num_sequences * PROMPT_TOKENS:
        engine.step()
    times = []
    for _ in range(num_steps):
        begin = time.process_time()
        engine.step()
        times.append(1e6 * (time.process_time() - begin))
    engine.stop()
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--steps', type=int, default=2000, help='steps of each (%(default)s)')
    parser.add_argument('--json', action='store_true', help='one JSON object per line')
    options = parser.parse_args()
    for name, temperature in SAMPLINGS.items():
        for num_sequences in (1, 4, 8, 16):
            us = measure(num_sequences, temperature, options.steps)
            if options.json:
                sys.stdout.write(json.dumps({'sampling': name, 'sequences': num_sequences,
                                             'cpu_us': round(us, 1)}) + '\n')
            else:
                sys.stdout.write(f'{name:8} {num_sequences:3} sequences {us:8.1f} us CPU\n')


if __name__ == '__main__':
    main()
