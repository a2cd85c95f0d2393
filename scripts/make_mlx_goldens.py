# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# (mlx is not in the development environment)
"""Lets MLX quantise small matrices in each of its forms, and run small models of ours in its own.

    python scripts/make_mlx_goldens.py

Needs mlx >= 0.32 (pip install 'mlx[cpu]' on Linux), mlx-lm, NumPy and what gemma_thor_ros.weights
imports. Writes test/data/goldens/mlx.npz: for each affine width and group the source (N, M) in
bf16, words, scales and biases as stored, what MLX unpacks of them in float32, and its product with
some rows; and logits of MLX packs that we write of random weights, run by mlx-lm in float32, as
bf16 experts don't run on its CPU backend. And mlx.json: the tensors that the other modes write.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import gemma4_text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / 'test' / 'model')]

import counter_weights  # noqa: E402

from gemma_thor_ros.weights.synth import write_synthetic  # noqa: E402

BITS, GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
MODES = {'mxfp4': (32, 4), 'nvfp4': (16, 4), 'mxfp8': (32, 8)}
SHAPE, ROWS = (3, 256), 2
# the 26B's form, the 31B's, E2B's and the 12B's; of the last one every eighth logit
MODELS = {'tiny-moe': 'mlx-4bit-g32', 'tiny-dense': 'mlx-4bit-g64', 'tiny-e2b': 'mlx-6bit-g32',
          'tiny-unified': 'mlx-8bit-g32'}
SEED, PROMPT, GENERATED, KEPT = 3, 40, 4, (0, 7, 8, 20, 39, 40, 41, 43)


def _bits(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.bfloat16).view(mx.uint16))


def logits(preset: str, form: str) -> np.ndarray:
    """Some rows of logits (R, V): a prompt at once, then tokens one by one."""
    tokens = (counter_weights.counter_bytes('mlx', PROMPT + GENERATED) % 512).tolist()
    with tempfile.TemporaryDirectory() as folder:
        write_synthetic(Path(folder), preset, form, SEED)
        config = json.loads((Path(folder) / 'config.json').read_text())
        prefix = 'language_model.'
        weights = {name.removeprefix(prefix): value for name, value in mx.load(
            str(Path(folder) / 'model.safetensors')).items() if name.startswith(prefix)}
        recipe = config['quantization']
        stated = {name.removeprefix(prefix): value for name, value in recipe.items()}
        # what the 12B's config leaves out is not 0 to mlx-lm
        text = {'hidden_size_per_layer_input': 0, 'num_kv_shared_layers': 0,
                **config['text_config']}
        model = gemma4_text.Model(gemma4_text.ModelArgs.from_dict(text))
        nn.quantize(model, group_size=recipe['group_size'], bits=recipe['bits'],
                    class_predicate=lambda path, module: hasattr(module, 'to_quantized') and (
                        stated.get(path, f'{path}.scales' in weights)))
        model.load_weights(list(model.sanitize(weights).items()))
        model.set_dtype(mx.float32)
        cache = model.make_cache()
        found = [model(mx.array([tokens[:PROMPT]]), cache=cache)]
        found += [model(mx.array([[token]]), cache=cache) for token in tokens[PROMPT:]]
        rows = np.concatenate([np.array(part[0]) for part in found])[list(KEPT)]
    return rows[:, ::8] if rows.shape[1] > 512 else rows


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
    for preset, form in MODELS.items():
        arrays[f'{preset}.logits'] = logits(preset, form)
        print(preset, arrays[f'{preset}.logits'].shape)
    others = {}
    for mode, (group, bits) in MODES.items():
        parts = mx.quantize(source, group_size=group, bits=bits, mode=mode)
        others[mode] = {'group_size': group, 'bits': bits, 'tensors': {
            name: [str(part.dtype).rpartition('.')[2], list(part.shape)]
            for name, part in zip(('weight', 'scales', 'biases'), parts, strict=False)}}
    folder = ROOT / 'test' / 'data' / 'goldens'
    np.savez_compressed(folder / 'mlx.npz', **arrays)
    record = {'made_by': 'scripts/make_mlx_goldens.py', 'mlx': mx.__version__,
              'mlx_lm': importlib.metadata.version('mlx-lm'),
              'numpy': np.__version__, 'columns': SHAPE[1], 'modes': others, 'models': MODELS,
              'seed': SEED, 'rows': KEPT}
    (folder / 'mlx.json').write_text(json.dumps(record, indent=1) + '\n')


if __name__ == '__main__':
    main()
