# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""rms(x; w) = x * (mean(x^2) + eps)^(-1/2) * w, alone, onto a residual, and as a sum of two.

The weight multiplies as it is (no 1 + w). Called around attention, MLP and experts and before the
head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.rounding import Array, Rounding, stored, stored_by_mlx
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.ops.shapes import check

MAX_OUTPUTS = 3                          # norms of one residual that a launch writes


def inverse_rms(x: Array, eps: float) -> Array:
    """(mean(x^2) + eps)^(-1/2) over the last axis: (..., H) -> (...).

    einsum runs along the row, in an order that depends on H alone.
    """
    mean: Array = np.einsum('...h,...h->...', x, x)
    mean /= x.shape[-1]
    mean += x.dtype.type(eps)
    np.sqrt(mean, out=mean)
    np.divide(x.dtype.type(1), mean, out=mean)
    return mean


def rms_norm_ref(out: Array, x: Array, weight: Array, eps: float,
                 rounding: Rounding = 'none') -> None:
    """Write out (T, H) from x (T, H) and weight (H,); 'device' rounds the result to bf16."""
    np.multiply(x, inverse_rms(x, eps)[..., None], out=out)
    out *= weight
    stored(out, rounding)


def rms_norm_add_ref(residual: Array, branch: Array, weight: Array, eps: float, scale: float,
                     *, scratch: Scratch, rounding: Rounding = 'none') -> None:
    """residual = (residual + rms(branch; weight)) * scale, all (T, H); 'mlx' alone rounds it.

    scale is the layer_scalar where the sum ends the layer, else 1.
    """
    normed = scratch.get('rms_norm_add', *branch.shape)
    rms_norm_ref(normed, branch, weight, eps)
    residual += stored_by_mlx(normed, rounding)
    stored_by_mlx(residual, rounding)
    if scale != 1.0:
        residual *= residual.dtype.type(scale)
        stored_by_mlx(residual, rounding)


def rms_norm_sum_ref(out: Array, a: Array, weight_a: Array, b: Array, weight_b: Array, eps: float,
                     *, scratch: Scratch, rounding: Rounding = 'none') -> None:
    """out = rms(a; weight_a) + rms(b; weight_b), all (T, H): dense MLP and experts meet here.

    'mlx' alone rounds: on a device the sum goes straight into another norm.
    """
    normed = scratch.get('rms_norm_sum', *b.shape)
    rms_norm_ref(out, a, weight_a, eps)
    rms_norm_ref(normed, b, weight_b, eps)
    stored_by_mlx(out, rounding)
    out += stored_by_mlx(normed, rounding)
    stored_by_mlx(out, rounding)


# On the device the residual x (T, H) is f32, what goes into a product bf16. Every launch ends with
# the norms of the residual that the next ops read: normed[i] (T, H) bf16 by weights[i] (H,) f32,
# up to MAX_OUTPUTS.

def rms_norm(normed: Sequence[Any], x: Any, weights: Sequence[Any], eps: float,
             stream: Any) -> None:
    """Enqueue normed[i] (T, H) bf16 = rms(x; weights[i]) of x (T, H) f32."""
    sizes = check('rms_norm', x=x)
    outs, norms = _outputs(normed, weights, sizes, x)
    _launch('rms_norm', sizes, (*outs, x, *norms, float(eps)), stream, outputs=len(normed))


def rms_norm_add(x: Any, normed: Sequence[Any], a: Any, weight_a: Any, weights: Sequence[Any],
                 eps: float, scale: float, stream: Any) -> None:
    """Enqueue x = (x + rms(a; weight_a)) * scale in place, then its norms; a bf16 or f32."""
    sizes = check('rms_norm_add', x=x, a=a, weight_a=weight_a)
    outs, norms = _outputs(normed, weights, sizes, x)
    _launch('rms_norm_add', sizes, (x, *outs, a, weight_a, *norms, float(eps), float(scale)),
            stream, outputs=len(normed), a_float=_is_float(a))


