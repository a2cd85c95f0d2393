# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times the demo model through the whole engine on one core: decode rate and first token.

    python bench/cpu_engine.py [--json FILE]

From Engine.submit to the outbox, sampler, stop check and paging on. Prompts differ, so that no
prefix is shared.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.engine import Engine
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import Request, SamplingParams, TokenEvent

PROMPT_TOKENS = 200
ANSWER_TOKENS = 256
FIRST_ID, NUM_IDS = 512, 3000        # ordinary tokens of the demo model's vocabulary


def main() -> int:
    parser = argparse.ArgumentParser(description='Demo model through the engine, one core.')
    parser.add_argument('--runs', type=int, default=7, help='take medians of (%(default)s)')
    parser.add_argument('--json', type=Path, help='write the records to this file too')
    options = parser.parse_args()
    config = EngineConfig.from_mapping({'http.enabled': False, 'engine.threads': 1})
    runtime = Runtime(config)
    runtime.start()
    if not runtime.wait_ready(60.0):
        raise SystemExit(runtime.error)
    engine = runtime.engine
    assert engine is not None
    samples = [measure(engine, run) for run in range(options.runs)]
    runtime.stop()
    records = [record('ttft_ms', 'ms', [first * 1000.0 for first, _ in samples]),
               record('decode_tok_s', 'tok/s', [rate for _, rate in samples])]
    for entry in records:
        print(f'{entry["metric"]:<14}{entry["value"]:>8.1f} {entry["unit"]:<6} '
              f'(spread {entry["spread"][0]:.1f} to {entry["spread"][1]:.1f})')
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + '\n', encoding='utf-8')
    return 0


def measure(engine: Engine, run: int) -> tuple[float, float]:
    """Return seconds to the first token, and tokens a second after it."""
    ids = (2, *(FIRST_ID + (run * 7919 + i * 104729) % NUM_IDS for i in range(PROMPT_TOKENS - 1)))
    sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    started = time.perf_counter()
    outbox = engine.submit(Request(f'bench-{run}', ids, sampling))
    first = last = 0.0
    count = 0
    for event in outbox.events(120.0):
        if isinstance(event, TokenEvent):
            last = time.perf_counter()
            first = first or last
            count += len(event.token_ids)
    return first - started, (count - 1) / (last - first)


def record(metric: str, unit: str, values: list[float]) -> dict[str, Any]:
    """Return a receipt's record of some runs: the median and the spread."""
    return {
        'metric': metric, 'value': round(statistics.median(values), 2), 'unit': unit,
        'context': {'model': 'demo', 'format': 'nvfp4 as float32', 'path': 'engine',
                    'sequences': 1,
                    'prompt_tokens': PROMPT_TOKENS, 'answer_tokens': ANSWER_TOKENS, 'threads': 1},
        'spread': [round(min(values), 2), round(max(values), 2)], 'card': 'CPU',
        'processor': platform.processor() or platform.machine(),
        'date': time.strftime('%Y-%m-%d'), 'command': 'python bench/cpu_engine.py',
    }


if __name__ == '__main__':
    raise SystemExit(main())
