# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
r"""Train one of the demo model's drafters, measure its acceptance and export it, in one command.

    python -m demo_model.train_drafters dflash --base BASE --out OUT        (a GPU; under 9 minutes)
    python -m demo_model.train_drafters mtp --base BASE --out OUT
    python -m demo_model.train_drafters dflash --from OLD --base BASE --out OUT   (OLD trained on)
    python -m demo_model.train_drafters dflash --out OUT --device cpu --threads 1 --workers 1 \
        --tokens 2240 --seconds 1000 --cases 40

The drafter learns from the base model's own greedy answers (drafters_data.py), which are made while
it trains; the rate follows the clock. Prints acceptance (drafters_measure.py) as a table and as
JSON; OUT gets the checkpoint, log.json and receipt.json.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from demo_model.batches import NUM_TOKENS, BatchStream
from demo_model.drafters import DFlash, DFlashConfig, Mtp, MtpConfig
from demo_model.drafters_data import Base, Seen, Teacher, layers_for_mtp, scaled_rows
from demo_model.drafters_export import export_dflash, export_mtp
from demo_model.drafters_measure import begin_cases, evaluate, greedy_answers, show
from demo_model.network import DemoConfig
from demo_model.receipt import write_drafts_receipt

BASE_FOLDER = Path(__file__).parent.parent / 'gemma_thor_ros' / 'demo' / 'model'
WARM_UP = 100                            # steps
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


def wanted(seen: Seen, anchors: Tensor, steps: int) -> Tensor:
    """The base's tokens after each anchor (G, A, steps); -100 past what is known of them."""
    groups, count = anchors.shape
    after = anchors[..., None] + torch.arange(steps, device=anchors.device)
    ends = seen.ends.gather(1, anchors)[..., None]
    inside = after.clamp(max=seen.ids.shape[1] - 1)
    tokens = seen.chosen.gather(1, inside.flatten(1)).view(groups, count, steps)
    return torch.where(after < ends, tokens, -100)


def loss_of(
    drafter: Drafter, base: Base, seen: Seen, anchors: Tensor, weights: Tensor, call_weight: float
) -> Tensor:
    """Cross entropy weighted by draft position (`weights`) and by whether the anchor is in a call."""
    steps = len(weights)
    logits = draft_all(drafter, base, seen.hidden, seen.ids, anchors, steps, True)
    targets = wanted(seen, anchors, steps)
    each = functional.cross_entropy(
        logits.flatten(0, 2), targets.flatten(), ignore_index=-100, reduction='none'
    ).view(targets.shape)
    calls = 1 + (call_weight - 1) * seen.in_call.gather(1, anchors)[..., None]
    share = weights * calls * (targets != -100)
    return (each * share).sum() / share.sum().clamp(min=1e-6)


