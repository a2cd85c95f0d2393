# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
r"""Train one of the demo model's drafters, measure its acceptance and export it, in one command.

    python -m demo_model.train_drafters dflash --out OUT        (a GPU; under 9 minutes)
    python -m demo_model.train_drafters mtp --out OUT
    python -m demo_model.train_drafters dflash --out OUT --device cpu --threads 1 \
        --samples FILE --dialogues 4000 --longest 512 --collect-seconds 600 --seconds 1000 \
        --group 8 --anchors 24 --cases 60

The drafter learns from the base model's own greedy answers (drafters_data.py), the rate follows
the clock. Prints acceptance as a table and as JSON; OUT gets the checkpoint and log.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from demo_model.drafters import DFlash, DFlashConfig, Mtp, MtpConfig
from demo_model.drafters_data import (
    Base,
    Sample,
    collect,
    held_out,
    layers_to_keep,
    scaled_rows,
)
from demo_model.drafters_export import export_dflash, export_mtp
from demo_model.network import DemoConfig

BASE_FOLDER = Path(__file__).parent.parent / 'gemma_thor_ros' / 'demo' / 'model'
SETS = {
    'calls of known tools': (True, True),
    'calls of unseen tools': (False, True),
    'words, known tools': (True, False),
    'words, unseen tools': (False, False),
}
Drafter = DFlash | Mtp


def say(line: str) -> None:
    """A line of the run's log, at once."""
    sys.stdout.write(line + '\n')
    sys.stdout.flush()


def draft_all(
    drafter: Drafter,
    base: Base,
    hidden: Tensor,
    ids: Tensor,
    anchors: Tensor,
    steps: int,
    told: bool,
    position: int = 0,
) -> Tensor:
    """Logits (G, A, steps, V) of the tokens after each anchor.

    hidden (layers, G, L, H), ids (G, L), anchors (G, A). The assistant is fed the real tokens when
    `told` (training), else its own drafts; `position` is added to its rope position, the anchor's.
    """
    tokens = ids.gather(1, anchors)
    if isinstance(drafter, DFlash):
        taps = base.taps(hidden, drafter.config.target_layer_ids)
        table = base.table
        rows = drafter(taps, anchors, tokens, table, base.embed_scale)
        return drafter.logits(rows[:, :, :steps], table)
    shared = base.shared_kv(hidden)
    last = base.last_hidden(hidden)
    before = (anchors - 1)[..., None].expand(-1, -1, last.shape[-1])
    state = last.gather(1, before)
    logits = []
    for step in range(steps):
        rows, state = drafter(
            scaled_rows(base, tokens), state, anchors + position, anchors, shared
        )
        logits.append(drafter.logits(rows))
        after = (anchors + step + 1).clamp(max=ids.shape[1] - 1)
        tokens = ids.gather(1, after) if told else logits[-1].argmax(-1)
    return torch.stack(logits, 2)


