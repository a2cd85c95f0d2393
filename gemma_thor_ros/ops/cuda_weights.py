# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Stored weights -> what the CUDA ops read: packed ones in fragment order, others as they are.

Host memory stays at the buffers of `Upload`, whatever the model's size. Knows tensors, no files
and no names of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.affine_order import (
    AffineFragments,
    AffineStack,
    StoredAffine,
    to_affine,
)
from gemma_thor_ros.ops.cuda_table import AffineExperts, CudaExperts, CudaTable, KvScales
from gemma_thor_ros.ops.fragment_order import (
    Nvfp4Fragments,
    PackedMatrix,
    check_fit,
    to_fragments,
)
from gemma_thor_ros.ops.kv_append import fp8_scales
from gemma_thor_ros.ops.linear import StoredWeight, values
from gemma_thor_ros.ops.rounding import round_to_bf16
from gemma_thor_ros.ops.staging import Upload
from gemma_thor_ros.ops.table import Router
from gemma_thor_ros.schema import ConfigError

Array = npt.NDArray[Any]


@runtime_checkable
class MatrixStack(Protocol):
    """E equal NVFP4 matrices that lie apart."""

    @property
    def matrices(self) -> Sequence[PackedMatrix]: ...


@dataclass(frozen=True)
class _OnDevice:
    """An NVFP4 matrix, or E of them, as it was stored, on the device."""

    packed: Any
    group_scales: Any
    global_scale: Any


@runtime_checkable
class AffineMatrix(Protocol):
    """What the checkpoint reader gives: one MLX affine matrix (N, M), or E of them."""

    @property
    def words(self) -> npt.NDArray[np.uint32]: ...
    @property
    def scales(self) -> StoredWeight: ...
    @property
    def biases(self) -> StoredWeight: ...
    @property
    def bits(self) -> int: ...
    @property
    def group_size(self) -> int: ...


