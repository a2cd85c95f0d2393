# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Pixels to patches against the reference's processors (scripts/make_vision_goldens.py)."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.image import prepare
from gemma_thor_ros.image.prepare import BUDGETS, prepare_image, resize, target_size

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / 'test' / 'model'))

from vision_cases import picture  # noqa: E402

FOLDER = ROOT / 'test' / 'data' / 'goldens'
CASES: list[dict[str, Any]] = json.loads((FOLDER / 'vision.json').read_text())['processors']
NAMES = [f'{case["height"]}x{case["width"]}.{case["budget"]}' for case in CASES]


@pytest.fixture(scope='module')
def golden() -> dict[str, np.ndarray]:
    with np.load(FOLDER / 'vision.npz') as arrays:
        return {name: arrays[name] for name in arrays.files if name[0].isdigit()}


def prepared(case: dict[str, Any], side: int) -> prepare.PreparedImage:
    height, width = case['height'], case['width']
    return prepare_image(picture(f'{height}x{width}', height, width), case['budget'], side)


def close(ours: np.ndarray, theirs: np.ndarray, largest: float, mean: float) -> None:
    difference = np.abs(ours.astype(np.float64) - theirs)
    assert difference.max() <= largest and difference.mean() <= mean


@pytest.mark.parametrize(('case', 'name'), list(zip(CASES, NAMES, strict=True)), ids=NAMES)
def test_patches_of_a_tower(case: dict[str, Any], name: str,
                            golden: dict[str, np.ndarray]) -> None:
    image = prepared(case, 16)
    assert (image.num_tokens, image.columns) == (case['tokens'], case['columns'])
    assert image.patches.shape == (9 * case['tokens'], 768)
    ours = image.patches[case['patches']]
    assert (ours == golden[f'{name}.pillow']).all()
    # the reference's other form rounds its coefficients in another way
    close(ours, golden[f'{name}.torchvision'], 2, 0.01)
    # each of the two passes rounds and clips to whole levels: rounding once would give 0.25
    close(ours, np.clip(golden[f'{name}.exact'], 0, 255), 4, 0.35)
    for place, (column, row) in zip(case['patches'], case['places'], strict=True):
        assert (place % image.columns, place // image.columns) == (column, row)


@pytest.mark.parametrize(('case', 'name'), list(zip(CASES, NAMES, strict=True)), ids=NAMES)
def test_patches_of_the_embedder(case: dict[str, Any], name: str,
                                 golden: dict[str, np.ndarray]) -> None:
    image = prepared(case, 48)
    assert image.patches.shape == (image.num_tokens, 6912)
    close(image.patches[case['merged']], golden[f'{name}.merged'], 2, 0.01)
    for place, (column, row) in zip(case['merged'], case['merged_places'], strict=True):
        assert (place % image.columns, place // image.columns) == (column, row)


@pytest.mark.parametrize('wrong', ['nearest', 'columns first', 'no upscaling', 'channels first'])
def test_a_wrong_preparation_is_caught(wrong: str, golden: dict[str, np.ndarray],
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    case, name = CASES[2], NAMES[2]                      # 37 x 53, scaled up
    if wrong == 'nearest':
        monkeypatch.setattr(prepare, 'resize', lambda pixels, height, width: pixels[
            np.arange(height)[:, None] * pixels.shape[0] // height,
            np.arange(width)[None] * pixels.shape[1] // width])
    elif wrong == 'no upscaling':
        monkeypatch.setattr(prepare, 'target_size', lambda height, width, budget: (48, 48))
    elif wrong == 'columns first':
        right = prepare.patchify
        monkeypatch.setattr(prepare, 'patchify', lambda pixels, side: right(
            pixels.transpose(1, 0, 2), side))
    else:
        right = prepare.patchify
        monkeypatch.setattr(prepare, 'patchify', lambda pixels, side: right(pixels, side).reshape(
            -1, side * side, 3).transpose(0, 2, 1).reshape(-1, side * side * 3))
    image = prepared(case, 16)
    same = image.patches.shape[0] == 9 * case['tokens']
    assert not same or (image.patches[case['patches']] != golden[f'{name}.pillow']).any()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 20000), st.integers(1, 20000), st.sampled_from(BUDGETS))
def test_target_size_keeps_ratio_and_budget(height: int, width: int, budget: int) -> None:
    rows, columns = (side / 48 for side in target_size(height, width, budget))
    assert rows == int(rows) >= 1 and columns == int(columns) >= 1
    assert rows * columns <= budget
    if min(rows, columns) > 1:           # no side was cut by more than one soft token
        ideal = math.sqrt(budget * height / width), math.sqrt(budget * width / height)
        for side, wanted in zip((rows, columns), ideal, strict=True):
            # a whole number may come out a little lower, and be cut by one, as in the reference
            assert wanted - 1 - 1e-9 < side < wanted + 1e-9


def test_an_image_of_the_right_size_stays_as_it_is() -> None:
    pixels = picture('right', 480, 336)
    assert resize(pixels, 480, 336) is pixels
    patches = prepare_image(pixels, 70, 16).patches.reshape(30, 21, 16, 16, 3)
    assert (patches.transpose(0, 2, 1, 3, 4).reshape(480, 336, 3) == pixels).all()


def test_the_digest_names_patches_and_shape() -> None:
    flat = np.full((96, 96, 3), 7, np.uint8)
    first = prepare_image(flat, 70, 16)
    assert first.digest == prepare_image(flat.copy(), 70, 16).digest
    others = [prepare_image(flat, 70, 48), prepare_image(flat, 140, 16),
              prepare_image(flat[:, :48], 70, 16), prepare_image(flat[:48], 70, 16),
              prepare_image(flat + np.uint8(1), 70, 16)]
    assert len({first.digest, *(image.digest for image in others)}) == 6
