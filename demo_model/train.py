# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Train the demo model on one GPU in one command, evaluate it and export it as a bf16 checkpoint.

    python -m demo_model.train --seconds 400 --workers 12 --out OUT

The rate follows the clock, so the run ends in time on any card; the data's order follows the seed.
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
import torch

from demo_model.batches import LENGTHS, NUM_TOKENS, BatchStream
from demo_model.cases import Case, free_cases, generated_cases, table
from demo_model.encode import Encoder
from demo_model.export import export
from demo_model.network import DemoConfig, DemoModel

_STOPS = (1, 106, 50)


def say(line: str) -> None:
    """A line of the run's log, at once."""
    sys.stdout.write(line + '\n')
    sys.stdout.flush()


def _groups(model: DemoModel, decay: float) -> list[dict[str, Any]]:
    matrices = [
        p for name, p in model.parameters_by_name.items() if p.ndim >= 2 and name != 'embed_tokens'
    ]
    rest = [
        p for name, p in model.parameters_by_name.items() if p.ndim < 2 or name == 'embed_tokens'
    ]
    return [{'params': matrices, 'weight_decay': decay}, {'params': rest, 'weight_decay': 0.0}]


def train(
    model: DemoModel,
    stream: BatchStream,
    device: torch.device,
    seconds: float,
    rate: float,
    steps: int = 0,
    warm_up: int = 150,
    learn_rows: int = 14336,
) -> list[dict[str, float]]:
    """Train until the time (or the step count) is used up; gives the log."""
    optimizer = torch.optim.AdamW(
        _groups(model, 0.05), lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=device.type == 'cuda'
    )
    log: list[dict[str, float]] = []
    begin = time.monotonic()
    started = 0.0
    step = 0
    losses: list[torch.Tensor] = []
    while True:
        ids, targets = stream.next()
        now = time.monotonic()
        progress = step / steps if steps else (now - begin) / seconds
        if progress >= 1:
            break
        factor = min(1.0, (step + 1) / warm_up) * (
            0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress))
        )
        for group in optimizer.param_groups:
            group['lr'] = rate * factor
        wanted = np.flatnonzero(targets.reshape(-1) != -100)[:learn_rows]
        rows = np.zeros(learn_rows, dtype=np.int64)
        rows[: len(wanted)] = wanted
        goals = np.full(learn_rows, -100, dtype=np.int64)
        goals[: len(wanted)] = targets.reshape(-1)[wanted]
        hidden, balance = model(torch.from_numpy(ids).to(device, non_blocking=True))
        loss = model.loss(
            hidden[torch.from_numpy(rows).to(device)], torch.from_numpy(goals).to(device)
        )
        (loss + 0.01 * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        step += 1
        if step == 30:
            if device.type == 'cuda':
                torch.cuda.synchronize()
            started = time.monotonic()
        if step % 100 == 0 or (steps and step % 10 == 0):
            mean = torch.stack(losses).mean().item()
            losses.clear()
            passed = time.monotonic() - begin
            speed = (
                ids.size * (step - 30) / max(time.monotonic() - started, 1e-9) if started else 0.0
            )
            log.append(
                {
                    'step': step,
                    'loss': round(mean, 5),
                    'balance': round(balance.item(), 4),
                    'seconds': round(passed, 1),
                    'tokens_per_s': round(speed),
                }
            )
            say(json.dumps(log[-1]))
    return log


@torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
def greedy(
    model: DemoModel,
    encoder: Encoder,
    cases: list[Case],
    device: torch.device,
    max_new: int = 96,
    num_tokens: int = NUM_TOKENS,
) -> list[str]:
    """Greedy answers as text with markers, for all cases."""
    prompts = [encoder.prompt(list(case.messages), list(case.tools)) for case in cases]
    texts = [''] * len(cases)
    order = sorted(range(len(cases)), key=lambda index: len(prompts[index]))
    while order:
        length = next(size for size in LENGTHS if size >= len(prompts[order[0]]) + max_new)
        rows = max(1, num_tokens // length)
        batch = [index for index in order[:rows] if len(prompts[index]) + max_new <= length]
        order = order[len(batch) :]
        ids = torch.zeros((rows, length), dtype=torch.long, device=device)
        ends = torch.ones(rows, dtype=torch.long, device=device)
        for row, index in enumerate(batch):
            ids[row, : len(prompts[index])] = torch.tensor(prompts[index])
            ends[row] = len(prompts[index])
        done = torch.zeros(rows, dtype=torch.bool, device=device)
        done[len(batch) :] = True
        at = torch.arange(rows, device=device)
        begins = ends.clone()
        for _ in range(max_new):
            hidden, _ = model(ids)
            token = model.logits(hidden[at * length + ends - 1]).argmax(-1)
            ids[at[~done], ends[~done]] = token[~done]
            ends = ends + (~done).long()
            done = done | torch.isin(token, torch.tensor(_STOPS, device=device))
            if bool(done.all()):
                break
        for row, index in enumerate(batch):
            texts[index] = encoder.tokenizer.decode(ids[row, begins[row] : ends[row]].tolist())
    return texts


def evaluate(
    model: DemoModel, device: torch.device, count: int, num_tokens: int = NUM_TOKENS
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Tables by set and up to 120 wrong answers."""
    encoder = Encoder()
    results: dict[str, Any] = {}
    wrong: list[dict[str, str]] = []
    sets = {
        'held out, demo tools': generated_cases(count, 11),
        'training phrasings, demo tools': generated_cases(count // 2, 12, held=False),
        'held out, all tools': generated_cases(count // 2, 13, demo=False),
        'by hand': free_cases(),
    }
    for name, cases in sets.items():
        if name == 'by hand':
            cases = cases[: max(count, 8)]
        texts = greedy(model, encoder, cases, device, num_tokens=num_tokens)
        results[name] = table(cases, texts)
        misses = [
            {
                'set': name,
                'category': case.category,
                'user': str(case.messages[-1]['content']),
                'expected': case.expected,
                'got': text,
            }
            for case, text in zip(cases, texts, strict=True)
            if not case.is_right(text)
        ]
        wrong += misses[:60]
    return results, wrong


def main() -> None:
    """Train, evaluate, export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--seconds', type=float, default=400.0)
    parser.add_argument('--steps', type=int, default=0, help='train for a number of steps instead')
    parser.add_argument('--rate', type=float, default=2e-3)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--workers', type=int, default=12)
    parser.add_argument('--tokens', type=int, default=NUM_TOKENS, help='tokens a step')
    parser.add_argument('--cases', type=int, default=1200)
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--no-compile', action='store_true')
    parser.add_argument('--out', type=Path, required=True)
    args = parser.parse_args()
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    begin = time.monotonic()
    stream = BatchStream(
        args.seed,
        args.workers,
        num_tokens=args.tokens,
        chunk=1000 if args.tokens == NUM_TOKENS else 50,
    )
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision('high')
    model = DemoModel(
        DemoConfig(), args.seed, torch.bfloat16 if device.type == 'cuda' else torch.float32
    ).to(device)
    if not args.no_compile:
        model.compile_pieces()
    say(f'{sum(p.numel() for p in model.parameters()):,} parameters')
    learn_rows = args.tokens * 4 // 15
    log = train(
        model,
        stream,
        device,
        args.seconds,
        args.rate,
        args.steps,
        learn_rows=learn_rows,
        warm_up=150 if not args.steps else 5,
    )
    dialogues = stream.dialogues
    stream.stop()
    say(f'trained {time.monotonic() - begin:.0f} s, {dialogues} dialogues made')
    args.out.mkdir(parents=True, exist_ok=True)
    export(model, args.out / 'bf16')
    say(f'exported {time.monotonic() - begin:.0f} s')
    results, wrong = evaluate(model, device, args.cases, args.tokens)
    record = {
        'results': results,
        'wrong': wrong,
        'log': log,
        'dialogues': dialogues,
        'seconds': round(time.monotonic() - begin, 1),
        'arguments': {key: str(value) for key, value in vars(args).items()},
    }
    (args.out / 'train_log.json').write_text(
        json.dumps(record, indent=1, ensure_ascii=False), encoding='utf-8'
    )
    for row in wrong[:40]:
        say(
            f'{row["category"]} | {row["user"][:150]} | {row["got"][:150]} | expected {row["expected"][:150]}'
        )
    for name, rows in results.items():
        say(f'{name} {json.dumps(rows)}')
    say(f'done {time.monotonic() - begin:.0f} s')


if __name__ == '__main__':
    main()