class DeviceLoader:
    """models/gemma4.Loader of a CUDA device; `finish` when all weights are in.

    quantize_head(table) gives the tied table in NVFP4; None: the head stays bf16.
    """

    def __init__(self, stream: Any, *, num_threads: int = 4,
                 quantize_head: Callable[[StoredWeight], PackedMatrix] | None = None) -> None:
        self._stream = stream
        self._upload = Upload(stream, num_threads)
        self._quantize_head = quantize_head
        self._unfit = device.zeros(1, np.uint32)
        self.has_dense_mlp = False       # some layer's gate and up do not interleave
        self.device_bytes = 0

    def finish(self) -> int:
        """Wait for the device; gives the bytes that went through the buffers.

        Raises ConfigError for scales that do not fit.
        """
        self._upload.close()
        self._stream.synchronize()
        check_fit(self._unfit)
        device.release_unused()
        return self._upload.num_bytes

    def vector(self, weight: StoredWeight) -> Any:
        """A norm or scale, f32."""
        return self._put(np.ascontiguousarray(values(weight, np.float32), np.float32))

    def linear(self, *parts: StoredWeight) -> Any:
        """One projection, or several that read the same rows, stacked."""
        if all(_is_packed(part) for part in parts):
            return self._fragments(parts, False)
        if all(isinstance(part, AffineMatrix) for part in parts):
            return self._affine(parts)
        return self._dense(parts)

    def gate_up(self, gate: StoredWeight, up: StoredWeight) -> Any:
        """gate and up of the dense MLP: interleaved, or stacked in bf16 or two affine widths."""
        if _is_packed(gate) and _is_packed(up):
            return self._fragments((gate, up), True)
        if isinstance(gate, AffineMatrix) and isinstance(up, AffineMatrix) and (
                _width(gate) == _width(up)):
            return self._affine_fragments((gate, up), True)
        self.has_dense_mlp = True
        return self.linear(gate, up)

    def head_norms(self, q_norm: StoredWeight, k_norm: StoredWeight, num_q_heads: int,
                   num_kv_heads: int) -> tuple[Any, Any]:
        """(D,) each."""
        return self.vector(q_norm), self.vector(k_norm)

    def kv_scales(self, k_norm: StoredWeight, num_kv_heads: int) -> KvScales:
        """(KV,) of k and of v, for an FP8 cache."""
        # float64 as on the CPU's oracle: a power of two either way
        scales = fp8_scales(values(k_norm, np.float32), num_kv_heads)
        wide = [np.asarray(scale, np.float32) for scale in scales]
        k, v, k_inverse, v_inverse = (self._put(array) for array in (
            *wide, *(np.float32(1) / array for array in wide)))
        return KvScales((k, v), (k_inverse, v_inverse))

    def router(self, scale: StoredWeight, proj: StoredWeight, per_expert_scale: StoredWeight,
               hidden_size: int) -> Router:
        """The router; H^(-1/2) joins the scale in float64, so that it rounds once."""
        wide = values(scale, np.float64) * hidden_size ** -0.5
        rows = (self._put(bf16_parts(values(proj, np.float32)))
                if isinstance(proj, AffineMatrix) else self._dense((proj,)))
        return Router(self._put(wide.astype(np.float32)), rows,
                      self.vector(per_expert_scale))

    def experts(self, gate: StoredWeight, up: StoredWeight,
                down: StoredWeight) -> CudaExperts | AffineExperts:
        """All experts of one layer."""
        affine = [part for part in (gate, up, down) if isinstance(part, AffineMatrix)]
        if len(affine) == 3:
            if _width(affine[0]) != _width(affine[1]):
                raise ConfigError('gate and up of experts have {} bits in groups of {} and {} in '
                                  'groups of {}; CUDA takes them alike alone'.format(
                                      *_width(affine[0]), *_width(affine[1])))
            return AffineExperts(self._affine_fragments(affine[:2], True),
                                 self._affine_fragments(affine[2:], False))
        if not all(_is_packed(part) for part in (gate, up, down)):
            raise ConfigError('experts in bf16 do not run on CUDA: `gemma-thor quantize` makes an '
                              'NVFP4 checkpoint of them')
        return CudaExperts(self._fragments((gate, up), True), self._fragments((down,), False))

    def table(self, weight: StoredWeight) -> CudaTable:
        """The tied embedding table, and the head where it is to be NVFP4: not of an affine one."""
        if isinstance(weight, AffineMatrix):
            made = self._affine_fragments((weight,), False)
            return CudaTable(made, made)
        rows = self._dense((weight,))
        if self._quantize_head is None:
            return CudaTable(rows, None)
        return CudaTable(rows, self._fragments((self._quantize_head(weight),), False))

    def _put(self, array: Array) -> Any:
        placed = device.put(array)
        self.device_bytes += array.nbytes
        return placed

    def _fragments(self, parts: Sequence[Any], interleaved: bool) -> Nvfp4Fragments:
        with self._stream:
            made = to_fragments([self._raw(part) for part in parts], interleaved=interleaved,
                                stream=self._stream, unfit=self._unfit)
        self.device_bytes += made.nbytes
        return made

    def _affine(self, parts: Sequence[Any]) -> AffineFragments | AffineStack:
        """Matrices stacked by rows, those of one width in one."""
        made = [self._affine_fragments(list(alike), False) for _, alike in groupby(parts, _width)]
        return made[0] if len(made) == 1 else AffineStack(tuple(made))

    def _affine_fragments(self, parts: Sequence[AffineMatrix],
                          interleaved: bool) -> AffineFragments:
        with self._stream:
            made = to_affine([self._raw_affine(part) for part in parts], interleaved=interleaved,
                             stream=self._stream)
        self.device_bytes += made.nbytes
        return made

    def _raw_affine(self, part: AffineMatrix) -> StoredAffine:
        scales, biases = _bf16_bits(part.scales), _bf16_bits(part.biases)
        if device.is_here(part.words):
            return StoredAffine(part.words, scales, biases, part.bits, part.group_size)
        words, scales, biases = (self._copied([array], array.shape)
                                 for array in (part.words, scales, biases))
        return StoredAffine(words, scales, biases, part.bits, part.group_size)

    def _raw(self, part: Any) -> _OnDevice:
        """The stored arrays on the device; memory that is used again after the next launch."""
        if isinstance(part, MatrixStack):
            matrices = part.matrices
            scale = np.array([matrix.global_scale for matrix in matrices], np.float32)
            return _OnDevice(self._stacked([matrix.packed for matrix in matrices]),
                             self._stacked([matrix.group_scales for matrix in matrices]), scale)
        if device.is_here(part.packed):
            return _OnDevice(part.packed, part.group_scales, part.global_scale)
        return _OnDevice(self._copied([part.packed], part.packed.shape),
                         self._copied([part.group_scales], part.group_scales.shape),
                         part.global_scale)

    def _stacked(self, arrays: list[Array]) -> Any:
        shapes = {array.shape for array in arrays}
        assert len(shapes) == 1, shapes
        return self._copied(arrays, (len(arrays), *shapes.pop()))

    def _copied(self, pieces: Sequence[Array], shape: tuple[int, ...]) -> Any:
        target = device.empty(shape, pieces[0].dtype)
        self._upload.copy(target, pieces)
        return target

    def _dense(self, parts: Sequence[StoredWeight]) -> Any:
        """(N, M) bf16 of matrices stacked by rows."""
        if len({_form(part) for part in parts}) > 1:
            raise ConfigError('projections that read the same rows must be stored alike; found '
                              + ' and '.join(_form(part) for part in parts))
        found = [_bf16_bits(part) for part in parts]
        if device.is_here(found[0]):
            with self._stream:
                return found[0] if len(found) == 1 else device.cupy().concatenate(found)
        with self._stream:
            target = self._copied(found, (sum(bits.shape[0] for bits in found),
                                          found[0].shape[1]))
        self.device_bytes += target.nbytes
        return target


def _is_packed(weight: Any) -> bool:
    return isinstance(weight, MatrixStack) or hasattr(weight, 'packed')


def _width(part: AffineMatrix) -> tuple[int, int]:
    return part.bits, part.group_size


def _form(part: Any) -> str:
    return ('NVFP4' if _is_packed(part) else 'MLX affine' if isinstance(part, AffineMatrix)
            else 'bf16')


def bf16_parts(numbers: Array) -> Array:
    """Bits (parts, ...) of the fewest bf16 numbers whose sums float32 numbers are, at most 3."""
    parts: list[Array] = []
    rest = np.array(numbers, np.float32)
    while len(parts) < 3 and (not parts or rest.any()):
        part = round_to_bf16(rest.copy())
        parts.append((part.view(np.uint32) >> 16).astype(np.uint16))
        rest -= part                     # exact: 24 bits are three times 8
    return np.stack(parts)


def _bf16_bits(weight: Any) -> Any:
    """The bits of a dense weight; raises ConfigError for numbers that bf16 does not hold."""
    data = getattr(weight, 'data', None)
    if data is not None and data.dtype == np.uint16:
        return data
    single = np.ascontiguousarray(values(weight, np.float32), np.float32)
    rounded = round_to_bf16(single.copy())
    if not np.array_equal(rounded, single):
        raise ConfigError(f'a matrix of shape {single.shape} has float32 values that bf16 does '
                          'not hold; matrices on CUDA are bf16 or NVFP4')
    return (rounded.view(np.uint32) >> 16).astype(np.uint16)
