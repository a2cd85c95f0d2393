# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# (torch and transformers are not in the development environment)
"""Runs the reference on pictures and on tiny models with sight, and stores what it gives.

    python scripts/make_vision_goldens.py

Needs torch, torchvision, Pillow and transformers >= 5.17; a CPU will do. Writes to
test/data/goldens: vision.json (versions, sizes, rows) and vision.npz. For each picture and budget,
some patches as the reference's processors give them (levels of its Pillow and of its torchvision
form, and an unrounded float64 resize of torch's); for each tiny model its soft tokens, and layers
and logits of some rows of a prompt with images and of generated rows behind it, in float64.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
import torchvision
import transformers
from transformers import (
    DynamicCache,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
)
from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.gemma4_unified.image_processing_gemma4_unified import (
    Gemma4UnifiedImageProcessor,
)

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / 'test' / 'model'), str(ROOT / 'scripts')]

import vision_cases as cases  # noqa: E402
from make_goldens import _float64_everywhere, reference_state  # noqa: E402

from gemma_thor_ros.image.prepare import prepare_image  # noqa: E402
from gemma_thor_ros.models.config import ModelConfig  # noqa: E402

# (height, width, budget): down, up, exact, both forms of a side that would be 0, odd ratios
SIZES = [(240, 320, 70), (480, 640, 280), (37, 53, 70), (1, 1, 70), (336, 480, 70),
         (3, 200, 140), (410, 4, 70), (101, 997, 560), (720, 1280, 1120)]
PATCHES = 3                              # of each, evenly spread


def _levels(values: Any) -> np.ndarray:
    levels = np.asarray(values, np.float64) * 255
    rounded = np.rint(levels)
    assert np.abs(levels - rounded).max() < 1e-3
    return rounded.astype(np.uint8)


def processors(arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Patches of every size by the reference's processors."""
    found = []
    for height, width, budget in SIZES:
        name = f'{height}x{width}'
        pixels = cases.picture(name, height, width)
        image = PIL.Image.fromarray(pixels)
        pil = Gemma4ImageProcessorPil(max_soft_tokens=budget)(image, return_tensors='np')
        vision = Gemma4ImageProcessor(max_soft_tokens=budget)(image, return_tensors='pt')
        unified = Gemma4UnifiedImageProcessor(max_soft_tokens=budget)(image, return_tensors='pt')
        tokens = int(pil['num_soft_tokens_per_image'][0])
        assert tokens == int(vision['num_soft_tokens_per_image'][0])
        places = pil['image_position_ids'][0][:9 * tokens]
        columns, rows = (places.max(axis=0) + 1).tolist()
        exact = torch.nn.functional.interpolate(
            torch.from_numpy(pixels).permute(2, 0, 1)[None].double(), (16 * rows, 16 * columns),
            mode='bicubic', antialias=True)[0].permute(1, 2, 0).numpy()
        patches = exact.reshape(rows, 16, columns, 16, 3).transpose(0, 2, 1, 3, 4)
        wanted = np.linspace(0, 9 * tokens - 1, PATCHES).astype(int)
        key = f'{name}.{budget}'
        arrays[f'{key}.pillow'] = _levels(pil['pixel_values'][0][wanted])
        arrays[f'{key}.torchvision'] = _levels(vision['pixel_values'][0][wanted])
        arrays[f'{key}.exact'] = patches.reshape(-1, 768)[wanted].astype(np.float32)
        merged = np.linspace(0, tokens - 1, 2).astype(int)
        arrays[f'{key}.merged'] = _levels(unified['pixel_values'][0][merged])
        found.append({'height': height, 'width': width, 'budget': budget, 'tokens': tokens,
                      'columns': columns, 'rows': rows, 'patches': wanted.tolist(),
                      'places': places[wanted].tolist(), 'merged': merged.tolist(),
                      'merged_places': unified['image_position_ids'][0][merged].tolist()})
    return found


