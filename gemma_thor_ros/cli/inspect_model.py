# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor inspect FOLDER`: what a checkpoint holds, and what would be refused and why.

Reads headers and small files only, so it takes seconds for any size.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gemma_thor_ros.cli.inspect_drafter import inspect_drafter, print_drafter
from gemma_thor_ros.cli.progress import in_words
from gemma_thor_ros.load_text import read_tokenizer
from gemma_thor_ros.load_vision import find_vision
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.checkpoint import Checkpoint, open_checkpoint
from gemma_thor_ros.weights.drafter_shapes import drafter_kind
from gemma_thor_ros.weights.summary import Template, find_template, summarise

_OTHER_TEMPLATE = ('is an older or changed one; prompts are made by our own renderer of the '
                   'current version')


def add_parser(subparsers: Any) -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'inspect', help='show what a checkpoint holds and whether it can be served',
        description='Family, formats per kind of module, counts and sizes of a checkpoint folder, '
                    'and what would be refused. Ends with 0 when config, weights and tokenizer '
                    'fit (a tokenizer that is not there yet is told, and may be added), 1 when '
                    'it would be refused, 2 when the folder is no readable checkpoint. A '
                    'drafter is shown with what it needs of its model.')
    parser.add_argument('folder', type=Path, metavar='FOLDER')
    parser.add_argument('--model', type=Path, metavar='MODEL',
                        help='for a drafter: the model that it must fit')
    parser.add_argument('--json', action='store_true', help='print as JSON')


def run(args: argparse.Namespace) -> int:
    """Gives 0: what is there fits, 1: would be refused; ConfigError: no readable checkpoint."""
    checkpoint = open_checkpoint(args.folder)
    is_drafter = drafter_kind(checkpoint.config) is not None
    report = inspect_drafter(checkpoint, args.model) if is_drafter else inspect_checkpoint(
        checkpoint)
    if args.json:
        print(json.dumps(report))
    elif is_drafter:
        print_drafter(report)
    else:
        _print_report(report)
    return 1 if report['refused'] else 0


def inspect_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """The report as plain data; keys are stable."""
    summary = summarise(checkpoint)
    refused = []
    images: dict[str, Any] = {'soft_tokens': 0, 'reason': ''}
    try:
        model = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    except ConfigError as error:
        refused.append(str(error))
    else:
        vision = find_vision(checkpoint, model, 'cpu', 'auto').info
        images = {'soft_tokens': vision.soft_tokens, 'reason': vision.reason}
    if summary.refusal:
        refused.append(summary.refusal)
    has_tokenizer = (checkpoint.folder / 'tokenizer.json').is_file()
    if has_tokenizer:
        refused += _tokenizer_faults(checkpoint)
    config = checkpoint.config
    architectures = config.get('architectures')
    quantization = config.get('quantization_config')
    method = None
    if isinstance(quantization, dict):   # MLX names no method
        method = quantization.get('quant_method', 'mlx' if 'group_size' in quantization else None)
    template = find_template(checkpoint.folder)
    return {
        'folder': str(checkpoint.folder),
        'model_type': config.get('model_type'),
        'architecture': architectures[0] if isinstance(architectures, list) and architectures
        else None,
        'declared_quantization': method,
        'num_files': len(checkpoint.tensors.files),
        'num_tensors': len(checkpoint.tensors),
        'num_bytes': sum(info.nbytes for info in checkpoint.tensors.values()),
        'text_prefix': summary.text_prefix,
        'parts': {part: asdict(amount) for part, amount in summary.parts.items()},
        'text_parts': {part: asdict(amount) for part, amount in summary.text_parts.items()},
        'forms': summary.forms,
        'unknown_tensors': summary.unknown,
        'tokenizer': has_tokenizer,
        'images': images,
        'chat_template': {**asdict(template), 'current': bool(template.version)},
        'refused': refused,
        'can_be_served': has_tokenizer and not refused,
    }


def _tokenizer_faults(checkpoint: Checkpoint) -> list[str]:
    try:
        read_tokenizer(checkpoint.folder, _vocab_size(checkpoint.config))
    except ConfigError as error:
        return [str(error)]
    except (KeyError, TypeError, ValueError):
        return []                # the config's own fault is told already
    return []


def _vocab_size(config: Mapping[str, Any]) -> int:
    text = config.get('text_config')
    return int((text if isinstance(text, Mapping) else config)['vocab_size'])


def _print_report(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(f'{report["folder"]}: {report["model_type"]} ({report["architecture"]}), '
                  f'{report["num_tensors"]:,} tensors in {report["num_files"]} files, '
                  f'{in_words(report["num_bytes"])}')
    table = Table('part', 'tensors', 'size')
    for name, amounts in (('', report['parts']), ('text: ', report['text_parts'])):
        for part, amount in amounts.items():
            table.add_row(name + part, f'{amount["num_tensors"]:,}',
                          in_words(amount['num_bytes']))
    console.print(table)
    table = Table('kind of text module', 'stored as')
    for kind, forms in report['forms'].items():
        table.add_row(kind, ', '.join(f'{count:,} {form}' for form, count in forms.items()))
    console.print(table)
    if report['unknown_tensors']:
        names = report['unknown_tensors']
        console.print(f'{len(names)} unknown tensors, left aside: {", ".join(names[:5])}'
                      f'{", ..." if len(names) > 5 else ""}')
    console.print(f'tokenizer.json: {"present" if report["tokenizer"] else "missing"}')
    keys = ('source', 'sha256', 'version')
    console.print(_describe(Template(*(report['chat_template'][key] for key in keys))))
    images = report['images']
    if images['soft_tokens']:
        console.print(f'images: {images["soft_tokens"]} soft tokens each at most, on the CPU')
    elif images['reason']:
        console.print(f'images are refused: {images["reason"]}')
    for reason in report['refused']:
        console.print(f'refused: {reason}')
    if report['can_be_served']:
        console.print('config, weights and tokenizer fit this engine')
    elif not report['refused']:
        console.print('config and weights fit this engine; it needs a tokenizer.json to be served')


def _describe(template: Template) -> str:
    if not template.source:
        return 'chat template: none in the folder'
    if template.version:
        return f'chat template: {template.version} ({template.source})'
    return (f'chat template: {template.source} (SHA-256 {template.sha256[:12]}...) '
            f'{_OTHER_TEMPLATE}')
