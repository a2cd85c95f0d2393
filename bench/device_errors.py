# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo model on the CUDA device against the CPU in float64, teacher-forced.

    python bench/device_errors.py [--receipt FILE] [--commit HASH] [--own-pages]

For each type of K and V: dialogues of the evaluation, the prompts in chunks, then the answers in
decode steps and verify steps of 4 and 16 rows in turn. Forced are the tokens and the pages: the
float64 path rounds K and V as the device does, and what it reads then is what the device wrote.
(With pages of its own a number that lies between two of e4m3 goes either way, 6 % of them do, and
every row after it sees that.) What it would have written itself is compared number by number.

The error is the 2-norm of a row's difference over that of its float64 logits. A first choice may
differ only where the float64 margin is under 4 times the error of a logit (the root mean square
over all), and in at most 1 % of the rows. Rows in which a router chose other experts stand apart:
there the float64 router had a tie. --own-pages: for information, against float64 with pages of its
own, rounded and not, and the CPU with the device's roundings. (Random tokens won't do: on them the
router has no opinion, and every rounding turns its choice of experts.)
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
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
from gemma_thor_ros.weights.number_formats import E4M3_VALUES, bf16_to_float32

DEMO = Path(__file__).resolve().parent.parent / 'gemma_thor_ros' / 'demo' / 'model'
DIALOGUES, LONGEST, CHUNK, PAGE = 40, 400, 200, 16      # dialogues, tokens of a prompt
SIZES = 64, 64, PAGE                     # of the cache
LIMITS = {'bf16': 0.01, 'fp8': 0.02}     # of the median row of logits
PAGE_LIMITS = {'bf16': 0.006, 'fp8': 0.02}       # of the median row of K and V; 4 times of 99 %
MOST_TIED = 0.05                         # rows in which a router chose other experts


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


