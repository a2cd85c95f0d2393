# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Pixels to the patches that a vision part reads, as Gemma 4 was trained on them.

An image is scaled, up as well as down, to the largest size that keeps its ratio, fits the budget
of soft tokens and has sides of whole soft tokens. One soft token stands for 48 x 48 pixels: 3 x 3
patches of 16 x 16 in the towers, one patch of 48 x 48 in the 12B. Knows no file and no model.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from gemma_thor_ros.image.decode import Pixels

BUDGETS = (70, 140, 280, 560, 1120)      # soft tokens of an image at most
TOKEN_SIDE = 48                          # pixels


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """The patches of one image.

    patches (P, side * side * 3) uint8: row by row, in each patch (row, column, channel) order; a
    number x stands for x / 255. `columns`: patches in a row. `digest` names patches and shape.
    """

    patches: Pixels
    columns: int
    num_tokens: int
    digest: bytes


def target_size(height: int, width: int, budget: int) -> tuple[int, int]:
    """(height, width) to scale to, in pixels: multiples of 48, at most `budget` * 48 * 48 in all.

    A side that would become 0 gets one soft token, the other one as many as the ratio says.
    """
    scale = math.sqrt(budget * TOKEN_SIDE * TOKEN_SIDE / (height * width))
    rows = math.floor(scale * height / TOKEN_SIDE)
    columns = math.floor(scale * width / TOKEN_SIDE)
    # both can't be 0: the longer side has at least sqrt(budget) soft tokens
    if rows == 0:
        rows, columns = 1, min(width // height, budget)
    elif columns == 0:
        rows, columns = min(height // width, budget), 1
    return rows * TOKEN_SIDE, columns * TOKEN_SIDE


def resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """Bicubic with antialiasing, rounded to whole levels after each of its two passes.

    (H, W, 3) -> (height, width, 3) uint8. Pillow's, which is what the model's own processor uses
    where it has no torchvision.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image, np.uint8)


def patchify(pixels: Pixels, side: int) -> Pixels:
    """(H, W, 3) -> (H / side * W / side, side * side * 3), row by row."""
    height, width, channels = pixels.shape
    rows, columns = height // side, width // side
    patches = pixels.reshape(rows, side, columns, side, channels).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(patches.reshape(rows * columns, side * side * channels))


def prepare_image(pixels: Pixels, budget: int, side: int) -> PreparedImage:
    """The patches of an image (H, W, 3): `side` pixels each, for at most `budget` soft tokens."""
    assert budget in BUDGETS and TOKEN_SIDE % side == 0, (budget, side)
    height, width = target_size(pixels.shape[0], pixels.shape[1], budget)
    patches = patchify(resize(pixels, height, width), side)
    columns = width // side
    digest = hashlib.sha256(f'{side}:{columns}:'.encode())
    digest.update(patches.tobytes())
    return PreparedImage(patches, columns, height * width // TOKEN_SIDE ** 2, digest.digest())
