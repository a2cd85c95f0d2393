# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Train, quantise, export and evaluate the demo model in one command that ends itself in time.

    python -m demo_model.train --total 530 --workers 14 --out OUT

The rate follows the clock, so the run ends in time on any card; the data's order follows the seed.
OUT gets bf16/, nvfp4/, receipt.json, loss.json and wrong.json; the files are written before the
evaluation, which stops when the time is over.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from demo_model.batches import NUM_TOKENS, BatchStream
from demo_model.export import export, load_weights
from demo_model.fake_nvfp4 import FakeNvfp4
from demo_model.judging import evaluate
from demo_model.network import DemoConfig, DemoModel
from demo_model.receipt import write_receipt
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.convert import quantize_checkpoint
from gemma_thor_ros.weights.quantize import Convention

RESERVE_S = 110.0                        # export, compiling for evaluation, and evaluation
ROUND_FROM = 0.7                         # share of the training after which weights are rounded
CALL_WEIGHT = 2.0                        # of a token inside a call, against 1 of a word
EMA_DECAY = 0.998
_CALL, _CALL_END = 48, 49
Log = list[dict[str, float]]


def say(line: str) -> None:
    """A line of the run's log, at once."""
    sys.stdout.write(line + '\n')
    sys.stdout.flush()


def _groups(model: DemoModel, decay: float) -> list[dict[str, Any]]:
    named = model.parameters_by_name.items()
    matrices = [p for name, p in named if p.ndim >= 2 and name != 'embed_tokens']
    rest = [p for name, p in named if p.ndim < 2 or name == 'embed_tokens']
    return [{'params': matrices, 'weight_decay': decay}, {'params': rest, 'weight_decay': 0.0}]


class Average:
    """An exponential moving average of the parameters, begun at the first update."""

    def __init__(self, model: DemoModel, decay: float) -> None:
        self._live = [p.data for p in model.parameters_by_name.values()]
        self._kept: list[Tensor] = []
        self._decay = decay

    def update(self) -> None:
        """Move towards the parameters by 1 - decay."""
        if self._kept:
            torch._foreach_lerp_(self._kept, self._live, 1 - self._decay)
        else:
            self._kept = [value.clone() for value in self._live]

    def into_model(self) -> None:
        """Replace the parameters by the average."""
        for live, kept in zip(self._live, self._kept, strict=True):
            live.copy_(kept)


