# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The part of `gemma-thor inspect` for drafters: what one holds, and whether it fits a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from gemma_thor_ros.cli.progress import in_words
from gemma_thor_ros.load_drafter import find_drafter
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.checkpoint import Checkpoint, open_checkpoint
from gemma_thor_ros.weights.drafter import DrafterCheckpoint
from gemma_thor_ros.weights.drafter_shapes import drafter_kind


def inspect_drafter(checkpoint: Checkpoint, model: Path | None) -> dict[str, Any]:
    """The report as plain data; keys are stable. `model`: a model's folder that it must fit."""
    refused = []
    try:
        DrafterCheckpoint(checkpoint)
    except ConfigError as error:
        refused.append(str(error))
    config: Any = None
    if model is not None and not refused:
        target = open_checkpoint(model)
        try:
            admitted = ModelConfig.from_dict(target.config, target.generation_config)
            found = find_drafter('auto', str(checkpoint.folder), model, admitted)
            config = found.config if found is not None else None
        except ConfigError as error:
            refused.append(str(error))
    return {
        'folder': str(checkpoint.folder),
        'drafter': drafter_kind(checkpoint.config),
        'num_files': len(checkpoint.tensors.files),
        'num_tensors': len(checkpoint.tensors),
        'num_bytes': sum(info.nbytes for info in checkpoint.tensors.values()),
        'model': None if model is None else str(model),
        'max_drafts': None if config is None else config.max_drafts,
        'target_layers': None if config is None else list(config.taps),
        'window': None if config is None else config.window,
        'refused': refused,
        'can_be_served': config is not None,
    }


def print_drafter(report: dict[str, Any]) -> None:
    """The same in words."""
    console = Console(highlight=False)
    console.print(f'{report["folder"]}: {report["drafter"]} drafter, {report["num_tensors"]:,} '
                  f'tensors in {report["num_files"]} files, {in_words(report["num_bytes"])}')
    for reason in report['refused']:
        console.print(f'refused: {reason}')
    if report['can_be_served']:
        layers = ', '.join(map(str, report['target_layers']))
        window = f', window {report["window"]:,}' if report['window'] else ''
        console.print(f'fits {report["model"]}: up to {report["max_drafts"]} drafts a round, '
                      f'reads layers {layers}{window}')
    elif not report['refused']:
        console.print('tensors and config belong together; --model FOLDER tells whether it fits '
                      'a model')
