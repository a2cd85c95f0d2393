# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times the load of a checkpoint onto the CUDA device, from the page cache and from the disk.

    gemma-thor synth FOLDER --preset 26b-a4b --text-only
    python bench/load.py FOLDER --receipt FILE.json

GB/s from the first weight to the last one in fragment order, the share of what reading the files
alone gives, the largest resident memory and what the device holds. Kernels are compiled before.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gemma_thor_ros.cli.bench_records import Records, driver_version
from gemma_thor_ros.load_device import compile_ahead, load_cuda, unfit
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.ops import device
from gemma_thor_ros.weights.checkpoint import Checkpoint, open_checkpoint

BLOCK = 16 << 20


def read_files(checkpoint: Checkpoint) -> float:
    """GB/s of reading all files from begin to end; afterwards they are in the page cache."""
    started, total = time.perf_counter(), 0
    for path in sorted({checkpoint.info(name).file for name in checkpoint.names()}):
        with path.open('rb', buffering=0) as file:
            while part := file.read(BLOCK):
                total += len(part)
    return total / (time.perf_counter() - started) / 1e9


def load(checkpoint: Checkpoint, config: ModelConfig, threads: int) -> tuple[float, float]:
    """Seconds of the weights, and GiB that the device holds with them."""
    marks: dict[str, float] = {}
    before = device.memory()[0]
    model = load_cuda(config, checkpoint, checkpoint.text_weights(), context_length=4096,
                      page_size=64, kv_dtype='fp8', kv_bytes=0, nvfp4_head=False, graphs=True,
                      num_threads=threads, prompt_rows=256, facts={},
                      report=lambda share, stage: marks.setdefault(stage, time.perf_counter()))
    seconds = time.perf_counter() - marks['reading weights']
    held = (before - device.memory()[0]) / 2**30
    del model
    device.release_unused()
    return seconds, held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folder', type=Path)
    parser.add_argument('--receipt', type=Path, help='write the records here')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--threads', type=int, default=8, help='default: %(default)s')
    arguments = parser.parse_args()
    reason = device.find()
    if reason:
        print(f'this needs a CUDA device, but {reason}')
        return 2
    checkpoint = open_checkpoint(arguments.folder)
    config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    reason = unfit(config, checkpoint.text_weights(), 64)
    if reason:
        print(reason)
        return 2
    records = Records(arguments.receipt, card=device.info().name, driver=driver_version(),
                      commit=arguments.commit, command='python bench/load.py')
    compile_ahead(config, 64, 'fp8', arguments.threads, lambda share: None)
    num_bytes = sum(checkpoint.info(name).nbytes for name in checkpoint.names())
    for source in ('disk', 'page cache'):
        checkpoint.tensors.drop(checkpoint.names())
        raw = read_files(checkpoint)
        if source == 'disk':
            checkpoint.tensors.drop(checkpoint.names())
        else:
            raw = read_files(checkpoint)
        seconds, held = load(checkpoint, config, arguments.threads)
        rate = num_bytes / seconds / 1e9
        context = {'source': source, 'bytes': num_bytes, 'threads': arguments.threads,
                   'read_gb_s': round(raw, 2), 'tensors': len(checkpoint.names())}
        records.add('load_s', [seconds], 's', **context)
        records.add('load_gb_s', [rate], 'GB/s', fraction=rate / raw, **context)
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        records.add('rss_mb', [rss], 'MB', **context)
        records.add('device_mb', [held * 1024], 'MB', **context)
        print(f'from the {source}: {seconds:.1f} s, {rate:.2f} GB/s of {raw:.2f}, at most '
              f'{rss:.0f} MB resident (mapped pages among them), {held:.2f} GiB on the device',
              flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
