# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# (mlx is not in the development environment)
"""Lets MLX quantise small matrices in each of its forms, and stores what it gives.

    python scripts/make_mlx_goldens.py

Needs mlx >= 0.32 (pip install 'mlx[cpu]' on Linux) and NumPy. Writes test/data/goldens/mlx.npz:
for each affine width and group the source (N, M) in bf16, words, scales and biases as stored, what
MLX unpacks of them in float32, and its product with some rows; and mlx.json: the tensors that the
other modes write.
"""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
BITS, GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
MODES = {'mxfp4': (32, 4), 'nvfp4': (16, 4), 'mxfp8': (32, 8)}
SHAPE, ROWS = (3, 256), 2


def _bits(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.bfloat16).view(mx.uint16))


def main() -> None:
    """Make all of them."""
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(32)
    arrays: dict[str, np.ndarray] = {}
    x = rng.standard_normal((ROWS, SHAPE[1])).astype(np.float32)
    arrays['x'] = x
    for bits in BITS:
        for group in GROUPS:
            # groups of either sign's larger end, one of zeros, one of a single number
            values = rng.standard_normal(SHAPE) + rng.standard_normal((SHAPE[0], 1))
            values[0, :group], values[1, :group] = 0, 0.75
            source = mx.array(values.astype(np.float32)).astype(mx.bfloat16)
            words, scales, biases = mx.quantize(source, group_size=group, bits=bits)
            wide = [part.astype(mx.float32) for part in (scales, biases)]
            key = f'{bits}.{group}'
            arrays[f'{key}.source'] = _bits(source)
            arrays[f'{key}.words'] = np.array(words)
            arrays[f'{key}.scales'], arrays[f'{key}.biases'] = _bits(scales), _bits(biases)
            arrays[f'{key}.values'] = np.array(mx.dequantize(
                words, *wide, group_size=group, bits=bits))
            arrays[f'{key}.product'] = np.array(mx.quantized_matmul(
                mx.array(x), words, *wide, group_size=group, bits=bits))
    others = {}
    for mode, (group, bits) in MODES.items():
        parts = mx.quantize(source, group_size=group, bits=bits, mode=mode)
        others[mode] = {'group_size': group, 'bits': bits, 'tensors': {
            name: [str(part.dtype).rpartition('.')[2], list(part.shape)]
            for name, part in zip(('weight', 'scales', 'biases'), parts, strict=False)}}
    folder = ROOT / 'test' / 'data' / 'goldens'
    np.savez_compressed(folder / 'mlx.npz', **arrays)
    record = {'made_by': 'scripts/make_mlx_goldens.py', 'mlx': mx.__version__,
              'numpy': np.__version__, 'columns': SHAPE[1], 'modes': others}
    (folder / 'mlx.json').write_text(json.dumps(record, indent=1) + '\n')


if __name__ == '__main__':
    main()
