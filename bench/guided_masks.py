# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What guided decoding costs on the host: time of a mask, of a grammar, of a vocabulary.

    python bench/guided_masks.py [--tokenizer FILE] [--seconds 5] [--json]

Walks by chance through calls and JSON answers of the grammars below, and gives percentiles of the
time from a token to the next mask (accept and mask together), with the vocabulary of the demo
model unless another one is given. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from gemma_thor_ros.guide import AnswerGuide, Contents
from gemma_thor_ros.load import DEMO_FOLDER
from gemma_thor_ros.text.grammar import Grammars, Tool
from gemma_thor_ros.text.tokenizer import Tokenizer

STOP_IDS = (1, 50, 106)
POSE = {'type': 'object', 'required': ['x', 'y'], 'properties': {
    'x': {'type': 'number', 'minimum': -50, 'maximum': 50}, 'y': {'type': 'number'},
    'frame': {'enum': ['map', 'odom', 'base_link']}}}
PLAN = {'type': 'object', 'required': ['goal', 'poses'], 'properties': {
    'goal': {'type': 'string'}, 'poses': {'type': 'array', 'items': POSE},
    'speed': {'type': ['number', 'null']}, 'labels': {'type': 'object'},
    'note': {'type': 'string', 'maxLength': 200}, 'mode': {'enum': ['fast', 'careful']}}}


def tools(count: int) -> list[Tool]:
    """So many tools with the arguments of PLAN."""
    return [Tool(f'tool_number_{index}', PLAN) for index in range(count)]


def milliseconds(begin: float) -> float:
    return round((time.perf_counter() - begin) * 1e3, 3)


def resident_mib() -> float:
    pages = int(Path('/proc/self/statm').read_text(encoding='ascii').split()[1])
    return pages * resource.getpagesize() / 2 ** 20


def walk_times(grammars: Grammars, contents: Contents, seconds: float) -> dict[str, Any]:
    """Percentiles, in microseconds, of the time from a token to the next mask."""
    rng = random.Random(1)
    times: list[float] = []
    end = time.monotonic() + seconds
    quote = grammars.controls.quote
    while time.monotonic() < end:
        guide = AnswerGuide(grammars, contents)
        mask, token_ids = guide.allowed(), 0
        while not guide.finished and token_ids < 200:
            assert mask is not None
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder='little')
            ids = np.flatnonzero(bits)
            token_id = quote if bits[quote] and rng.random() < 0.3 else int(rng.choice(ids))
            begin = time.perf_counter()
            guide.accept(token_id)
            mask = guide.allowed()
            times.append(time.perf_counter() - begin)
            token_ids += 1
    found = np.array(times) * 1e6
    figures = {f'p{percent}_us': float(np.percentile(found, percent)) for percent in (50, 90, 99)}
    figures.update(mean_us=float(found.mean()), max_us=float(found.max()))
    return {'tokens': len(times), **{name: round(value, 1) for name, value in figures.items()}}


def measure(path: Path, seconds: float) -> dict[str, Any]:
    """All figures of one vocabulary."""
    tokenizer = Tokenizer.from_file(path)
    before = resident_mib()
    begin = time.perf_counter()
    grammars = Grammars(tokenizer, STOP_IDS)
    result: dict[str, Any] = {'vocab_size': tokenizer.vocab_size,
                              'vocabulary_ms': milliseconds(begin)}
    result['vocabulary_mib'] = round(resident_mib() - before, 1)
    for count in (1, 8, 32, 128):
        begin = time.perf_counter()
        grammar = grammars.calls(tools(count))
        result[f'compile_{count}_tools_ms'] = milliseconds(begin)
        begin = time.perf_counter()
        grammars.calls(tools(count))
        result[f'cached_{count}_tools_ms'] = milliseconds(begin)
        begin = time.perf_counter()
        grammar.matcher().mask()
        result[f'first_mask_{count}_tools_ms'] = milliseconds(begin)
    begin = time.perf_counter()
    answer = grammars.answer(PLAN, 'schema')
    result['compile_answer_ms'] = milliseconds(begin)
    calls = grammars.calls(tools(8))
    result['call_of_8_tools'] = walk_times(grammars, Contents(calls, None, True), seconds)
    result['json_answer'] = walk_times(grammars, Contents(None, answer), seconds)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--tokenizer', type=Path, default=DEMO_FOLDER / 'tokenizer.json')
    parser.add_argument('--seconds', type=float, default=5.0, help='of each walk')
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    result = measure(args.tokenizer, args.seconds)
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        if isinstance(value, dict):
            value = ', '.join(f'{key} {number:,}' for key, number in value.items())
        print(f'{name:24} {value}')


if __name__ == '__main__':
    sys.exit(main())
