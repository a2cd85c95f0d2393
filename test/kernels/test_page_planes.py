# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Pages of the CUDA path as bytes: out of one model's cache, into other pages of another's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from host_device import HostStream

from gemma_thor_ros.models.batch import Role
from gemma_thor_ros.models.config import FULL, SLIDING

from .test_cuda_model import PAGE, Rig, batch, logits_of, stream, table

__all__ = ['stream']                     # the fixture


@pytest.mark.parametrize('kv_dtype', ['fp8', 'bf16'])
def test_a_copied_prefix_has_the_bits_of_the_first(
        kv_dtype: str, stream: Any, request: pytest.FixtureRequest) -> None:
    if kv_dtype == 'bf16':
        request.getfixturevalue('full')
    first, second = Rig('dense', stream, kv_dtype), Rig('dense', stream, kv_dtype)
    logits_of(first, batch((Role.PREFILL, 0, 0, PAGE), wanted=[]))
    turn = batch((Role.PREFILL, 0, PAGE, 2), wanted=[1])
    expected, = logits_of(first, turn)
    planes, others = first.cache.planes(), second.cache.planes()
    assert planes.stream is stream and planes.layout == others.layout
    page, target = int(table(0)[0]), int(table(2)[0])
    copies = stream.num_copies if isinstance(stream, HostStream) else 0
    for kind in (SLIDING, FULL):
        data = np.zeros((1, planes.page_bytes(kind)), np.uint8)
        planes.read(kind, [page], data)
        assert data.any()
        others.write(kind, [target], data)
    if isinstance(stream, HostStream):   # K and V of a layer of each kind, out and in
        assert stream.num_copies - copies == 2 * 2 * 2
    moved = dataclasses.replace(turn, spans=tuple(
        dataclasses.replace(span, sliding_pages=table(2), full_pages=table(2))
        for span in turn.spans))
    assert np.array_equal(logits_of(second, moved)[0], expected)
    # planted: the page of a geometry that is left out shows
    others.write(FULL, [target], np.zeros((1, planes.page_bytes(FULL)), np.uint8))
    assert not np.array_equal(logits_of(second, moved)[0], expected)
