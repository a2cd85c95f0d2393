# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Check on the CPU what a training run rests on, before a GPU is asked for.

    python -m demo_model.check_training FOLDER

FOLDER is a run's OUT (a few steps are enough). Rounded weights in training must be those of the
exported NVFP4 file, and our engine's logits those of the training module.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from demo_model.export import load_weights
from demo_model.fake_nvfp4 import FakeNvfp4
from demo_model.network import DemoConfig, DemoModel


def rounding_difference(folder: Path) -> float:
    """Largest relative difference between weights rounded here and those of the exported file."""
    exact, exported = (DemoModel(DemoConfig(), low=torch.float32) for _ in range(2))
    load_weights(exact, folder / 'bf16')
    load_weights(exported, folder / 'nvfp4')
    rounded = FakeNvfp4(exact.parameters_by_name).rounded(exact.parameters_by_name)
    worst = 0.0
    for name, value in rounded.items():
        wanted = exported.parameters_by_name[name].detach()
        worst = max(worst, float((value - wanted).abs().max() / wanted.abs().max()))
    return worst


def gradients_pass() -> bool:
    """Whether every parameter gets a gradient through rounded weights."""
    model = DemoModel(DemoConfig(), low=torch.float32)
    model.weights = FakeNvfp4(model.parameters_by_name).weights(model.parameters_by_name, True)
    hidden, balance = model(torch.arange(64).view(2, 32) + 600)
    goals = torch.arange(64) + 601
    loss, _ = model.loss(hidden, goals, torch.ones(64))
    (loss + balance).backward()
    return all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())


def main() -> None:
    """Run the checks; exit code 1 when one fails."""
    folder = Path(sys.argv[1])
    difference = rounding_difference(folder)
    passed = gradients_pass()
    print(f'rounded in training against the file: {difference:.2g}')
    print(f'every parameter has a gradient through the rounding: {passed}')
    sys.exit(0 if difference < 1e-6 and passed and np.isfinite(difference) else 1)


if __name__ == '__main__':
    main()
