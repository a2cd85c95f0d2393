# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""NVFP4 rounding inside training: the forward pass sees the weights as the exported file will hold them.

Same values as gemma_thor_ros/weights/quantize.py in the compressed-tensors form (a test compares), in
torch and for all matrices at once. Gradients pass as if nothing had been rounded.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

GROUP = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
_EMPTY_SCALE = 0.125
# Matrices of one input share a global scale, as the exporter has them.
_GROUPS = (
    ('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj'),
    ('self_attn.o_proj',),
    ('mlp.gate_proj', 'mlp.up_proj'),
    ('mlp.down_proj',),
    ('experts.gate_proj', 'experts.up_proj'),
    ('experts.down_proj',),
)


def _e2m1(x: Tensor) -> Tensor:
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with x's sign; ties to the even code."""
    size = x.abs().clamp(max=E2M1_MAX)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.copysign((size / step).round() * step, x)


class FakeNvfp4:
    """Rounds a model's linears and experts; the order of the matrices is fixed at the start."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.names: list[str] = []
        owner: list[int] = []
        count = 0
        layers = sorted({name.split('.')[1] for name in parameters if name.startswith('layers.')})
        for layer in layers:
            for group in _GROUPS:
                present = [f'layers.{layer}.{kind}' for kind in group]
                present = [name for name in present if name in parameters]
                experts = parameters[present[0]].shape[0] if parameters[present[0]].ndim == 3 else 1
                for name in present:
                    self.names.append(name)
                    rows = parameters[name].numel() // GROUP // experts
                    for expert in range(experts):
                        owner += [count + expert] * rows
                count += experts
        device = next(iter(parameters.values())).device
        self._owner = torch.tensor(owner, device=device)       # group of 16 -> global scale
        self._count = count
        self._known = frozenset(self.names)

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def rounded(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The values that the exported matrices decode to; in the checkpoint they are bf16 first."""
        flat = torch.cat([parameters[name].detach().flatten() for name in self.names])
        groups = flat.bfloat16().float().view(-1, GROUP)
        largest = groups.abs().amax(1)
        top = torch.zeros(self._count, device=flat.device).scatter_reduce(
            0, self._owner, largest, 'amax')
        divisor = torch.where(top > 0, E2M1_MAX * E4M3_MAX / top, 1.0)[self._owner]
        wanted = (largest / E2M1_MAX * divisor).clamp(max=E4M3_MAX)
        scale = wanted.to(torch.float8_e4m3fn).float()
        scale = torch.where(scale == 0, _EMPTY_SCALE, scale)
        steps = (scale / divisor)[:, None]
        values = (_e2m1(groups / steps) * steps).flatten()
        out = {}
        start = 0
        for name in self.names:
            size = parameters[name].numel()
            out[name] = values[start : start + size].view_as(parameters[name])
            start += size
        return out

    def weights(self, parameters: Mapping[str, Tensor], on: bool) -> dict[str, Tensor]:
        """All parameters, the matrices rounded when on; the gradient goes to the unrounded ones.

        Off, they are copies: the compiled pieces see the same kinds of tensors and stay as they are.
        """
        rounded = self.rounded(parameters) if on else {}
        out = {}
        for name, value in parameters.items():
            shift = (rounded[name] - value).detach() if name in rounded else 0.0
            out[name] = value + shift if name in self._known else value
        return out