class Device:
    """The model on the device, and the experts that its routers chose; models/cuda_shadow.Shadow.

    Launches come one by one, so that each layer's choice can be read behind it.
    """

    def __init__(self, config: ModelConfig, weights: Any, kv_dtype: Any) -> None:
        self.stream = device.new_stream()
        self.model = CudaGemma4(config, weights, DeviceLoader(self.stream), stream=self.stream,
                                context_length=1024, kv_dtype=kv_dtype, graphs=False)
        self.layers = frozenset(range(config.num_hidden_layers))
        self._experts: list[np.ndarray] = []
        self.model.attach(self)
        self.cache = self.model.new_kv_cache(*SIZES)

    def tap(self, layer: int, residual: Any) -> None:
        """Read what the layer's router chose."""
        self._experts.append(self.model.chosen_experts(residual.shape[0]))

    def keep(self, normed: Any, rows: Any) -> None:
        """Nothing."""

    def ahead(self, *_: Any) -> None:
        """Nothing."""

    def run(self, step: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Logits (R, V) of a step, and the experts (layers, R, K) of these rows, ascending."""
        self._experts.clear()
        logits = self.model.forward(step, self.cache)
        return logits, np.sort([ids[step.logit_rows] for ids in self._experts], axis=2)

    def pages(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """K and V of each layer as numbers (P, S, KV, D) float64."""
        found = []
        for layer in range(self.model.config.num_hidden_layers):
            scales = self.model.kv_scales(layer).scales
            found.append(tuple(self._numbers(pages[layer], scale) for pages, scale in zip(
                (self.cache.k_pages, self.cache.v_pages), scales, strict=True)))
        return found

    def _numbers(self, pages: Any, scale: Any) -> np.ndarray:
        bits = np.empty(pages.shape, pages.dtype)
        factor = np.empty(scale.shape, np.float32)
        device.copy_out(bits, pages, self.stream)
        device.copy_out(factor, scale, self.stream)
        self.stream.synchronize()
        if bits.dtype == np.uint16:
            return bf16_to_float32(bits).astype(np.float64)
        return E4M3_VALUES[bits] * factor[:, None]


class Reference:
    """The model in float64 on the CPU, which reads the pages that another one has written."""

    def __init__(self, config: ModelConfig, weights: Any, kv_dtype: Any) -> None:
        self.model = Gemma4(config, weights, np.float64, kv_dtype=kv_dtype)
        self.cache = self.model.new_kv_cache(*SIZES)
        self.page_errors: list[np.ndarray] = []      # of rows of K and of V, as they come
        self._experts: list[np.ndarray] = []
        self._pages: list[tuple[np.ndarray, np.ndarray]] = []
        self._append, self._route = self.model.ops.kv_append, self.model.ops.moe_route
        self.model.ops = replace(self.model.ops, kv_append=self._take, moe_route=self._note)

    def run(self, step: Batch, pages: list[tuple[np.ndarray, np.ndarray]],
            ) -> tuple[np.ndarray, np.ndarray]:
        """As Device.run, with its pages, which hold this step's rows already."""
        self._experts.clear()
        self._pages = pages
        logits = self.model.forward(step, self.cache)
        return logits, np.sort([ids[step.logit_rows] for ids in self._experts], axis=2)

    def _take(self, q: Any, k_pages: Any, v_pages: Any, *rest: Any, **named: Any) -> None:
        """Write K and V, compare them with the other one's, and go on with those."""
        self._append(q, k_pages, v_pages, *rest, **named)
        where = rest[4]
        layer = next(index for index, pages in enumerate(self.cache.k_pages) if pages is k_pages)
        for own, other in zip((k_pages, v_pages), self._pages[layer], strict=True):
            right = own[where.pages, where.slots]
            found = other[where.pages, where.slots].astype(np.float64)
            self.page_errors.append(np.linalg.norm(found - right, axis=(1, 2))
                                    / np.linalg.norm(right, axis=(1, 2)))
            own[where.pages, where.slots] = found

    def _note(self, ids: Any, *rest: Any) -> None:
        self._route(ids, *rest)
        self._experts.append(np.array(ids))


@dataclass(frozen=True)
class Verdict:
    """What a comparison gave; shares are of the rows."""

    errors: np.ndarray                   # of each row
    differs: float                       # first choices
    beyond: int                          # of them beyond the margin, the experts being the same
    tied: float                          # rows with other experts
    tied_beyond: int
    page_median: float
    page_most: float                     # 99 % of the rows are below

    def holds(self, kv_dtype: str) -> bool:
        """Whether all limits are kept."""
        return bool(np.isfinite(self.errors).all() and np.median(self.errors) < LIMITS[kv_dtype]
                    and self.differs <= 0.01 and self.beyond == 0 and self.tied <= MOST_TIED
                    and self.page_median < PAGE_LIMITS[kv_dtype]
                    and self.page_most < 4 * PAGE_LIMITS[kv_dtype])


def judge(found: np.ndarray, right: np.ndarray, same: np.ndarray,
          page_errors: np.ndarray) -> Verdict:
    """Compare logits (R, V) with those in float64; same (R,): rows with the same experts."""
    best, other, index = right.argmax(1), found.argmax(1), np.arange(right.shape[0])
    margin = right[index, best] - right[index, other]
    # a NaN is no first choice, and excuses nothing
    beyond = (best != other) & ~(margin < 4 * float(np.sqrt(np.mean((found - right) ** 2))))
    return Verdict(np.linalg.norm(found - right, axis=1) / np.linalg.norm(right, axis=1),
                   float((best != other).mean()), int((beyond & same).sum()),
                   float((~same).mean()), int((beyond & ~same).sum()),
                   float(np.median(page_errors)), float(np.quantile(page_errors, 0.99)))


@cache
def reference(kv_dtype: Any) -> Reference:
    """The one of this process."""
    checkpoint = open_checkpoint(DEMO)
    config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    return Reference(config, checkpoint.text_weights(), kv_dtype)


def refer(job: tuple[Any, np.ndarray, int, list[tuple[np.ndarray, np.ndarray]]],
          ) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """A dialogue in float64, by the pages of another model: logits, experts, errors of rows."""
    kv_dtype, ids, start, pages = job
    exact = reference(kv_dtype)
    exact.page_errors = []
    found = [exact.run(step, pages) for step in batches(ids, start)]
    return [logits for logits, _ in found], [experts for _, experts in found], np.concatenate(
        exact.page_errors)


def compare(kv_dtype: Any, records: Records, own_pages: bool, num_processes: int = 1) -> bool:
    """Run both, print and record; whether all limits hold. The CPU's part takes the longest."""
    checkpoint = open_checkpoint(DEMO)
    config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    weights = checkpoint.text_weights()
    ours = Device(config, weights, kv_dtype)
    asked, jobs, found, experts = dialogues(), [], [], []
    for ids, start in asked:
        for step in batches(ids, start):
            logits, chosen = ours.run(step)
            found.append(logits)
            experts.append(chosen)
        used = -(-ids.size // PAGE)
        jobs.append((kv_dtype, ids, start, [          # float32 holds what pages hold
            tuple(pages[:used].astype(np.float32) for pages in pair) for pair in ours.pages()]))
    if num_processes == 1:
        answers = [refer(job) for job in jobs]
    else:
        with ProcessPoolExecutor(num_processes, get_context('spawn')) as pool:
            answers = list(pool.map(refer, jobs))
    logits = np.concatenate(found)
    right = np.concatenate([rows for all_rows, *_ in answers for rows in all_rows])
    theirs = [chosen for _, all_chosen, _ in answers for chosen in all_chosen]
    same = np.concatenate([(a == b).all(axis=(0, 2))
                           for a, b in zip(experts, theirs, strict=True)])
    verdict = judge(logits, right, same, np.concatenate([errors for *_, errors in answers]))
    record(verdict, kv_dtype, records, 'float64 on the CPU, the same pages')
    if own_pages:
        others = {'float64 on the CPU, its own pages': (np.float64, 'none', kv_dtype),
                  'float64 on the CPU, pages not rounded': (np.float64, 'none', None),
                  'the CPU with the same roundings': (np.float32, 'device', kv_dtype)}
        for name, (dtype, rounding, kind) in others.items():
            model = Gemma4(config, weights, dtype, rounding, kv_dtype=kind)
            cache = model.new_kv_cache(*SIZES)
            expected = np.concatenate([model.forward(step, cache) for ids, start in asked
                                       for step in batches(ids, start)])
            every = np.ones(expected.shape[0], np.bool_)
            record(judge(logits, expected, every, np.zeros(1)), kv_dtype, records, name)
    return verdict.holds(kv_dtype)


def record(verdict: Verdict, kv_dtype: str, records: Records, against: str) -> None:
    """Record and print a comparison."""
    context = {'model': 'demo', 'kv': kv_dtype, 'rows': int(verdict.errors.size), 'path': 'model',
               'against': against}
    records.add('op_error', verdict.errors.tolist(), 'relative 2-norm', **context, op='logits')
    records.add('top1_differs', [verdict.differs], 'of the rows', **context,
                unexcused=verdict.beyond, with_other_experts=verdict.tied_beyond)
    line = (f'{kv_dtype} against {against}: error median {np.median(verdict.errors):.2e}, 99 % '
            f'{np.quantile(verdict.errors, 0.99):.2e}, largest {verdict.errors.max():.2e}; first '
            f'choice differs in {verdict.differs:.2%} of {verdict.errors.size} rows, '
            f'{verdict.beyond} beyond the margin')
    if verdict.page_most:
        records.add('op_error', [verdict.page_median, verdict.page_most], 'relative 2-norm',
                    **context, op='rows of K and V, median and 99 %')
        records.add('other_experts', [verdict.tied], 'of the rows', **context)
        line += (f'; other experts in {verdict.tied:.2%}, {verdict.tied_beyond} beyond; rows of K '
                 f'and V {verdict.page_median:.2e}, 99 % {verdict.page_most:.2e}: '
                 f'{"good" if verdict.holds(kv_dtype) else "WRONG"}')
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--receipt', type=Path, help='write the records here')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--own-pages', action='store_true', help='for information, see above')
    arguments = parser.parse_args()
    reason = device.find()
    if reason:
        print(f'this needs a CUDA device, but {reason}')
        return 2
    records = Records(arguments.receipt, card=device.info().name, driver=driver_version(),
                      commit=arguments.commit,
                      command='python bench/device_errors.py ' + ' '.join(sys.argv[1:]))
    results = [compare(kv_dtype, records, arguments.own_pages, min(8, os.cpu_count() or 1))
               for kv_dtype in ('bf16', 'fp8')]
    return 0 if all(results) else 1


if __name__ == '__main__':
    sys.exit(main())