def train(
    drafter: Drafter, base: Base, teacher: Teacher, until: float, args: argparse.Namespace
) -> list[dict[str, float]]:
    """Train up to a moment of the monotonic clock; leaves averaged weights and gives the log."""
    device = base.device
    steps = drafter.config.block_size - 1 if isinstance(drafter, DFlash) else args.mtp_steps
    weights = torch.exp(-torch.arange(steps, device=device) / args.decay)
    optimizer = torch.optim.AdamW(
        [
            {'params': [p for p in drafter.parameters() if p.ndim > 1], 'weight_decay': 0.05},
            {'params': [p for p in drafter.parameters() if p.ndim == 1], 'weight_decay': 0.0},
        ],
        lr=args.rate,
        betas=(0.9, 0.95),
        fused=device.type == 'cuda',
    )
    live = [p.data for p in drafter.parameters()]
    average: list[Tensor] = []
    log: list[dict[str, float]] = []
    losses: list[Tensor] = []
    begin = mark = time.monotonic()
    step = 0
    while (progress := (time.monotonic() - begin) / (until - begin)) < 1:
        seen, anchors = teacher.next()
        factor = min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.49 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group['lr'] = args.rate * factor
        with torch.autocast(device.type, torch.bfloat16, enabled=isinstance(drafter, Mtp)):
            loss = loss_of(drafter, base, seen, anchors, weights, args.call_weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if progress >= 0.7 and not average:
            average = [value.clone() for value in live]
        elif average:
            torch._foreach_lerp_(average, live, 1 - args.average)
        losses.append(loss.detach())
        step += 1
        if step % args.log_every == 0:
            mean = torch.stack(losses).mean().item()
            losses.clear()
            if not math.isfinite(mean):
                raise SystemExit(f'the loss is {mean} at step {step}')
            now = time.monotonic()
            log.append(
                {
                    'step': step,
                    'loss': round(mean, 4),
                    'seconds': round(now - begin, 1),
                    'step_ms': round((now - mark) * 1e3 / args.log_every, 1),
                    'batches': teacher.batches,
                }
            )
            mark = now
            say(json.dumps(log[-1]))
    for value, kept in zip(live, average, strict=False):
        value.copy_(kept)
    return log


def make_drafter(kind: str, config: DemoConfig, args: argparse.Namespace) -> Drafter:
    """A drafter that fits a base model, with random weights."""
    if kind == 'dflash':
        return DFlash(
            replace(
                DFlashConfig(),
                hidden_size=config.hidden_size,
                block_size=args.block,
                num_hidden_layers=args.layers,
                num_sliding_layers=args.sliding,
                intermediate_size=args.inner,
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
    parser.add_argument('--workers', type=int, default=12, help='processes that make dialogues')
    parser.add_argument('--tokens', type=int, default=NUM_TOKENS, help='of a batch')
    parser.add_argument('--kept', type=int, default=160, help='batches on the device')
    parser.add_argument('--spacing', type=int, default=16, help='tokens for each anchor of a step')
    parser.add_argument('--draws', type=int, default=2, help='steps for each new batch')
    parser.add_argument(
        '--compile', action=argparse.BooleanOptionalAction, help='what sees flat rows (on CUDA)'
    )
    parser.add_argument('--evaluate-only', action='store_true', help='of what lies in OUT')
    parser.add_argument('--from', dest='start', type=Path, help='begin with this drafter (a folder)')
    parser.add_argument('--seconds', type=float, default=385.0, help='until training ends')
    parser.add_argument('--rate', type=float, default=2e-3)
    parser.add_argument('--decay', type=float, default=5.0, help='of the loss by draft position')
    parser.add_argument('--call-weight', type=float, default=2.0, help='of an anchor in a call')
    parser.add_argument('--average', type=float, default=0.998, help='of the weights, at the end')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--cases', type=int, default=200, help='held-out dialogues of a set')
    parser.add_argument('--log-every', type=int, default=100)
    parser.add_argument('--block', type=int, default=8, help='DFlash: rows of a block')
    parser.add_argument('--layers', type=int, default=4, help='DFlash: draft layers')
    parser.add_argument('--sliding', type=int, default=2, help='DFlash: sliding ones, the first')
    parser.add_argument('--inner', type=int, default=128, help='DFlash: width of the MLP')
    parser.add_argument('--taps', type=int, nargs='+', default=[0, 1, 3, 5])
    parser.add_argument('--mtp-steps', type=int, default=3, help='drafts of a round')
    return parser.parse_args()


def main() -> None:
    """Train, export, evaluate."""
    args = _arguments()
    begin = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    # processes first: they are forked, and a CUDA context can not be
    pool = multiprocessing.get_context('fork').Pool(min(4, args.workers))
    cases = begin_cases(pool, 31, args.cases)
    stream = None
    if not args.evaluate_only:
        chunk = 250 if args.tokens == NUM_TOKENS else 50
        stream = BatchStream(args.seed, args.workers, chunk=chunk, num_tokens=args.tokens)
    try:
        record = _run(args, begin, stream, cases)
    finally:
        if stream:
            stream.stop()
        pool.terminate()
    record['seconds'] = round(time.monotonic() - begin, 1)
    record['arguments'] = {key: str(value) for key, value in vars(args).items()}
    name = 'evaluation.json' if args.evaluate_only else 'log.json'
    (args.out / name).write_text(json.dumps(record, indent=1), encoding='utf-8')
    command = 'python -m demo_model.train_drafters ' + ' '.join(sys.argv[1:])
    write_drafts_receipt(
        args.out / 'receipt.json', args.kind, record, command, torch.device(args.device)
    )
    say(json.dumps(record['results']))


def _run(
    args: argparse.Namespace, begin: float, stream: BatchStream | None, cases: dict[str, Any]
) -> dict[str, Any]:
    device = torch.device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision('high')
    if device.type == 'cuda':
        torch.backends.cuda.enable_cudnn_sdp(False)   # it plans anew for each shape, 0.1 s each
    low = torch.bfloat16 if device.type == 'cuda' else torch.float32
    known = args.out if args.evaluate_only else args.start
    if known and args.kind == 'dflash':
        _sizes_of(known, args)
    layers = tuple(args.taps) if args.kind == 'dflash' else layers_for_mtp(DemoConfig())
    base = Base(args.base, layers, device, low)
    drafter = make_drafter(args.kind, base.config, args).to(device)
    say(f'{args.kind}: {sum(p.numel() for p in drafter.parameters()):,} parameters')
    record: dict[str, Any] = {}
    if stream:
        if args.start:
            _load(drafter, args.start)
        drafter.low = low
        if device.type == 'cuda' if args.compile is None else args.compile:
            base.model.compile_pieces()
            if isinstance(drafter, DFlash):
                drafter.compile_pieces()
        teacher = Teacher(base, stream, args.kept, args.spacing, args.draws)
        record['log'] = train(drafter, base, teacher, begin + args.seconds, args)
        record |= {
            'parameters': sum(p.numel() for p in drafter.parameters()),
            'dialogues': stream.dialogues,
            'tokens': teacher.tokens,
            'trained_s': round(time.monotonic() - begin, 1),
        }
        stream.stop()
        (export_dflash if isinstance(drafter, DFlash) else export_mtp)(
            drafter, base.config, args.out
        )
        base = Base(args.base, layers, device)       # in float32, as served
        drafter = make_drafter(args.kind, base.config, args).to(device)
    _load(drafter, args.out)             # what is measured is what is shipped
    drafter.eval()
    steps = drafter.config.block_size - 1 if isinstance(drafter, DFlash) else args.mtp_steps
    answers = {
        name: greedy_answers(
            base, [case for part in drawn.get() for case in part], args.tokens
        )
        for name, drawn in cases.items()
    }
    say(f'answers for the evaluation after {time.monotonic() - begin:.0f} s')

    def draft(hidden: Tensor, ids: Tensor, anchors: Tensor) -> Tensor:
        return draft_all(drafter, base, hidden, ids, anchors, steps, False).argmax(-1)

    record['results'] = evaluate(base, draft, answers, steps, args.tokens // 2)
    say(show(record['results']))
    return record


def _sizes_of(folder: Path, args: argparse.Namespace) -> None:
    """Take a DFlash checkpoint's sizes for those of the command line."""
    config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    args.taps = config['dflash_config']['target_layer_ids']
    args.layers = config['num_hidden_layers']
    args.sliding = config['layer_types'].count('sliding_attention')
    args.inner = config['intermediate_size']
    args.block = config['block_size']


@torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
def _load(drafter: Drafter, folder: Path) -> None:
    """Take the exported bf16 weights in."""
    weights = load_file(str(folder / 'model.safetensors'))
    for name, parameter in drafter.parameters_by_name.items():
        parameter.data.copy_(weights[name].float())


if __name__ == '__main__':
    main()
