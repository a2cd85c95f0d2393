# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Average two bf16 checkpoints of the demo model and round the result to NVFP4.

    python -m demo_model.average v10/bf16 v13/bf16 --share 0.65 --out OUT

Sound where one run began at the other's end, so that both lie in one valley. OUT gets bf16/ and
nvfp4/. v14 was made by the command above, the shipped v18 by three (docs/demo_model.md). With
--only, a pattern, tensors whose names it doesn't match stay the first's.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.convert import quantize_checkpoint
from gemma_thor_ros.weights.quantize import Convention


def average(first: Path, second: Path, share: float, out: Path, only: str = '') -> int:
    """Write (1 - share) * first + share * second to `out`, in first's files, rounded to bf16 once.

    Tensors in whose names the pattern `only` isn't found are first's. Returns how many were mixed.
    Raises ValueError where the two have other tensors, none is found, or share isn't in 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f'share is {share}; it is within 0 to 1')
    theirs = {}
    for file in sorted(second.glob('*.safetensors')):
        theirs.update(load_file(file))
    shapes = {name: value.shape for name, value in theirs.items()}
    files = {file.name: load_file(file) for file in sorted(first.glob('*.safetensors'))}
    ours = {name: value.shape for tensors in files.values() for name, value in tensors.items()}
    if ours != shapes:
        other = sorted(set(ours.items()) ^ set(shapes.items()))
        raise ValueError(f'{first} and {second} differ in {len(other)} tensors, first {other[:1]}')
    chosen = {name for name in ours if re.search(only, name)}
    if not chosen:
        raise ValueError(f'no tensor of {first} has {only!r} in its name')
    out.mkdir(parents=True, exist_ok=True)
    for file in first.iterdir():
        if file.suffix != '.safetensors':
            shutil.copy(file, out / file.name)
    for name, tensors in files.items():
        mixed = {
            key: ((1 - share) * value.float() + share * theirs[key].float())
            .to(value.dtype)
            .contiguous()
            if key in chosen
            else value
            for key, value in tensors.items()
        }
        save_file(mixed, out / name, metadata={'format': 'pt'})
    return len(chosen)


def main() -> None:
    """Average, quantise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('first', type=Path)
    parser.add_argument('second', type=Path)
    parser.add_argument('--share', type=float, default=0.25, help='of the second')
    parser.add_argument('--only', default='', help='pattern of the tensors to mix (default: all)')
    parser.add_argument('--out', type=Path, required=True)
    args = parser.parse_args()
    mixed = average(args.first, args.second, args.share, args.out / 'bf16', args.only)
    print(f'{mixed} tensors mixed')
    quantize_checkpoint(
        open_checkpoint(args.out / 'bf16'),
        args.out / 'nvfp4',
        Convention.COMPRESSED_TENSORS,
        force=True,
    )


if __name__ == '__main__':
    main()
