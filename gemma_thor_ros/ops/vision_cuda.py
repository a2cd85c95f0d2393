# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""VisionOps of a CUDA device: one image, launch by launch on one stream.

Products are cuBLAS's where it is there and the weight is bf16, else our own kernels'. Memory
comes from CuPy's pool, so only a first image of its size allocates. Without cuBLAS, which CuPy
lets into no graph, the launches are one from the second image of one size in a row on. Knows no
order of ops.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import (
    device,
    geglu,
    gemm_affine,
    layer_norm,
    library_gemm,
    prefill_gemm,
    rms_norm,
    vision_attention,
    vision_patches,
)
from gemma_thor_ros.ops.affine_order import AffineFragments, AffineStack
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import Nvfp4Fragments
from gemma_thor_ros.ops.vision_table import Bounds, Work

_log = logging.getLogger(__name__)
_PLACES = 64                             # rope tables grow by so many


class Sizes(Protocol):
    """What the kernels of a vision part depend on, as models/vision_config has it."""

    @property
    def kind(self) -> str: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def text_hidden_size(self) -> int: ...
    @property
    def patch_side(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def standardize(self) -> bool: ...
    @property
    def use_clipped_linears(self) -> bool: ...


@dataclass(frozen=True)
class _Captured:
    """The launches of images of one size, and all memory that they use."""

    key: tuple[Any, ...]
    levels: Any                          # (P, M) u8, where the patches have to be
    soft: Any                            # (N, H) bf16
    graph: Any
    arrays: list[Any]


class CudaVisionOps:
    """The launches of one stream."""

    row_tile = 1                         # the kernels take any number of rows

    def __init__(self, stream: Any, library: bool = True, graphs: bool = True) -> None:
        """library False: our own kernels for all products, also where cuBLAS is there."""
        self.stream = stream
        self.library = library and not library_gemm.missing()
        self.graphs = graphs
        self.num_replays = 0
        self._captured: _Captured | None = None
        self._newest: tuple[Any, ...] = ()           # what the last image was
        self._arrays: list[Any] = []                 # that a graph under capture uses
        self._ropes: dict[tuple[float, int], tuple[Any, Any]] = {}
        self._ones: dict[int, Any] = {}

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Around one image: its memory belongs to the stream."""
        with device.errors(), self.stream:
            yield

    def image(self, patches: npt.NDArray[np.uint8], columns: int, work: Work) -> Any:
        """What work(patches, columns) gives, an array of its own; inside `scope`."""
        levels, key = device.put(patches), (patches.shape, columns, self.library)
        before, self._newest = self._newest, key
        captured, graphs = self._captured, self.graphs and not self.library
        if graphs and before == key and (captured is None or captured.key != key):
            captured = self._captured = self._capture(key, columns, work)
        if not graphs or captured is None or captured.key != key:
            soft = work(levels, columns)
            self._arrays.clear()
            return soft
        device.copy_on(captured.levels, levels, self.stream)
        captured.graph.launch(self.stream)
        device.end_overlap(self.stream)
        soft = device.empty(captured.soft.shape, np.uint16)
        device.copy_on(soft, captured.soft, self.stream)
        self.num_replays += 1
        return soft

    def _capture(self, key: tuple[Any, ...], columns: int, work: Work) -> _Captured | None:
        """The graph of an image of a size that has just been seen, so that tables are there.

        None where the device or its memory does not let it: then there are none from now on.
        """
        self.stream.synchronize()
        self._captured = None            # nothing of the last graph runs any more
        static, found = device.empty(key[0], np.uint8), []

        def enqueue() -> None:
            found.append(work(static, columns))

        try:
            graph = device.capture(self.stream, enqueue)
        except (RuntimeError, MemoryError) as error:
            _log.warning('images are launched one by one, since they give no graph: %s', error)
            self.graphs = False
            self._arrays.clear()
            return None
        arrays, self._arrays = self._arrays, []
        return _Captured(key, static, found[0], graph, arrays)

    def empty(self, *shape: int) -> Any:
        """bf16."""
        self._arrays.append(device.empty(shape, np.uint16))
        return self._arrays[-1]

    def wide(self, *shape: int) -> Any:
        """f32."""
        self._arrays.append(device.empty(shape, np.float32))
        return self._arrays[-1]

    def numbers(self, patches: Any, num_rows: int, centred: bool) -> Any:
        """(P, M) bf16 from patches (P, M) u8."""
        assert num_rows == patches.shape[0], (num_rows, patches.shape)
        out = self.empty(*patches.shape)
        vision_patches.vision_numbers(out, patches, centred, self.stream)
        return out

    def linear(self, out: Any, x: Any, weight: Any) -> None:
        """x W^T, rounded to bf16 also where `out` is wide."""
        wide = out.dtype == np.float32
        products = self.empty(*out.shape) if wide else out
        if isinstance(weight, Nvfp4Fragments):
            prefill_gemm.prefill_gemm(products, x, weight, self.stream)
        elif isinstance(weight, AffineFragments | AffineStack):
            gemm_affine.gemm_affine(products, x, weight, self.stream, prompt=True)
        elif self.library:
            library_gemm.library_gemm(products, x, weight, self.stream)
        else:
            prefill_gemm.prefill_gemm_bf16(products, x, weight, self.stream)
        if wide:
            vision_patches.vision_widen(out, products, self.stream)

    def clipped_linear(self, out: Any, x: Any, weight: Any, bounds: Bounds) -> None:
        """clip(clip(x) W^T); out (T, N) may be columns of a wider array."""
        held, products = self.empty(*x.shape), self.empty(*out.shape)
        vision_patches.vision_clip(held, x, *bounds[:2], self.stream)
        self.linear(products, held, weight)
        vision_patches.vision_clip(out, products, *bounds[2:], self.stream)

    def geglu(self, inner: Any, products: Any) -> None:
        """gelu_tanh(gate) * up."""
        geglu.geglu(inner, products, self.stream)

    def add_bias(self, x: Any, bias: Any) -> None:
        """x += bias."""
        vision_patches.vision_bias(x, bias, self.stream)

    def norm(self, out: Any, x: Any, weight: Any, eps: float) -> None:
        """rms(x; weight) of a wide x, or without a weight where it is None."""
        if weight is None:
            size = x.shape[1]
            if size not in self._ones:
                self._ones[size] = device.put(np.ones(size, np.float32))
            weight = self._ones[size]
        rms_norm.rms_norm((out,), x, (weight,), eps, self.stream)

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> None:
        """x = ln(x; weight, bias) in place."""
        layer_norm.layer_norm(x, weight, bias, eps, self.stream)

    def add_norms(self, residual: Any, outs: Sequence[Any], branch: Any, weight: Any,
                  weights: Sequence[Any], eps: float) -> None:
        """residual += rms(branch; weight), then its norms."""
        rms_norm.rms_norm_add(residual, outs, branch, weight, weights, eps, 1.0, self.stream)

    def add_positions(self, x: Any, x_table: Any, y_table: Any, columns: int) -> None:
        """x += the embeddings of each patch's place."""
        vision_patches.vision_positions(x, x_table, y_table, columns, self.stream)

    def rope(self, num_patches: int, columns: int, theta: float, head_dim: int) -> Any:
        """(columns, cos, sin), the tables (places, D / 4) long enough for both axes."""
        longest = max(columns, num_patches // columns)
        tables = self._ropes.get((theta, head_dim))
        if tables is None or tables[0].shape[0] < longest:
            count = -(-longest // _PLACES) * _PLACES
            cos, sin = vision_attention.axial_rope_table(count, count, theta, head_dim, np.float32)
            tables = device.put(cos[:, 0, 0]), device.put(sin[:, 0, 0])
            self._ropes[theta, head_dim] = tables
        return columns, *tables

    def turn_heads(self, qkv: Any, q_norm: Any, k_norm: Any, rope: Any, num_heads: int,
                   eps: float) -> None:
        """Norm and turn the heads in place."""
        columns, cos, sin = rope
        vision_attention.vision_heads(_heads(qkv, num_heads), q_norm, k_norm, cos, sin, columns,
                                      eps, self.stream)

    def attend_all(self, out: Any, qkv: Any, num_heads: int) -> None:
        """softmax(q k^T) v."""
        vision_attention.vision_attention(out.reshape(out.shape[0], num_heads, -1),
                                          _heads(qkv, num_heads), self.stream)

    def pool(self, out: Any, x: Any, columns: int, size: int, scale: float) -> None:
        """Means of blocks."""
        vision_patches.vision_pool(out, x, columns, size, scale, self.stream)

    def standardize(self, x: Any, bias: Any, scale: Any) -> None:
        """(x - bias) * scale in place."""
        vision_patches.vision_standardize(x, bias, scale, self.stream)


def unfit(sizes: Sizes) -> str:
    """Why the kernels can't run a vision part, or ''."""
    widths = {'hidden_size': sizes.hidden_size, 'intermediate_size': sizes.intermediate_size,
              'head_dim': sizes.head_dim, "the text model's hidden_size": sizes.text_hidden_size}
    odd = [f'{name} is {size}' for name, size in widths.items() if size % 8]
    if odd:
        return f'vision_config: {odd[0]}; the kernels take multiples of 8'
    if sizes.head_dim > 128 or sizes.hidden_size > 8192:
        return (f'vision_config: head_dim is {sizes.head_dim} and hidden_size '
                f'{sizes.hidden_size}; the kernels take at most 128 and 8,192')
    return ''


def vision_specs(sizes: Sizes) -> list[KernelSpec]:
    """The kernels that a vision part needs beside the text model's, with their constants."""
    hidden, pixels = sizes.hidden_size, 3 * sizes.patch_side ** 2
    tower = sizes.kind == 'tower'
    specs = [vision_patches.spec('vision_numbers', pixels, CENTRED=int(tower)),
             rms_norm.spec('rms_norm', hidden, outputs=1),
             *(vision_patches.spec(entry, hidden) for entry in ('vision_widen',
                                                                'vision_positions')),
             vision_patches.spec('vision_widen', sizes.text_hidden_size)]
    specs += [prefill_gemm.bf16_spec(tile) for tile in prefill_gemm.BF16_TILES]
    if not tower:
        return _once([*specs, vision_patches.spec('vision_bias', hidden),
                      layer_norm.spec(pixels, False), layer_norm.spec(hidden, True)])
    specs += [rms_norm.spec('rms_norm_add', hidden, outputs=count) for count in (0, 1)]
    specs += [geglu.spec(sizes.intermediate_size), vision_patches.spec('vision_pool', hidden),
              vision_attention.heads_spec(sizes.num_attention_heads, sizes.head_dim),
              vision_attention.attention_spec(sizes.num_attention_heads, sizes.head_dim)]
    if sizes.standardize:
        specs.append(vision_patches.spec('vision_standardize', hidden))
    if sizes.use_clipped_linears:
        specs += [vision_patches.spec('vision_clip', width) for width in (
            hidden, sizes.intermediate_size, sizes.num_attention_heads * sizes.head_dim)]
    return _once(specs)


def _once(specs: Iterable[KernelSpec]) -> list[KernelSpec]:
    return list(dict.fromkeys(specs))


def _heads(qkv: Any, num_heads: int) -> Any:
    return qkv.reshape(qkv.shape[0], 3, num_heads, -1)
