# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""From the start of a process to its first token: where the time goes, and what it compiles.

    python bench/cold_start.py --out FOLDER [--commit HASH] [--folder CHECKPOINT]
                               [--preset 26b-a4b] [--layers N] [--runs 3]

Without --folder a checkpoint of random weights is written first (gemma-thor synth), with a
vocabulary of the model's size made from the demo model's. Each run is a process of its own that
loads it as the node does and asks for one token; the first one has an empty kernel cache. Writes
FOLDER/receipt-cold-start.json: load_s is the weights alone, cold_start_s all of it. Fails where a
later run compiles something.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))               # last: an installed package has the interfaces

STAGES = ('reading weights', 'laying out the KV cache', 'starting the engine', 'making graphs',
          'reading the tokenizer')
LOAD_TIMEOUT_S = 300.0
RUN_TIMEOUT_S = LOAD_TIMEOUT_S + 120.0   # of a whole process


def wide_tokenizer(source: Path, vocab_size: int) -> dict[str, Any]:
    """The demo model's tokenizer.json with made-up words and merges up to vocab_size entries."""
    content: dict[str, Any] = json.loads(source.read_text(encoding='utf-8'))
    vocab, merges = content['model']['vocab'], content['model']['merges']
    media = ('<|image|>', '<|audio|>', '<|video|>', '<|image>', '<image|>', '<|audio>', '<audio|>')
    for text in media:                   # the real vocabulary has them at other places
        if text in vocab:
            token_id = vocab.pop(text)
            vocab[f'<other{token_id}>'] = token_id
    content['added_tokens'] = [token for token in content['added_tokens']
                               if token['content'] in vocab]
    words = [text for text, _ in sorted(vocab.items(), key=lambda item: item[1])
             if text.isalpha() and text.isascii()]
    if len(words) ** 2 < 2 * vocab_size:
        raise ValueError(f'{len(words)} words make no vocabulary of {vocab_size}')
    for first, second in itertools.product(words, words):
        if len(vocab) >= vocab_size:
            break
        if first + second not in vocab:
            vocab[first + second] = len(vocab)
            merges.append([first, second])
    return content


def write_checkpoint(folder: Path, preset: str, num_layers: int | None) -> None:
    """Random weights in NVFP4, the text part alone, and a vocabulary of that size."""
    from gemma_thor_ros.load import DEMO_FOLDER
    from gemma_thor_ros.weights.checkpoint import open_checkpoint
    from gemma_thor_ros.weights.synth import write_synthetic
    from gemma_thor_ros.weights.writer import DEFAULT_SHARD_BYTES

    write_synthetic(folder, preset, 'compressed-tensors', 0, text_only=True,
                    max_shard_bytes=DEFAULT_SHARD_BYTES, force=True,
                    num_threads=os.cpu_count() or 1, num_layers=num_layers)
    config = open_checkpoint(folder).config
    size = config.get('text_config', config)['vocab_size']
    content = wide_tokenizer(DEMO_FOLDER / 'tokenizer.json', size)
    (folder / 'tokenizer.json').write_text(json.dumps(content), encoding='utf-8')


