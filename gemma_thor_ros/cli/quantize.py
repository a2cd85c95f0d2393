# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor quantize SRC DST`: a bf16 checkpoint becomes an NVFP4 or MLX affine one."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gemma_thor_ros.cli.progress import byte_progress, in_words, size
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.convert import QuantizationReport, quantize_checkpoint
from gemma_thor_ros.weights.convert_mlx import quantize_checkpoint_mlx
from gemma_thor_ros.weights.mlx_bits import BITS, GROUP_SIZES
from gemma_thor_ros.weights.mlx_modules import MLX_FORMATS, setting_of
from gemma_thor_ros.weights.quantization_config import ATTENTION, DEFAULT_IGNORE
from gemma_thor_ros.weights.quantize import Convention
from gemma_thor_ros.weights.writer import DEFAULT_SHARD_BYTES


def add_parser(subparsers: Any) -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'quantize', help='turn a bf16 checkpoint into an NVFP4 or MLX affine one',
        description='Reads a bf16 checkpoint folder and writes its linear layers and experts as '
                    'NVFP4; embeddings, router, norms and vision stay bf16. The MLX forms '
                    '(mlx-4bit-g64: 4 bits, groups of 64) take embeddings and router in too. '
                    'Tokenizer and other small files are copied. Prints what the rounding cost.')
    parser.add_argument('source', type=Path, metavar='SRC', help='folder of the bf16 checkpoint')
    parser.add_argument('destination', type=Path, metavar='DST', help='folder to write')
    parser.add_argument('--format', metavar='FORMAT',
                        choices=[*(convention.value for convention in Convention), *MLX_FORMATS],
                        default=Convention.COMPRESSED_TENSORS.value,
                        help='compressed-tensors (default) or modelopt for NVFP4; mlx-Bbit-gG '
                             f'with B {", ".join(map(str, BITS))} and G '
                             f'{", ".join(map(str, GROUP_SIZES))} for MLX affine')
    parser.add_argument('--keep-attention', action='store_true',
                        help='leave attention bf16 too, as the MLP-only packs do')
    parser.add_argument('--ignore', action='append', default=[], metavar='GLOB',
                        help='further modules that stay bf16, by on-disk name; may be repeated. '
                             f'NVFP4 always keeps {", ".join(DEFAULT_IGNORE)}')
    parser.add_argument('--max-shard-size', type=size, default=DEFAULT_SHARD_BYTES, metavar='SIZE',
                        help='largest file (default: 5GB)')
    parser.add_argument('--threads', type=int, default=os.cpu_count() or 1,
                        help='default: all cores')
    parser.add_argument('--force', action='store_true', help='overwrite a checkpoint in DST')
    parser.add_argument('--json', action='store_true', help='print the report as JSON')


def run(args: argparse.Namespace) -> int:
    """Gives 0 when written; raises ConfigError for bad input or a full disk."""
    attention = (ATTENTION,) if args.keep_attention else ()
    mlx = setting_of(args.format)
    try:
        source = open_checkpoint(args.source)
        with byte_progress('quantising') as progress:
            options: dict[str, Any] = {
                'max_shard_bytes': args.max_shard_size, 'force': args.force,
                'num_threads': max(1, args.threads), 'progress': progress}
            if mlx is not None:
                report = quantize_checkpoint_mlx(source, args.destination, mlx,
                                                 ignore=(*attention, *args.ignore), **options)
            else:
                report = quantize_checkpoint(
                    source, args.destination, Convention(args.format),
                    ignore=(*DEFAULT_IGNORE, *attention, *args.ignore), **options)
    except OSError as error:
        raise ConfigError(f'{error.filename or args.destination}: {error.strerror}') from error
    if args.json:
        print(json.dumps(_as_json(report)))
    else:
        _print_table(report, args.destination)
    return 0


def _as_json(report: QuantizationReport) -> dict[str, Any]:
    return {
        'source_bytes': report.source_bytes, 'written_bytes': report.written_bytes,
        'num_kept_tensors': report.num_kept, 'copied_files': report.files,
        'kinds': {kind: {**asdict(statistics), 'relative_rms': statistics.relative_rms}
                  for kind, statistics in report.errors.items()},
    }


def _print_table(report: QuantizationReport, destination: Path) -> None:
    table = Table(title='error of the rounding: rms(w - decoded) / rms(w)')
    table.add_column('kind', no_wrap=True)
    for heading in ('modules', 'values', 'relative rms', 'worst'):
        table.add_column(heading, justify='right')
    table.add_column('worst module', overflow='fold')
    for kind, statistics in report.errors.items():
        table.add_row(kind, str(statistics.num_modules), f'{statistics.num_values:,}',
                      f'{statistics.relative_rms:.4f}', f'{statistics.worst_relative_rms:.4f}',
                      statistics.worst_module)
    console = Console()
    console.print(table)
    console.print(f'{destination}: {in_words(report.written_bytes)}, from '
                  f'{in_words(report.source_bytes)}; {report.num_kept} tensors kept as they were; '
                  f'copied {", ".join(report.files) or "no other files"}', highlight=False)