def _batch(
    samples: list[Sample], picks: list[int], num_anchors: int, steps: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """hidden, ids, anchors and targets (G, A, steps) of some samples; -100 past a run's end."""
    chosen = [samples[index] for index in picks if bool((samples[index].run_ends > 0).any())]
    if not chosen:
        return None
    length = max(len(one.ids) for one in chosen)
    layers, _, size = chosen[0].hidden.shape
    hidden = torch.zeros((layers, len(chosen), length, size), dtype=torch.bfloat16, device=device)
    ids = torch.zeros((len(chosen), length), dtype=torch.long, device=device)
    ends = torch.zeros((len(chosen), length), dtype=torch.long, device=device)
    anchors = torch.ones((len(chosen), num_anchors), dtype=torch.long, device=device)
    for row, one in enumerate(chosen):
        hidden[:, row, : len(one.ids)] = one.hidden.to(device)
        ids[row, : len(one.ids)] = one.ids.to(device)
        ends[row, : len(one.ids)] = one.run_ends.to(device)
        places = torch.nonzero(one.run_ends)[:, 0]
        order = torch.randperm(len(places))[:num_anchors]
        anchors[row, : len(order)] = places[order.to(places.device)].to(device)
    after = anchors[..., None] + torch.arange(1, steps + 1, device=device)
    limit = ends.gather(1, anchors)[..., None]
    wanted = ids[:, None].expand(-1, num_anchors, -1).gather(2, after.clamp(max=length - 1))
    return hidden, ids, anchors, torch.where(after < limit, wanted, -100)


def train(
    drafter: Drafter, base: Base, samples: list[Sample], args: argparse.Namespace
) -> list[dict[str, float]]:
    """Train until the time is used up; gives the log."""
    device = base.device
    steps = drafter.config.block_size - 1 if isinstance(drafter, DFlash) else args.mtp_steps
    weights = torch.exp(-torch.arange(steps, device=device) / args.decay)
    matrices = [p for p in drafter.parameters() if p.ndim > 1]
    vectors = [p for p in drafter.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{'params': matrices, 'weight_decay': 0.05}, {'params': vectors, 'weight_decay': 0.0}],
        lr=args.rate,
        betas=(0.9, 0.95),
    )
    order = sorted(range(len(samples)), key=lambda index: len(samples[index].ids))
    groups = [order[at : at + args.group] for at in range(0, len(order), args.group)]
    log: list[dict[str, float]] = []
    losses: list[Tensor] = []
    begin = time.monotonic()
    step = 0
    queue: list[int] = []
    while (progress := (time.monotonic() - begin) / args.seconds) < 1:
        if not queue:
            queue = torch.randperm(len(groups)).tolist()
        batch = _batch(samples, groups[queue.pop()], args.anchors, steps, device)
        if batch is None:
            continue
        hidden, ids, anchors, targets = batch
        factor = min(1.0, (step + 1) / 40) * (0.02 + 0.49 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group['lr'] = args.rate * factor
        with torch.autocast(device.type, torch.bfloat16):
            logits = draft_all(drafter, base, hidden, ids, anchors, steps, True)
        each = functional.cross_entropy(
            logits.flatten(0, 2), targets.flatten(), ignore_index=-100, reduction='none'
        ).unflatten(0, targets.shape)
        share = weights * (targets != -100)
        loss = (each * share).sum() / share.sum().clamp(min=1e-6)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        step += 1
        if step % 50 == 0:
            mean = torch.stack(losses).mean().item()
            losses.clear()
            log.append(
                {
                    'step': step,
                    'loss': round(mean, 4),
                    'epoch': round(step / len(groups), 2),
                    'seconds': round(time.monotonic() - begin, 1),
                }
            )
            say(json.dumps(log[-1]))
    return log


@torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
def rounds_of(
    drafter: Drafter, base: Base, ids: list[int], start: int, steps: int, position: int
) -> list[int]:
    """Accepted drafts of each round when the greedy answer ids[start:] is written with drafts."""
    row = torch.tensor([ids], device=base.device)
    hidden, _ = base.run(row)
    anchors = torch.arange(start, len(ids) - 1, device=base.device)[None]
    if not anchors.numel():
        return []
    drafted = draft_all(drafter, base, hidden, row, anchors, steps, False, position).argmax(-1)
    accepted = []
    at = start
    while at < len(ids) - 1:
        told = drafted[0, at - start].tolist()
        count = 0
        while count < steps and at + count + 1 < len(ids) and told[count] == ids[at + count + 1]:
            count += 1
        accepted.append(min(count, len(ids) - 2 - at))   # the last token is the target's own
        at += accepted[-1] + 1
    return accepted


def evaluate(
    drafter: Drafter, base: Base, count: int, seed: int, steps: int, position: int = 0
) -> dict[str, Any]:
    """tokens_per_round (bonus included) and acceptance by draft position, by set."""
    drafter.eval()
    results: dict[str, Any] = {}
    for name, (demo, calls) in SETS.items():
        accepted: list[int] = []
        for ids, start in held_out(count, seed, demo, calls):
            accepted += rounds_of(
                drafter, base, base.greedy_from(ids, start), start, steps, position
            )
        reached = [sum(count >= n for count in accepted) for n in range(steps + 1)]
        results[name] = {
            'rounds': len(accepted),
            'tokens_per_round': round(1 + sum(accepted) / max(1, len(accepted)), 3),
            'kept_by_position': [
                round(reached[n + 1] / reached[n], 3) if reached[n] else 0.0 for n in range(steps)
            ],
        }
    return results


def show(results: dict[str, Any]) -> str:
    """The results as a table."""
    lines = [f'{"set":24} {"rounds":>7} {"tokens/round":>13}  kept by position, given those before']
    for name, row in results.items():
        shares = ' '.join(f'{share:.2f}' for share in row['kept_by_position'])
        lines.append(f'{name:24} {row["rounds"]:7} {row["tokens_per_round"]:13.2f}  {shares}')
    return '\n'.join(lines)


def make_drafter(kind: str, config: DemoConfig, args: argparse.Namespace) -> Drafter:
    """A drafter that fits a base model, with random weights."""
    if kind == 'dflash':
        return DFlash(
            replace(
                DFlashConfig(),
                hidden_size=config.hidden_size,
                block_size=args.block,
                num_hidden_layers=args.layers,
                target_layer_ids=tuple(args.taps),
                final_logit_softcapping=config.final_logit_softcapping,
            ),
            args.seed,
        )
    return Mtp(
        MtpConfig(
            backbone_hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            head_dim=config.head_dim,
            global_head_dim=config.global_head_dim,
            sliding_window=config.sliding_window,
            vocab_size=config.vocab_size,
        ),
        args.seed,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('kind', choices=('dflash', 'mtp'))
    parser.add_argument('--base', type=Path, default=BASE_FOLDER, help="the base model's folder")
    parser.add_argument('--out', type=Path, required=True)
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--threads', type=int, default=0)
    parser.add_argument('--dialogues', type=int, default=40_000)
    parser.add_argument('--longest', type=int, default=1024, help='tokens of a dialogue')
    parser.add_argument('--collect-seconds', type=float, default=120.0)
    parser.add_argument('--samples', type=Path, help='keep what was collected there, or read it')
    parser.add_argument('--evaluate-only', action='store_true', help='of what lies in OUT')
    parser.add_argument('--seconds', type=float, default=270.0, help='of training')
    parser.add_argument('--group', type=int, default=32, help='dialogues a step')
    parser.add_argument('--anchors', type=int, default=32, help='drafts of a dialogue and step')
    parser.add_argument('--rate', type=float, default=2e-3)
    parser.add_argument('--decay', type=float, default=5.0, help='of the loss by draft position')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--cases', type=int, default=200, help='held-out dialogues of a set')
    parser.add_argument('--block', type=int, default=8, help='DFlash: rows of a block')
    parser.add_argument('--layers', type=int, default=2, help='DFlash: draft layers')
    parser.add_argument('--taps', type=int, nargs='+', default=[1, 3, 4, 5])
    parser.add_argument('--mtp-steps', type=int, default=3, help='drafts of a round')
    return parser.parse_args()


def main() -> None:
    """Collect, train, evaluate, export."""
    args = _arguments()
    begin = time.monotonic()
    device = torch.device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    kept = layers_to_keep(DemoConfig(), tuple(args.taps))
    base = Base(args.base, kept, device)
    drafter = make_drafter(args.kind, base.config, args).to(device)
    say(f'{args.kind}: {sum(p.numel() for p in drafter.parameters()):,} parameters')
    log: list[dict[str, float]] = []
    counts: dict[str, int] = {}
    if args.evaluate_only:
        _load(drafter, args.out)
    else:
        samples = _samples(base, args, device)
        counts = {
            'dialogues': len(samples),
            'tokens': sum(len(one.ids) for one in samples),
            'greedy_tokens': sum(int((one.run_ends > 0).sum()) for one in samples),
        }
        say(json.dumps({**counts, 'seconds': round(time.monotonic() - begin)}))
        log = train(drafter, base, samples, args)
        if isinstance(drafter, DFlash):
            export_dflash(drafter, base.config, args.out)
        else:
            export_mtp(drafter, base.config, args.out)
        _load(drafter, args.out)         # what is measured is what is shipped
    steps = drafter.config.block_size - 1 if isinstance(drafter, DFlash) else args.mtp_steps
    results = evaluate(drafter, base, args.cases, 31, steps)
    if isinstance(drafter, Mtp):
        other = evaluate(drafter, base, args.cases // 2, 31, steps, -1)
        say('rope position of the last key instead of the newest token:\n' + show(other))
    say(show(results))
    record = {
        'results': results,
        **counts,
        'log': log,
        'seconds': round(time.monotonic() - begin, 1),
        'arguments': {key: str(value) for key, value in vars(args).items()},
    }
    name = 'evaluation.json' if args.evaluate_only else 'log.json'
    (args.out / name).write_text(json.dumps(record, indent=1), encoding='utf-8')
    say(json.dumps(results))


def _samples(base: Base, args: argparse.Namespace, device: torch.device) -> list[Sample]:
    """What is learnt from: collected, or read from an earlier run's file."""
    if args.samples and args.samples.exists():
        return [Sample(*parts) for parts in torch.load(args.samples, map_location=device)]
    samples = collect(base, args.dialogues, args.seed, args.longest, args.collect_seconds, device)
    if args.samples:
        torch.save([(one.ids, one.hidden, one.run_ends) for one in samples], args.samples)
    return samples


@torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
def _load(drafter: Drafter, folder: Path) -> None:
    """Take the exported bf16 weights in."""
    weights = load_file(str(folder / 'model.safetensors'))
    for name, parameter in drafter.parameters_by_name.items():
        parameter.copy_(weights[name].float())


if __name__ == '__main__':
    main()