def child(folder: Path, device_name: str, begun: float) -> dict[str, Any]:
    """Load and ask for a token, in a process that began at `begun` on the steady clock."""
    marks = {'start': begun, 'python': time.monotonic()}
    from gemma_thor_ros.config import EngineConfig
    from gemma_thor_ros.load import Runtime
    from gemma_thor_ros.schema import ChatRequest, Request, SamplingParams

    marks['imports'] = time.monotonic()
    runtime = Runtime(EngineConfig.from_mapping({
        'model.path': str(folder), 'engine.device': device_name, 'engine.kv_memory': 8.0}))
    runtime.on_change(lambda: marks.setdefault(runtime.stage, time.monotonic()))
    runtime.start()
    marks['plan'] = time.monotonic()
    if not runtime.wait_ready(LOAD_TIMEOUT_S):
        raise SystemExit(f'the load failed: {runtime.error}')
    marks['ready'] = time.monotonic()
    chat, engine = runtime.require_chat(), runtime.engine
    assert engine is not None
    prompt = chat.render_prompt(ChatRequest(({'role': 'user', 'content': 'Hello.'},))).token_ids
    box = engine.submit(Request('first', prompt, SamplingParams(temperature=0.0, max_tokens=1,
                                                                ignore_eos=True)))
    if not box.wait(60.0):
        raise SystemExit('no token came within 60 s')
    marks['first token'] = time.monotonic()
    found: dict[str, Any] = {
        'marks': {name: at - begun for name, at in marks.items() if name},
        'rss_mb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        'anonymous_mb': anonymous_mb(), 'device_mb': 0.0, 'card': 'CPU', 'driver': ''}
    if chat.model_info().device == 'cuda':
        from gemma_thor_ros.cli.bench_records import driver_version
        from gemma_thor_ros.ops import device

        free, total = device.memory()
        found |= {'device_mb': (total - free) / 2**20, 'card': device.info().name,
                  'driver': driver_version()}
    runtime.stop()
    return found


def anonymous_mb() -> float:
    """Resident memory that is no file's: mapped weights are in rss_mb for as long as they fit."""
    for line in Path('/proc/self/status').read_text(encoding='utf-8').splitlines():
        if line.startswith('RssAnon:'):
            return int(line.split()[1]) / 1024
    return 0.0


def start(folder: Path, device_name: str, cache: Path) -> dict[str, Any]:
    """One run in a process of its own; `compiled`: files that it added to the kernel cache."""
    before = count_files(cache)
    words = [sys.executable, str(Path(__file__).resolve()), '--child', '--folder', str(folder),
             '--device', device_name, '--begun', repr(time.monotonic())]
    try:
        ended = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT,
                               env={**os.environ, 'XDG_CACHE_HOME': str(cache)},
                               timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise SystemExit(f'a run had no end within {RUN_TIMEOUT_S:.0f} s') from None
    if ended.returncode:
        raise SystemExit(f'a run ended with {ended.returncode}')
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return {**found, 'compiled': count_files(cache) - before}


def count_files(folder: Path) -> int:
    """Kernels in a cache."""
    return sum(1 for _ in folder.rglob('*.cubin'))


def spans(marks: dict[str, float]) -> dict[str, float]:
    """Seconds from each mark to the next one, by the name of what ended."""
    ordered = sorted(marks.items(), key=lambda item: item[1])
    return {f'{name} until {after}': end - at for (name, at), (after, end) in
            zip(ordered, ordered[1:], strict=False)}


def report(runs: list[dict[str, Any]], options: argparse.Namespace) -> int:
    """Write the receipt; gives 1 where a run after the first one compiled something."""
    from gemma_thor_ros.cli.bench_records import Records

    card = {'card': runs[0]['card']} | (
        {'driver': runs[0]['driver']} if runs[0]['driver'] else {})
    records = Records(options.out / 'receipt-cold-start.json', **card, commit=options.commit,
                      command='python bench/cold_start.py ' + ' '.join(sys.argv[1:]))
    model = options.folder.name if options.folder else f'{options.preset} of random weights'
    for state, some in (('empty', runs[:1]), ('warm', runs[1:])):
        if not some:
            continue
        context = {'model': model, 'device': options.device, 'kernel_cache': state,
                   'layers': options.layers or 'all'}
        weights = [span(run['marks'], *STAGES[:2]) for run in some]
        whole = [run['marks']['first token'] for run in some]
        for metric, values, unit in (
                ('cold_start_s', whole, 's'), ('load_s', weights, 's'),
                ('besides_load_s', [a - b for a, b in zip(whole, weights, strict=True)], 's'),
                ('compiled', [float(run['compiled']) for run in some], 'kernels'),
                *((metric, [run[metric] for run in some], 'MB')
                  for metric in ('rss_mb', 'anonymous_mb', 'device_mb'))):
            value = records.add(metric, values, unit, **context)
            print(f'{metric:16}{value:10.3f} {unit:8} kernel cache {state}', flush=True)
        last = min(some, key=lambda run: abs(run['marks']['first token']
                                             - statistics.median(whole)))
        for name, seconds in spans(last['marks']).items():
            records.add('span_s', [seconds], 's', **context, span=name)
            print(f'    {seconds:8.3f} s  {name}', flush=True)
    return int(any(run['compiled'] for run in runs[1:]))


def span(marks: dict[str, float], first: str, last: str) -> float:
    """Seconds between two stages."""
    return marks[last] - marks[first]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, default=Path('.'), help='folder for the receipt')
    parser.add_argument('--folder', type=Path, help='a checkpoint (default: one is written)')
    parser.add_argument('--preset', default='26b-a4b', help='of it (default: %(default)s)')
    parser.add_argument('--layers', type=int, help='of it, the first ones alone')
    parser.add_argument('--device', choices=('auto', 'cpu', 'cuda'), default='cuda')
    parser.add_argument('--runs', type=int, default=3, help='default: %(default)s')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--child', action='store_true', help=argparse.SUPPRESS)
    parser.add_argument('--begun', type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.folder, options.device, options.begun)))
        return 0
    with tempfile.TemporaryDirectory() as made:
        folder, begun = options.folder, time.monotonic()
        if folder is None:
            folder = Path(made) / options.preset
            write_checkpoint(folder, options.preset, options.layers)
            print(f'the checkpoint is written after {time.monotonic() - begun:.1f} s', flush=True)
        runs = [start(folder, options.device, Path(made) / 'cache') for _ in range(options.runs)]
    return report(runs, options)


if __name__ == '__main__':
    sys.exit(main())
