# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times the CPU forward pass on random weights of the demo model's shape.

    python bench/cpu_model.py [--threads N] [--repeat N] [--profile] [--json]

Prints for each step the median wall time in milliseconds, its 10th and 90th percentile, the median
CPU time (the better number on a machine that does other work) and rows per second. The model
alone: no sampler, no engine.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / 'test' / 'model')]

from forward import Role, Rows, page_table, random_model, step  # noqa: E402

DEMO: dict[str, Any] = {
    'model_type': 'gemma4_text', 'vocab_size': 4096, 'hidden_size': 256, 'num_hidden_layers': 6,
    'num_attention_heads': 4, 'num_key_value_heads': 2, 'num_global_key_value_heads': 1,
    'head_dim': 256, 'global_head_dim': 512, 'intermediate_size': 384, 'attention_k_eq_v': True,
    'sliding_window': 512, 'enable_moe_block': True, 'num_experts': 8, 'top_k_experts': 2,
    'moe_intermediate_size': 128, 'final_logit_softcapping': 30.0,
    'hidden_size_per_layer_input': 0, 'max_position_embeddings': 4096,
}
PAGE_SIZE = 16


def steps(model: Any) -> dict[str, tuple[Any, int]]:
    """Name -> (a step to run, rows it computes)."""
    tokens = (np.arange(4096) * 7 % model.vocab_size).tolist()
    tables = [page_table(80, base=80 * i) for i in range(4)]
    cache = model.new_kv_cache(320, 320, PAGE_SIZE)

    def run(*parts: tuple[int, int, Role]) -> tuple[Any, int]:
        rows = [Rows(tokens[at:at + count], at, role, tables[i])
                for i, (at, count, role) in enumerate(parts)]
        return lambda: step(model, cache, *rows, all_logits=False), sum(p[1] for p in parts)

    return {
        'prefill 16 at 0': run((0, 16, Role.PREFILL)),
        'prefill 200 at 0': run((0, 200, Role.PREFILL)),
        'prefill 256 at 256': run((256, 256, Role.PREFILL)),
        'decode 1 at 200': run((200, 1, Role.DECODE)),
        'decode 1 at 1000': run((1000, 1, Role.DECODE)),
        'decode 4 sequences at 300': run(*[(300, 1, Role.DECODE)] * 4),
        'verify 8 at 300': run((300, 8, Role.DECODE)),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--threads', type=int, default=1, help='BLAS threads (default 1)')
    parser.add_argument('--repeat', type=int, default=40, help='runs of each step (default 40)')
    parser.add_argument('--profile', action='store_true', help='profile one kind of each step')
    parser.add_argument('--json', action='store_true', help='one JSON object per line')
    options = parser.parse_args()
    model = random_model(DEMO, decode_threads=options.threads, prefill_threads=options.threads)
    for name, (run, num_rows) in steps(model).items():
        run()
        times, cpu_times = [], []
        for _ in range(options.repeat):
            start, cpu_start = time.perf_counter(), time.process_time()
            run()
            times.append(1e3 * (time.perf_counter() - start))
            cpu_times.append(1e3 * (time.process_time() - cpu_start))
        low, median, high = np.percentile(times, [10, 50, 90])
        cpu = float(np.median(cpu_times))
        if options.json:
            sys.stdout.write(json.dumps({
                'step': name, 'ms': round(median, 3), 'p10_ms': round(low, 3),
                'p90_ms': round(high, 3), 'cpu_ms': round(cpu, 3),
                'rows_per_s': round(1e3 * num_rows / median, 1)}) + '\n')
        else:
            sys.stdout.write(f'{name:28} {median:8.2f} ms  ({low:.2f} .. {high:.2f})  {cpu:8.2f} '
                             f'ms CPU  {1e3 * num_rows / median:8.0f} rows/s\n')
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(lambda run=run: [run() for _ in range(20)])
            pstats.Stats(profile).sort_stats('tottime').print_stats(14)


if __name__ == '__main__':
    main()
