# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Engines on a scripted model for the tests of this folder; each is stopped at the test's end.

The helpers that recount an engine's books lie with the model tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.engine import Engine
from gemma_thor_ros.models.scripted import ScriptedModel
from gemma_thor_ros.schema import Request, SamplingParams

VOCAB_SIZE = 512
sys.path.append(str(Path(__file__).parents[2] / 'model'))


@pytest.fixture
def make_model() -> Callable[..., ScriptedModel]:
    """A model that answers a prompt with its ids plus 1, then 106; another script may be given."""
    def make(script: Callable[[tuple[int, ...]], list[int]] | None = None,
             **options: Any) -> ScriptedModel:
        options.setdefault('sliding_window', 8)
        return ScriptedModel(script or (lambda prompt: [i + 1 for i in prompt]), VOCAB_SIZE,
                             **options)
    return make


@pytest.fixture
def make_engine(make_model: Callable[..., ScriptedModel]) -> Iterator[Callable[..., Engine]]:
    """A started engine with small pages, all of whose freed pages are poisoned."""
    engines: list[Engine] = []

    def make(model: ScriptedModel | None = None, *, start: bool = True,
             **options: Any) -> Engine:
        settings = {'page_size': 4, 'num_sliding_pages': 200, 'num_full_pages': 400,
                    'max_sequences': 4, 'max_waiting': 64, 'prefill_chunk': 8,
                    'context_length': 256, 'max_rows': 2, **options}
        engine = Engine(model or make_model(), on_pages_freed=lambda geometry, pages:
                        engine.kv_cache.poison(geometry, pages), **settings)
        engines.append(engine)
        if start:
            engine.start()
        return engine

    yield make
    for engine in engines:
        assert engine.stop(10.0)
        stats = engine.stats()
        assert (stats.sliding_pages_used, stats.full_pages_used) == (0, 0), 'pages were leaked'


@pytest.fixture
def make_request() -> Callable[..., Request]:
    """Greedy requests with running ids; takes keywords of SamplingParams and of Request."""
    count = iter(range(10 ** 6))

    def make(prompt: tuple[int, ...] = (200, 201, 202), **fields: Any) -> Request:
        request = {name: fields.pop(name) for name in (
            'priority', 'choice', 'deadline_s', 'first_token_s', 'token_gap_s', 'guide')
            if name in fields}
        request_id = fields.pop('request_id', f'r{next(count)}')
        fields.setdefault('temperature', 0.0)
        fields.setdefault('max_tokens', 50)
        return Request(request_id, tuple(prompt), SamplingParams(**fields), **request)
    return make
