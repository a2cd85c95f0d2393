# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo model's own drafters on the CUDA device, through loader and engine.

    python bench/device_drafts.py [--receipt FILE] [--commit HASH] [--device cuda] [--cases 24]

Dialogues of the evaluation, at temperatures 0 and 1, two at a time: every answer must be that of
the engine without drafts, token for token. Records tokens_per_round, and tokens a second of an
answer alone, with and without drafts.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from demo_model.encode import Encoder
from gemma_thor_ros.cli.bench_records import Records, driver_version
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.demo.evaluation.cases import load_cases
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.ops import device
from gemma_thor_ros.schema import Request, SamplingParams, TokenEvent

KINDS = ('none', 'dflash', 'mtp')
LONGEST, MAX_TOKENS, TIMEOUT_S = 400, 64, 300.0


def prompts(count: int) -> list[tuple[int, ...]]:
    """Token ids of prompts that ask for calls."""
    encoder = Encoder()
    rows = load_cases()
    wanted = [case for cases in zip(*(rows[name] for name in ('known', 'two_calls', 'by_hand')),
                                    strict=False) for case in cases if not case.thinking]
    found = [tuple(encoder.prompt(list(case.messages), list(case.tools))) for case in wanted]
    return [ids for ids in found if len(ids) <= LONGEST][:count]


def answer(engine: Any, requests: list[Request]) -> tuple[list[tuple[int, ...]], list[Any], float]:
    """Run requests together: their tokens, their usages and the seconds."""
    started = time.perf_counter()
    outboxes = [engine.submit(request) for request in requests]
    tokens, usages = [], []
    for outbox in outboxes:
        *events, end = outbox.events(TIMEOUT_S)
        tokens.append(tuple(token for event in events if isinstance(event, TokenEvent)
                            for token in event.token_ids))
        usages.append(end.usage)
    return tokens, usages, time.perf_counter() - started


def measure(kind: str, where: str, asked: list[tuple[int, ...]], records: Records,
            plain: dict[float, list[tuple[int, ...]]]) -> bool:
    """One drafter over all prompts; whether the answers are the plain ones. `none` fills these."""
    runtime = Runtime(EngineConfig.from_mapping({
        'engine.device': where, 'speculation.drafter': kind, 'engine.context_length': 1024}))
    runtime.start()
    if not runtime.wait_ready(TIMEOUT_S):
        raise RuntimeError(runtime.error)
    engine: Any = runtime.engine
    good = True
    for temperature in (0.0, 1.0):
        sampling = SamplingParams(temperature=temperature, max_tokens=MAX_TOKENS, seed=3)
        requests = [Request(f'{kind}-{temperature}-{index}', ids, sampling)
                    for index, ids in enumerate(asked)]
        found: list[tuple[int, ...]] = []
        rounds = accepted = 0
        for start in range(0, len(requests), 2):
            tokens, usages, _ = answer(engine, requests[start:start + 2])
            found += tokens
            rounds += sum(usage.rounds for usage in usages)
            accepted += sum(usage.accepted_tokens for usage in usages)
        same = plain.setdefault(temperature, found) == found
        good &= same
        rates = []
        for ids in asked[:4]:
            tokens, _, seconds = answer(engine, [Request(
                f'{kind}-{temperature}-alone-{len(rates)}', ids, sampling)])
            rates.append(len(tokens[0]) / seconds)
        context = {'model': 'demo', 'drafter': kind, 'temperature': temperature, 'path': 'engine',
                   'device': where, 'answers': len(asked)}
        per_round = accepted / rounds + 1 if rounds else 1.0
        records.add('tokens_equal', [float(same)], '1 = equal', **context,
                    compared_with='no drafter')
        records.add('tokens_per_round', [per_round], 'tokens', **context, rounds=rounds)
        records.add('answer_tok_s', rates, 'tok/s', **context, sequences=1)
        stats = engine.stats()
        print(f'{kind:6} temperature {temperature:g}: answers {"equal" if same else "DIFFER"}, '
              f'{per_round:.2f} tokens a round in {rounds} rounds, {np.median(rates):.0f} tok/s '
              f'alone, prompt included; {stats.draft_failure or "no failure"}', flush=True)
        good &= not stats.draft_failure
    runtime.stop()
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--receipt', type=Path)
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    parser.add_argument('--cases', type=int, default=24, help='dialogues (default: %(default)s)')
    arguments = parser.parse_args()
    card = device.info().name if arguments.device == 'cuda' else 'cpu'
    records = Records(arguments.receipt, card=card, driver=driver_version(),
                      commit=arguments.commit, command=' '.join(sys.argv))
    asked = prompts(arguments.cases)
    plain: dict[float, list[tuple[int, ...]]] = {}
    good = [measure(kind, arguments.device, asked, records, plain) for kind in KINDS]
    return 0 if all(good) else 1


if __name__ == '__main__':
    sys.exit(main())
