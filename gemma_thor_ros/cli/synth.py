# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor synth DST`: a checkpoint of random weights in the real formats, names and shapes."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

from gemma_thor_ros.cli.progress import byte_progress, in_words, size
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.synth import (
    ALL_PRESETS,
    FORMATS,
    default_format,
    make_plan,
    write_synthetic,
)
from gemma_thor_ros.weights.writer import DEFAULT_SHARD_BYTES


def add_parser(subparsers: Any) -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'synth', help='write a checkpoint of random weights',
        description='Random weights that behave (activations keep their size), for benchmarks and '
                    'tests. The answers are noise. No tokenizer is written. The same seed gives '
                    'the same bytes.')
    parser.add_argument('destination', type=Path, metavar='DST', help='folder to write')
    parser.add_argument('--preset', choices=ALL_PRESETS, required=True,
                        help='which model or drafter to imitate')
    parser.add_argument('--format', choices=FORMATS, metavar='FORMAT',
                        help='bf16, compressed-tensors (default; drafters: bf16), modelopt, or '
                             'one of MLX such as mlx-4bit-g64')
    parser.add_argument('--seed', type=int, default=0, help='default: %(default)s')
    parser.add_argument('--text-only', action='store_true', help='leave vision and audio out')
    parser.add_argument('--max-shard-size', type=size, default=DEFAULT_SHARD_BYTES, metavar='SIZE',
                        help='largest file (default: 5GB)')
    parser.add_argument('--threads', type=int, default=os.cpu_count() or 1,
                        help='default: all cores')
    parser.add_argument('--force', action='store_true', help='overwrite a checkpoint in DST')
    parser.add_argument('--json', action='store_true', help='print the result as JSON')


def run(args: argparse.Namespace) -> int:
    """Gives 0 when written; raises ConfigError for bad input or a full disk."""
    args.format = args.format or default_format(args.preset)
    try:
        specs = make_plan(args.preset, args.format, args.text_only).specs()
        total = sum(spec.nbytes for spec in specs)
        _check_space(args.destination, total)
        with byte_progress('writing') as progress:
            write_synthetic(args.destination, args.preset, args.format, args.seed,
                            text_only=args.text_only, max_shard_bytes=args.max_shard_size,
                            force=args.force, num_threads=max(1, args.threads), progress=progress)
    except OSError as error:
        raise ConfigError(f'{error.filename or args.destination}: {error.strerror}') from error
    if args.json:
        print(json.dumps({'folder': str(args.destination), 'preset': args.preset,
                          'format': args.format, 'seed': args.seed, 'num_tensors': len(specs),
                          'num_bytes': total}))
    else:
        print(f'{args.destination}: {len(specs):,} tensors, {in_words(total)}; random weights, no '
              'tokenizer')
    return 0


def _check_space(folder: Path, needed: int) -> None:
    """Refuse before an hour of writing what will not fit; ConfigError with both numbers."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise ConfigError(f'{folder}: needs {in_words(needed)}, {in_words(free)} are free there')