def chosen_rows(
    ids: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], limit: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Flat positions to learn, their targets and weights; `limit` of each, padded with -100 and 0."""
    wanted = np.flatnonzero(targets.reshape(-1) != -100)[:limit]
    begun = np.cumsum(ids == _CALL, axis=1)
    ended = np.cumsum(ids == _CALL_END, axis=1)
    inside = (begun > ended).reshape(-1)
    rows = np.zeros(limit, dtype=np.int64)
    goals = np.full(limit, -100, dtype=np.int64)
    weights = np.zeros(limit, dtype=np.float32)
    rows[: len(wanted)] = wanted
    goals[: len(wanted)] = targets.reshape(-1)[wanted]
    weights[: len(wanted)] = np.where(inside[wanted], CALL_WEIGHT, 1.0)
    return rows, goals, weights


def train(
    model: DemoModel,
    stream: BatchStream,
    device: torch.device,
    until: float,
    rate: float,
    steps: int = 0,
    warm_up: int = 150,
    learn_rows: int = NUM_TOKENS * 4 // 15,
) -> Log:
    """Train up to a moment of the monotonic clock (or a step count); leaves the averaged weights."""
    optimizer = torch.optim.AdamW(
        _groups(model, 0.05), lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=device.type == 'cuda'
    )
    rounding = FakeNvfp4(model.parameters_by_name)
    # a short run ends before a long average would forget where it began
    average = Average(model, min(EMA_DECAY, 1 - 10 / steps) if steps > 10 else EMA_DECAY)
    log: Log = []
    losses: list[Tensor] = []
    begin = time.monotonic()
    mark = (begin, 0)
    step = 0
    while True:
        ids, targets = stream.next()
        now = time.monotonic()
        progress = step / steps if steps else (now - begin) / (until - begin)
        if progress >= 1:
            break
        cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group['lr'] = rate * cosine * min(1.0, (step + 1) / warm_up)
        rounded = progress >= ROUND_FROM
        rows, goals, weights = (
            torch.from_numpy(array).to(device, non_blocking=True)
            for array in chosen_rows(ids, targets, learn_rows)
        )
        model.weights = rounding.weights(model.parameters_by_name, rounded)
        hidden, balance = model(torch.from_numpy(ids).to(device, non_blocking=True))
        weighted, loss = model.loss(hidden[rows], goals, weights)
        (weighted + 0.01 * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if progress >= 0.3:
            average.update()
        losses.append(loss)
        step += 1
        if step % (10 if steps else 100) == 0:
            mean = torch.stack(losses).mean().item()
            losses.clear()
            if not math.isfinite(mean):
                raise SystemExit(f'the loss is {mean} at step {step}')
            now = time.monotonic()
            speed = ids.size * (step - mark[1]) / (now - mark[0])
            mark = (now, step)
            log.append(
                {
                    'step': step,
                    'loss': round(mean, 5),
                    'balance': round(balance.item(), 4),
                    'seconds': round(now - begin, 1),
                    'tokens_per_s': round(speed),
                    'rounded': float(rounded),
                }
            )
            say(json.dumps(log[-1]))
    average.into_model()
    model.weights = model.parameters_by_name
    return log


def main() -> None:
    """Train, export, quantise, evaluate, write the receipt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--total', type=float, default=530.0, help='seconds for everything')
    parser.add_argument('--steps', type=int, default=0, help='train for a number of steps instead')
    parser.add_argument('--rate', type=float, default=2e-3)
    parser.add_argument('--seed', type=int, default=2)
    parser.add_argument('--workers', type=int, default=14)
    parser.add_argument('--tokens', type=int, default=NUM_TOKENS, help='tokens a step')
    parser.add_argument('--cases', type=int, default=120, help='dialogues a row')
    parser.add_argument(
        '--demo-share', type=float, default=0.0, help="more dialogues with the demo robot's tools"
    )
    parser.add_argument('--from', dest='start', type=Path, help='go on from this checkpoint')
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--no-compile', action='store_true')
    parser.add_argument('--out', type=Path, required=True)
    args = parser.parse_args()
    begin = time.monotonic()
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    args.out.mkdir(parents=True, exist_ok=True)
    whole = args.tokens == NUM_TOKENS
    stream = BatchStream(
        args.seed,
        args.workers,
        num_tokens=args.tokens,
        chunk=1000 if whole else 50,
        demo_share=args.demo_share,
    )
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision('high')
    low = torch.bfloat16 if device.type == 'cuda' else torch.float32
    model = DemoModel(DemoConfig(), args.seed, low)
    if args.start:
        load_weights(model, args.start)
    model.to(device)
    if not args.no_compile:
        model.compile_pieces()
    say(f'{sum(p.numel() for p in model.parameters()):,} parameters')
    try:
        log = train(
            model,
            stream,
            device,
            begin + args.total - RESERVE_S,
            args.rate,
            args.steps,
            learn_rows=args.tokens * 4 // 15,
            warm_up=5 if args.steps else 150,
        )
        dialogues = stream.dialogues
    finally:
        stream.stop()
    say(f'trained {time.monotonic() - begin:.0f} s, {dialogues} dialogues made')
    (args.out / 'loss.json').write_text(json.dumps(log), encoding='utf-8')
    export(model, args.out / 'bf16')
    quantize_checkpoint(
        open_checkpoint(args.out / 'bf16'),
        args.out / 'nvfp4',
        Convention.COMPRESSED_TENSORS,
        force=True,
    )
    say(f'exported {time.monotonic() - begin:.0f} s')
    end = begin + args.total - 15
    middle = (time.monotonic() + end) / 2
    results: dict[str, Any] = {}
    wrong: list[dict[str, str]] = []
    for kind, deadline in (('nvfp4', middle), ('bf16', end)):
        load_weights(model, args.out / kind)
        results[kind], missed = evaluate(model, device, args.cases, deadline, args.tokens)
        wrong = wrong or missed
        say(f'{kind} {json.dumps(results[kind])}')
        command = 'python -m demo_model.train ' + ' '.join(sys.argv[1:])
        seconds = time.monotonic() - begin
        write_receipt(args.out / 'receipt.json', log, results, dialogues, seconds, command, device)
    (args.out / 'wrong.json').write_text(
        json.dumps(wrong, indent=1, ensure_ascii=False), encoding='utf-8'
    )
    say(f'done {time.monotonic() - begin:.0f} s')


if __name__ == '__main__':
    main()
