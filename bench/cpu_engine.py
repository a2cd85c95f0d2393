# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times the demo model through the whole engine on one core: decode rate, first token, drafts.

    python bench/cpu_engine.py [--json FILE]

From Engine.submit to the outbox, sampler, stop check and paging on. Prompts differ, so that no
prefix is shared. Then the same commands to a robot are answered without drafts and with each
drafter that lies beside the model; the answers have to be the same.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))     # demo_model/ isn't installed

from demo_model.tools import DEMO_TOOLS
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.engine import Engine
from gemma_thor_ros.load import DEMO_FOLDER, Runtime
from gemma_thor_ros.schema import (
    ChatRequest,
    ChatResult,
    Request,
    SamplingParams,
    TokenEvent,
    Usage,
)

PROMPT_TOKENS = 200
ANSWER_TOKENS = 256
FIRST_ID, NUM_IDS = 512, 3000        # ordinary tokens of the demo model's vocabulary
DRAFTERS = ('dflash', 'mtp')
COMMANDS = ('drive two metres forward', 'go to the kitchen', 'turn left by 90 degrees',
            'please drive back half a metre', 'head over to the dock', 'go to the lab',
            'hello, who are you?', 'what can you do?', 'stop now',
            'rotate 45 degrees to the right', 'move forward three and a half metres')


def main() -> int:
    parser = argparse.ArgumentParser(description='Demo model through the engine, one core.')
    parser.add_argument('--runs', type=int, default=7, help='take medians of (%(default)s)')
    parser.add_argument('--json', type=Path, help='write the records to this file too')
    options = parser.parse_args()
    runtime = load('none')
    assert runtime.engine is not None
    samples = [measure(runtime.engine, run) for run in range(options.runs)]
    runtime.stop()
    records = [record('ttft_ms', 'ms', [first * 1000.0 for first, _ in samples]),
               record('decode_tok_s', 'tok/s', [rate for _, rate in samples]),
               *compare_drafters(options.runs)]
    for entry in records:
        print(f'{entry["metric"]:<14}{entry["value"]:>8.1f} {entry["unit"]:<6} '
              f'(spread {entry["spread"][0]:.1f} to {entry["spread"][1]:.1f})')
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + '\n', encoding='utf-8')
    return 0


def load(drafter: str, num_drafts: int = -1) -> Runtime:
    """Load the demo model with a drafter or with 'none'."""
    runtime = Runtime(EngineConfig.from_mapping({
        'http.enabled': False, 'engine.threads': 1, 'speculation.drafter': drafter,
        'speculation.num_drafts': num_drafts}))
    runtime.start()
    if not runtime.wait_ready(60.0):
        raise SystemExit(runtime.error)
    return runtime


def compare_drafters(runs: int) -> list[dict[str, Any]]:
    """Answer the commands without drafts and with each drafter, in turn, run by run."""
    kinds = ['none', *(kind for kind in DRAFTERS if (DEMO_FOLDER / kind).is_dir())]
    runtimes = {kind: load(kind) for kind in kinds}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    usages = dict.fromkeys(kinds, Usage())
    for _ in range(runs):
        answers = {}
        for kind, runtime in runtimes.items():
            results, cpu_s, tokens = zip(
                *(command(runtime, text) for text in COMMANDS), strict=True)
            answers[kind] = [result.token_ids for result in results]
            if answers[kind] != answers['none']:
                raise SystemExit(f'{kind} drafts changed an answer')
            rates[kind].append(sum(tokens) / sum(cpu_s))
            usages[kind] = sum((result.usage for result in results), usages[kind])
    for runtime in runtimes.values():
        runtime.stop()
    records = []
    for kind in kinds:
        entry = record('decode_tok_s', 'tok/s', rates[kind])
        entry['context']['clock'] = 'processor'
        usage = usages[kind]
        entry['context'] |= {
            'drafter': kind, 'commands': len(COMMANDS), 'rounds': usage.rounds,
            'tokens_per_round': round(1 + usage.accepted_tokens / max(1, usage.rounds), 2),
            'accepted_by_position': list(usage.accepted_by_position),
            'times_plain': round(entry['value'] / statistics.median(rates['none']), 2)}
        records.append(entry)
        print(f'commands, drafter {kind}: {entry["value"]:.0f} tok/s, '
              f'{entry["context"]["times_plain"]} times plain, '
              f'{entry["context"]["tokens_per_round"]} tokens in each of {usage.rounds} rounds')
    return records


def command(runtime: Runtime, text: str) -> tuple[ChatResult, float, int]:
    """The answer to a command, greedy; seconds of the processor after its first step, tokens then.

    Processor time, so that other work on the machine counts little: all of it is one thread's.
    """
    stream = runtime.require_chat().submit(ChatRequest(
        ({'role': 'user', 'content': text},), DEMO_TOOLS,
        {'temperature': 0.0, 'max_tokens': 64}))
    started, first = 0.0, 0
    for delta in stream:
        if not started and delta.token_ids:
            started, first = time.process_time(), len(delta.token_ids)
    spent = time.process_time() - started
    result = stream.result(60.0)
    return result, spent, len(result.token_ids) - first


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
