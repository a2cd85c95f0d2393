# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Load an exported folder into transformers' Gemma4ForCausalLM and compare it with the trained module.

Run: python -m demo_model.check_export FOLDER. Fails on a missing or unexpected tensor and on logits
that differ by more than 1e-4.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from demo_model.export import PREFIX
from demo_model.network import DemoConfig, DemoModel


def load(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder by their names on disk."""
    out: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob('*.safetensors')):
        out.update(load_file(str(file)))
    return out


def into_module(weights: dict[str, torch.Tensor], low: torch.dtype = torch.float32) -> DemoModel:
    """The training module with a checkpoint's weights."""
    model = DemoModel(DemoConfig(), low=low)
    with torch.no_grad():
        for name, parameter in model.parameters_by_name.items():
            kind = name.rsplit('.', 1)[-1]
            if '.experts.' in name and kind in ('gate_proj', 'up_proj'):
                fused = weights[PREFIX + name.replace(kind, 'gate_up_proj')]
                value = fused.chunk(2, 1)[0 if kind == 'gate_proj' else 1]
            else:
                value = weights.get(PREFIX + name + '.weight', weights.get(PREFIX + name))
            assert value is not None, name
            parameter.copy_(value.float())
    return model


def check(folder: Path) -> float:
    """Largest difference of the logits over random ids."""
    weights = load(folder)
    config = Gemma4TextConfig(
        **json.loads((folder / 'config.json').read_text(encoding='utf-8'))['text_config']
    )
    reference = Gemma4ForCausalLM(config).float().eval()
    named = {name.replace(PREFIX, 'model.'): value.float() for name, value in weights.items()}
    missing, unexpected = reference.load_state_dict(named, strict=False)
    missing = [name for name in missing if name != 'lm_head.weight']
    if missing or unexpected:
        raise SystemExit(f'missing {missing}, unexpected {unexpected}')
    reference.tie_weights()
    ids = torch.randint(0, config.vocab_size, (2, 700), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        wanted = reference(ids).logits
        model = into_module(weights)
        found = model.logits(model(ids)[0]).unflatten(0, ids.shape)
    return float((wanted - found).abs().max())


if __name__ == '__main__':
    difference = check(Path(sys.argv[1]))
    sys.stdout.write(
        f'transformers: no missing and no unexpected tensors; logits differ by at most {difference:.2g}\n'
    )
    sys.exit(0 if difference < 1e-4 else 1)
