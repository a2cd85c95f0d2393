# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo model on the CUDA device against the CPU in float64, teacher-forced.

    python bench/device_errors.py [--receipt FILE] [--commit HASH]

For each type of K and V: a prompt of random tokens, then generated rows one by one and as verify
steps. The error is the 2-norm of a row's difference over that of its float64 logits. A first
choice may differ only where the float64 margin is under 4 times the error of a logit (the root
mean square over all), and in at most 1 % of the rows.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gemma_thor_ros.cli.bench_records import Records, driver_version
from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.cuda_step import CudaGemma4
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.weights.checkpoint import open_checkpoint

DEMO = Path(__file__).resolve().parent.parent / 'gemma_thor_ros' / 'demo' / 'model'
PROMPT, DECODED, PAGE = 600, 64, 16
LIMITS = {'bf16': 0.05, 'fp8': 0.2}      # of the median row


def batches(token_ids: np.ndarray) -> list[Batch]:
    """The prompt in chunks, decode steps, and verify steps of 4 and 16 rows."""
    pages = np.random.default_rng(3).permutation(-(-token_ids.size // PAGE)).astype(np.int32)
    cuts = [*range(0, PROMPT, 200), *range(PROMPT, PROMPT + DECODED), PROMPT + DECODED,
            PROMPT + DECODED + 4, PROMPT + DECODED + 20]
    steps = []
    for start, end in zip(cuts, cuts[1:], strict=False):
        role = Role.PREFILL if end <= PROMPT else Role.DECODE
        steps.append(Batch(token_ids[start:end], np.arange(start, end, dtype=np.int32),
                           (Span(role, 0, end - start, start, pages, pages),),
                           np.arange(end - start, dtype=np.int32)))
    return steps


def compare(kv_dtype: Any, records: Records) -> bool:
    """Run both, print and record; whether all limits hold."""
    checkpoint = open_checkpoint(DEMO)
    config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    weights = checkpoint.text_weights()
    stream = device.new_stream()
    ours = CudaGemma4(config, weights, DeviceLoader(stream), stream=stream, context_length=1024,
                      kv_dtype=kv_dtype)
    exact = Gemma4(config, weights, np.float64, kv_dtype=kv_dtype)
    twin = Gemma4(config, weights, np.float32, 'device', kv_dtype=kv_dtype)
    token_ids = np.random.default_rng(1).integers(512, config.vocab_size, PROMPT + DECODED + 20
                                                  ).astype(np.int32)
    steps = batches(token_ids)
    logits = []
    for model in (ours, exact, twin):
        cache = model.new_kv_cache(64, 64, PAGE)
        logits.append(np.concatenate([model.forward(step, cache) for step in steps]))
    found, right, rounded = logits
    norms = np.linalg.norm(right, axis=1)
    rows = np.linalg.norm(found - right, axis=1) / norms
    twin_rows = np.linalg.norm(rounded - right, axis=1) / norms
    best = right.argmax(1)
    other = found.argmax(1)
    index = np.arange(best.size)
    margin = right[index, best] - right[index, other]
    differs = best != other
    excused = margin < 4 * float(np.sqrt(np.mean((found - right) ** 2)))
    context = {'model': 'demo', 'kv': kv_dtype, 'rows': int(rows.size), 'path': 'model',
               'against': 'float64 on the CPU'}
    records.add('op_error', rows.tolist(), 'relative 2-norm', **context, op='logits')
    records.add('op_error', twin_rows.tolist(), 'relative 2-norm', **context,
                op='logits of the CPU with the same roundings')
    records.add('top1_differs', [float(differs.mean())], 'of the rows', **context,
                unexcused=int((differs & ~excused).sum()))
    good = bool(np.isfinite(found).all() and np.median(rows) < LIMITS[kv_dtype]
                and (differs & ~excused).sum() == 0 and differs.mean() <= 0.01)
    print(f'{kv_dtype}: error median {np.median(rows):.2e}, 99 % {np.quantile(rows, 0.99):.2e}, '
          f'largest {rows.max():.2e} (CPU with the same roundings {np.median(twin_rows):.2e}); '
          f'first choice differs in {differs.mean():.2%}, {(differs & ~excused).sum()} of them '
          f'beyond the margin: {"good" if good else "WRONG"}', flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--receipt', type=Path, help='write the records here')
    parser.add_argument('--commit', default='unknown')
    arguments = parser.parse_args()
    reason = device.find()
    if reason:
        print(f'this needs a CUDA device, but {reason}')
        return 2
    records = Records(arguments.receipt, card=device.info().name, driver=driver_version(),
                      commit=arguments.commit, command='python bench/device_errors.py')
    results = [compare(kv_dtype, records) for kv_dtype in ('bf16', 'fp8')]
    return 0 if all(results) else 1


if __name__ == '__main__':
    sys.exit(main())
