# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo model on the CUDA device against the CPU in float64, teacher-forced.

    python bench/device_errors.py [--receipt FILE] [--commit HASH]

For each type of K and V: dialogues of the evaluation, the prompts in chunks, then the answers in
decode steps and verify steps of 4 and 16 rows in turn. The error is the 2-norm of a row's
difference over that of its float64 logits. A first choice may differ only where the float64 margin
is under 4 times the error of a logit (the root mean square over all), and in at most 1 % of the
rows. (Random tokens won't do: on them the router has no opinion either, and every rounding turns
its choice of experts.)
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from demo_model.cases import expected_text
from demo_model.encode import Encoder
from gemma_thor_ros.cli.bench_records import Records, driver_version
from gemma_thor_ros.demo.evaluation.cases import load_cases
from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.cuda_step import CudaGemma4
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.weights.checkpoint import open_checkpoint

DEMO = Path(__file__).resolve().parent.parent / 'gemma_thor_ros' / 'demo' / 'model'
DIALOGUES, LONGEST, CHUNK, PAGE = 40, 400, 200, 16      # dialogues, tokens of a prompt
LIMITS = {'bf16': 0.05, 'fp8': 0.2}      # of the median row


def dialogues() -> list[tuple[np.ndarray, int]]:
    """Token ids of prompt and answer, and where the answer begins: calls, of all rows in turn."""
    encoder = Encoder()
    rows = load_cases()
    wanted = ('motion', 'known', 'unseen_names', 'two_calls', 'by_hand')
    found = []
    for cases in zip(*(rows[name] for name in wanted), strict=False):
        for case in cases:
            prompt = encoder.prompt(list(case.messages), list(case.tools))
            calls = [{'id': f'c{place}', 'type': 'function',
                      'function': {'name': name, 'arguments': given}}
                     for place, (name, given) in enumerate(case.expect.get('calls') or ())]
            if not calls or len(prompt) > LONGEST or case.thinking:
                continue
            answer = encoder.tokenizer.encode(expected_text(
                {'role': 'assistant', 'content': '', 'tool_calls': calls}))
            found.append((np.array(prompt + answer, np.int32), len(prompt)))
            if len(found) == DIALOGUES:
                return found
    return found


def batches(token_ids: np.ndarray, start: int) -> list[Batch]:
    """The prompt in chunks (its last row counts), the answer by 1, 4, 1, 16 rows a step."""
    pages = np.random.default_rng(3).permutation(-(-token_ids.size // PAGE)).astype(np.int32)
    cuts = [*range(0, start, CHUNK), start]
    sizes = itertools.cycle((1, 4, 1, 16))
    while cuts[-1] < token_ids.size - 1:
        cuts.append(min(cuts[-1] + next(sizes), token_ids.size - 1))
    steps = []
    for low, high in itertools.pairwise(cuts):
        prompt = high <= start
        wanted = np.arange(high - low, dtype=np.int32)
        if prompt:
            wanted = wanted[-1:] if high == start else wanted[:0]
        steps.append(Batch(token_ids[low:high], np.arange(low, high, dtype=np.int32),
                           (Span(Role.PREFILL if prompt else Role.DECODE, 0, high - low, low,
                                 pages, pages),), wanted))
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
    logits = []
    asked = dialogues()
    for model in (ours, exact, twin):
        cache = model.new_kv_cache(64, 64, PAGE)
        logits.append(np.concatenate([model.forward(step, cache) for ids, start in asked
                                      for step in batches(ids, start)]))
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
    twin_differs = float((rounded.argmax(1) != best).mean())
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
          f'first choice differs in {differs.mean():.2%} of {rows.size} rows (there '
          f'{twin_differs:.2%}), {(differs & ~excused).sum()} of them beyond the margin: '
          f'{"good" if good else "WRONG"}', flush=True)
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