def rms_norm_sum(out: Any, a: Any, b: Any, weight_a: Any, weight_b: Any, eps: float, stream: Any,
                 experts: tuple[Any, Any] | None = None) -> None:
    """Enqueue out (T, H) f32 = rms(a; weight_a) + rms(b; weight_b).

    b (T, H) f32; with experts = (expert_ids (T, K) i32, expert_weights (T, K) f32) b is the
    experts' results (T, K, H) bf16, summed by weight first as moe_nvfp4_combine does.
    """
    sizes = check('rms_norm_sum', a=a, weight_a=weight_a, weight_b=weight_b)
    _launch('rms_norm_sum', sizes, (out, a, b, *_experts(b, experts, sizes), weight_a, weight_b,
                                    float(eps)),
            stream, a_float=_is_float(a), num_chosen=_chosen(experts))


def rms_norm_sum_add(x: Any, normed: Sequence[Any], a: Any, b: Any, weight_a: Any, weight_b: Any,
                     weight: Any, weights: Sequence[Any], eps: float, scale: float, stream: Any,
                     experts: tuple[Any, Any] | None = None) -> None:
    """Enqueue x = (x + rms(rms(a; weight_a) + rms(b; weight_b); weight)) * scale, then its norms.

    a, b and experts as in `rms_norm_sum`, or a (T, J, H) f32, J parts that are added in order and
    rounded to bf16; the sum itself is not written.
    """
    parts = a.shape[1] if len(a.shape) == 3 else 0
    sizes = check('rms_norm_parts' if parts else 'rms_norm_sum', a=a, weight_a=weight_a,
                  weight_b=weight_b)
    outs, norms = _outputs(normed, weights, sizes, x)
    _launch('rms_norm_sum_add', sizes,
            (x, *outs, a, b, *_experts(b, experts, sizes), weight_a, weight_b, weight, *norms,
             float(eps), float(scale)),
            stream, outputs=len(normed), a_float=_is_float(a), num_chosen=_chosen(experts),
            parts=parts)


def spec(entry: str, hidden_size: int, *, outputs: int = 0, a_float: bool = False,
         num_chosen: int = 0, parts: int = 0) -> KernelSpec:
    """What is compiled for H columns and a number of norms at the end."""
    assert hidden_size % 8 == 0 and hidden_size <= 8192, hidden_size
    assert outputs <= MAX_OUTPUTS, outputs
    return KernelSpec.of('rms_norm', entry, H=hidden_size, OUTPUTS=outputs, A_FLOAT=int(a_float),
                         CHOSEN=num_chosen, A_PARTS=parts)


def _launch(entry: str, sizes: dict[str, int], args: tuple[Any, ...], stream: Any,
            **constants: Any) -> None:
    kernel = device.compiled(spec(entry, sizes['H'], **constants))
    device.launch(kernel, (sizes['T'],), -(-sizes['H'] // 256) * 32, args, stream)


def _outputs(normed: Sequence[Any], weights: Sequence[Any], sizes: dict[str, int],
             unused: Any) -> tuple[list[Any], list[Any]]:
    # the entries take MAX_OUTPUTS pointers and look at the first ones only
    assert len(normed) == len(weights) <= MAX_OUTPUTS, (len(normed), len(weights))
    for out, weight in zip(normed, weights, strict=True):
        assert out.shape == (sizes['T'], sizes['H']) and weight.shape == (sizes['H'],)
        assert np.dtype(out.dtype) == np.uint16 and np.dtype(weight.dtype) == np.float32
    rest = [unused] * (MAX_OUTPUTS - len(normed))
    return [*normed, *rest], [*weights, *rest]


def _is_float(a: Any) -> bool:
    return bool(np.dtype(a.dtype) == np.float32)


def _chosen(experts: tuple[Any, Any] | None) -> int:
    return int(experts[0].shape[1]) if experts else 0


def _experts(b: Any, experts: tuple[Any, Any] | None, sizes: dict[str, int]) -> tuple[Any, Any]:
    if experts is None:
        assert b.shape == (sizes['T'], sizes['H']) and _is_float(b), (b.shape, b.dtype)
        return b, b
    check('experts_sum', sizes, results=b, expert_ids=experts[0], expert_weights=experts[1])
    return experts


def bytes_moved(num_tokens: int, hidden_size: int, num_arrays: int, element_bytes: int) -> int:
    """num_arrays rows of each token read or written, and the weight."""
    return (num_tokens * num_arrays + 1) * hidden_size * element_bytes
