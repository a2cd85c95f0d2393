# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Float weights to NVFP4: nearest code, in the scale conventions of the two on-disk forms.

Knows arrays only. Which modules of a checkpoint are quantised is decided in convert.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.weights.canonical import GROUP_SIZE, DenseWeight, Nvfp4Weight
from gemma_thor_ros.weights.number_formats import (
    E2M1_MAX,
    E2M1_VALUES,
    E4M3_MAX,
    E4M3_MIN,
    E4M3_VALUES,
    Bytes,
    bf16_to_float32,
    encode_e2m1,
    encode_e4m3,
    pack_e2m1,
)

_SCALE_RANGE = np.float32(E2M1_MAX * E4M3_MAX)           # 2688: the largest code times scale
_CHUNK_VALUES = 1 << 17                                  # float32 working set that stays in cache
_E2M1 = E2M1_VALUES.astype(np.float32)
_E4M3 = E4M3_VALUES.astype(np.float32)


class Convention(Enum):
    """How a checkpoint stores the scales."""

    COMPRESSED_TENSORS = 'compressed-tensors'        # global scale is a divisor, 2688 / amax
    MODELOPT = 'modelopt'                # global scale is a multiplier, amax / 2688


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """One matrix as it is stored: packed (N, M/2), group_scales (N, M/16) and the global scale.

    `stored_scale` is in the file's own convention: a divisor for compressed-tensors.
    """

    packed: Bytes
    group_scales: Bytes
    stored_scale: np.float32
    convention: Convention
    squared_error: float                                 # sum over the matrix of (w - decoded)^2
    squared_sum: float                                   # sum of w^2

    @property
    def weight(self) -> Nvfp4Weight:
        """The canonical weight, with the multiplier that readers use."""
        multiplier = to_multiplier(self.stored_scale, self.convention)
        return Nvfp4Weight(self.packed, self.group_scales, np.asarray(multiplier))


def to_multiplier(stored_scale: np.float32, convention: Convention) -> np.float32:
    """The multiplier of a stored global scale: a divisor becomes float32(1 / divisor)."""
    if convention is Convention.MODELOPT:
        return stored_scale
    return np.float32(1.0) / stored_scale


def stored_scale_for(amax: float, convention: Convention) -> np.float32:
    """The global scale to store for a largest magnitude; 1 where it would leave float32."""
    with np.errstate(divide='ignore', over='ignore', under='ignore'):
        if convention is Convention.MODELOPT:
            scale = np.float32(amax) / _SCALE_RANGE
        else:
            scale = _SCALE_RANGE / np.float32(amax)
    return scale if np.isfinite(scale) and scale > 0 else np.float32(1.0)


def quantize_matrix(values: npt.NDArray[Any] | DenseWeight, convention: Convention,
                    amax: float | None = None) -> QuantizedTensor:
    """Quantise (N, M) values, M a multiple of 16; rounding is to the nearest, ties to even code.

    `amax` overrides the largest magnitude, so that matrices that are multiplied together can share
    one global scale; it must not be below the true one. Raises ValueError when M is no multiple of
    16 or a value is not finite. Where a group's scale is a normal e4m3 number, quantising decoded
    values again gives the same codes; a group 28,672 times weaker than the strongest is below
    that, and may lose a step.
    """
    rows, columns = values.shape
    if columns % GROUP_SIZE:
        raise ValueError(f'{columns} input features are no multiple of {GROUP_SIZE}')
    amax = largest_magnitude(values) if amax is None else amax
    if not np.isfinite(amax):
        raise ValueError('holds NaN or infinite values')
    stored = stored_scale_for(amax, convention)
    packed = np.empty((rows, columns // 2), np.uint8)
    scales = np.empty((rows, columns // GROUP_SIZE), np.uint8)
    error = total = 0.0
    step = max(1, _CHUNK_VALUES // columns)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        chunk = _float32(values[part])
        packed[part], scales[part], lost = _quantize_chunk(chunk, stored, convention)
        error += lost
        total += float(np.vdot(chunk, chunk))
    return QuantizedTensor(packed, scales, stored, convention, error, total)


def quantize_nvfp4(values: npt.NDArray[Any] | DenseWeight,
                   convention: Convention = Convention.MODELOPT) -> Nvfp4Weight:
    """Canonical NVFP4 of (N, M), or of (E, N, M) with one global scale per expert."""
    if len(values.shape) == 2:
        return quantize_matrix(values, convention).weight
    return stack_experts([quantize_matrix(values[index], convention).weight
                          for index in range(values.shape[0])])


def stack_experts(experts: list[Nvfp4Weight]) -> Nvfp4Weight:
    """One (E, N, M) weight from E matrices; copies."""
    return Nvfp4Weight(np.stack([expert.packed for expert in experts]),
                       np.stack([expert.group_scales for expert in experts]),
                       np.array([expert.global_scale for expert in experts], np.float32))


def largest_magnitude(values: npt.NDArray[Any] | DenseWeight) -> float:
    """Max |value|; not finite when any value is not."""
    if isinstance(values, DenseWeight):
        if values.kind == 'bf16':        # bits without the sign are ordered as the magnitudes are
            largest = (values.data & np.uint16(0x7FFF)).max(keepdims=True)
            return float(bf16_to_float32(largest).item())
        values = values.data
    return float(np.maximum(values.max(), -values.min()))


def _float32(values: npt.NDArray[Any] | DenseWeight) -> npt.NDArray[np.float32]:
    dense = values.to_float() if isinstance(values, DenseWeight) else values
    return np.asarray(dense, np.float32)


def _quantize_chunk(values: npt.NDArray[np.float32], stored: np.float32,
                    convention: Convention) -> tuple[Bytes, Bytes, float]:
    """Packed codes, scale codes, and the squared error, of some rows."""
    groups = values.reshape(values.shape[0], -1, GROUP_SIZE)
    group_max = np.maximum(groups.max(axis=-1), -groups.min(axis=-1))
    with np.errstate(under='ignore'):
        if convention is Convention.MODELOPT:
            wanted = group_max / (np.float32(E2M1_MAX) * stored)
            wanted = np.where(group_max == 0, np.float32(1.0),
                              np.maximum(wanted, np.float32(E4M3_MIN)))
            scales = encode_e4m3(wanted)
            steps = _E4M3[scales] * stored
        else:
            scales = encode_e4m3(group_max / np.float32(E2M1_MAX) * stored)
            scales[scales == 0] = 0x20   # 0.125: what this form stores for an empty group
            steps = _E4M3[scales] / stored
        codes = encode_e2m1(groups / steps[..., None])
        lost = groups - _E2M1[codes] * steps[..., None]
    packed = pack_e2m1(codes).reshape(values.shape[0], -1)
    return packed, scales, float(np.vdot(lost, lost))