def build(name: str) -> torch.nn.Module:
    """A tiny model of the reference with counter weights, in float64."""
    raw = cases.CONFIGS[name]
    unified = raw['model_type'] == 'gemma4_unified'
    text = {key: value for key, value in raw['text_config'].items() if key != 'model_type'}
    vision = {key: value for key, value in raw['vision_config'].items() if key not in (
        'model_type', 'default_output_length', 'num_soft_tokens')}
    config_class = Gemma4UnifiedConfig if unified else Gemma4Config
    model_class = (Gemma4UnifiedForConditionalGeneration if unified
                   else Gemma4ForConditionalGeneration)
    config = config_class(text_config=text, vision_config=vision, audio_config=None, **cases.IDS)
    model = model_class(config).double().eval()
    model.set_attn_implementation('eager')
    if text.get('enable_moe_block'):
        model.set_experts_implementation('eager')
    state = reference_state(ModelConfig.from_dict(raw), 'model.language_model.', np.float64)
    state['lm_head.weight'] = state['model.language_model.embed_tokens.weight']
    for key, value in cases.vision_tensors(raw).items():
        if unified:                      # as the reference renames them at load
            key = key.replace('embed_vision.', 'embed_vision.multimodal_embedder.')
            key = key.replace('vision_embedder.', 'embed_vision.')
        state[key] = torch.from_numpy(value.astype(np.float64))
    missing, unexpected = model.load_state_dict(state, strict=False)
    if missing or unexpected:
        raise SystemExit(f'weights do not fit: missing {missing}, unexpected {unexpected}')
    scale = torch.tensor(text['hidden_size'] ** 0.5, dtype=torch.bfloat16).double()
    model.model.language_model.embed_tokens.embed_scale = scale
    inputs = text.get('hidden_size_per_layer_input')
    if inputs:
        scale = torch.tensor(inputs ** 0.5, dtype=torch.bfloat16).double()
        model.model.language_model.embed_tokens_per_layer.embed_scale = scale
    return model


@torch.no_grad()
def run(name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Soft tokens, layers and logits of one tiny model."""
    raw = cases.CONFIGS[name]
    side = 48 if raw['model_type'] == 'gemma4_unified' else 16
    prepared = [prepare_image(cases.picture(each, *cases.PICTURES[each]), cases.BUDGET, side)
                for each in cases.PROMPTS[name]]
    most = max(image.patches.shape[0] for image in prepared)
    pixels = np.zeros((len(prepared), most, prepared[0].patches.shape[1]))
    places = np.full((len(prepared), most, 2), -1)
    for index, image in enumerate(prepared):
        num = image.patches.shape[0]
        pixels[index, :num] = image.patches * (1 / 255)
        places[index, :num] = np.stack([np.arange(num) % image.columns,
                                        np.arange(num) // image.columns], axis=1)
    ids, starts = cases.prompt(name, [image.num_tokens for image in prepared])
    token_ids, generated = torch.tensor([ids]), cases.generated(name)
    rows = sorted({0, 4, 5, len(ids) - 1, len(ids) - 2, *(
        start + offset for start, image in zip(starts, prepared, strict=True)
        for offset in (-1, 0, 1, image.num_tokens // 2, image.num_tokens - 1, image.num_tokens,
                       image.num_tokens + 1))})
    with _float64_everywhere():
        model = build(name)
        outputs: list[list[torch.Tensor]] = [[] for _ in model.model.language_model.layers]
        for layer, sink in zip(model.model.language_model.layers, outputs, strict=True):
            layer.register_forward_hook(
                lambda _module, _args, out, sink=sink: sink.append(out[0].clone()))
        values, where = torch.from_numpy(pixels), torch.from_numpy(places)
        features = model.model.get_image_features(values, where, return_dict=True).pooler_output
        cache = DynamicCache(config=model.config.get_text_config())
        logits = [model(input_ids=token_ids, pixel_values=values, image_position_ids=where,
                        mm_token_type_ids=(token_ids == cases.IDS['image_token_id']).long(),
                        past_key_values=cache, use_cache=True).logits[0]]
        logits += [model(input_ids=torch.tensor([[token]]), past_key_values=cache,
                         use_cache=True).logits[0] for token in generated]
    soft = torch.cat(tuple(features)).numpy()
    assert soft.dtype == np.float64
    wanted = [*rows, *range(len(ids), len(ids) + len(generated))]
    arrays[f'{name}.soft'] = soft
    arrays[f'{name}.layers'] = torch.stack([torch.cat(parts)[wanted] for parts in outputs]).numpy()
    arrays[f'{name}.logits'] = torch.cat(logits)[wanted].numpy()
    print(f'{name}: {len(ids)} tokens, soft {soft.shape}, rms {np.sqrt((soft ** 2).mean()):.2f}')
    return {'tokens': [image.num_tokens for image in prepared], 'rows': rows}


def main() -> None:
    """Make all of them."""
    torch.set_num_threads(1)
    folder = ROOT / 'test' / 'data' / 'goldens'
    arrays: dict[str, np.ndarray] = {}
    record = {
        'made_by': 'scripts/make_vision_goldens.py', 'torch': torch.__version__,
        'torchvision': torchvision.__version__, 'transformers': transformers.__version__,
        'pillow': PIL.__version__, 'numpy': np.__version__, 'processors': processors(arrays),
        'models': {name: run(name, arrays) for name in cases.CONFIGS}}
    np.savez_compressed(folder / 'vision.npz', **arrays)
    (folder / 'vision.json').write_text(json.dumps(record, indent=1) + '\n')


if __name__ == '__main__':
    main()
