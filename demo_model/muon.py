# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Muon for the matrices of small models: momentum whose singular values are made equal.

K. Jordan and others, 2024 (kellerjordan.github.io/posts/muon); the update has the size of AdamW's
(J. Liu and others, 2025, arXiv 2502.16982), so that one rate does for both. Vectors and tables are
AdamW's.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_ITERATION = (3.4445, -4.7750, 2.0315)   # of Newton and Schulz, Jordan's coefficients
_SIZE = 0.2                              # root mean square of an update, as AdamW's


def orthogonal(matrices: Tensor, rounds: int = 5) -> Tensor:
    """(n, rows, columns) -> the same singular vectors, all singular values near 1."""
    a, b, c = _ITERATION
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(rounds):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon:
    """Steps matrices of a model; those of one shape at once."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], momentum: float = 0.95, decay: float = 0.05
    ) -> None:
        self._shapes: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for matrix in matrices:
            self._shapes.setdefault(tuple(matrix.shape), []).append(matrix)
        self._momenta = {
            shape: torch.zeros((len(group), *shape), device=group[0].device)
            for shape, group in self._shapes.items()
        }
        self._momentum = momentum
        self._decay = decay

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def step(self, rate: float) -> None:
        """One update from the gradients."""
        for shape, group in self._shapes.items():
            gradient = torch.stack([matrix.grad for matrix in group])
            momentum = self._momenta[shape].lerp_(gradient, 1 - self._momentum)
            update = orthogonal(gradient.lerp(momentum, self._momentum))
            update = update * (-rate * _SIZE * max(shape) ** 0.5)
            live = [matrix.data for matrix in group]
            torch._foreach_mul_(live, 1 - rate * self._decay)
            torch._foreach_add_(live, list(update.unbind()))
