# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What submit refuses: the code, the field and the numbers in the sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gemma_thor_ros.engine import Engine
from gemma_thor_ros.models.scripted import ScriptedModel
from gemma_thor_ros.schema import ErrorCode, Request, RequestError

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., Request]
NAN, INF = float('nan'), float('inf')

BAD = [
    ({'prompt': ()}, 'prompt_ids', 'at least 1 token'),
    ({'prompt': (5, 512)}, 'prompt_ids', '512 is outside the vocabulary 0 to 511'),
    ({'prompt': (5, -1)}, 'prompt_ids', '-1 is outside'),
    ({'temperature': NAN}, 'temperature', 'nan'),
    ({'temperature': INF}, 'temperature', 'inf'),
    ({'temperature': -0.1}, 'temperature', 'at least 0 and finite'),
    ({'top_k': -1}, 'top_k', '-1'),
    ({'top_p': 1.01}, 'top_p', 'at least 0 and at most 1'),
    ({'top_p': NAN}, 'top_p', 'nan'),
    ({'min_p': -1.0}, 'min_p', '-1.0'),
    ({'repetition_penalty': 0.0}, 'repetition_penalty', '0.0'),
    ({'presence_penalty': NAN}, 'presence_penalty', 'nan'),
    ({'frequency_penalty': INF}, 'frequency_penalty', 'inf'),
    ({'max_tokens': 0}, 'max_tokens', 'at least 1'),
    ({'max_tokens': 5, 'min_tokens': 6}, 'min_tokens', 'at most 5'),
    ({'seed': 2 ** 64}, 'seed', str(2 ** 64)),
    ({'seed': -1}, 'seed', '-1'),
    ({'logprobs': 21}, 'logprobs', 'at most 20'),
    ({'logit_bias': ((600, 1.0),)}, 'logit_bias', '600'),
    ({'logit_bias': ((6, NAN),)}, 'logit_bias', 'nan'),
    ({'logit_bias': ((6, 200.0),)}, 'logit_bias', 'at most 100'),
    ({'stop_ids': (-2,)}, 'stop_ids', '-2'),
    ({'choice': -1}, 'choice', '-1'),
    ({'deadline_s': NAN}, 'deadline_s', 'nan'),
    ({'deadline_s': -1.0}, 'deadline_s', '-1.0'),
]


@pytest.mark.parametrize('fields, param, words', BAD)
def test_bad_fields(make_engine: MakeEngine, make_request: MakeRequest, fields: dict[str, Any],
                    param: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        make_engine().submit(make_request(**fields))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.param == param
    assert words in caught.value.message


def test_context_length_with_both_numbers(make_engine: MakeEngine, make_request: MakeRequest,
                                          ) -> None:
    engine = make_engine(context_length=64)
    with pytest.raises(RequestError, match=r'has 64 tokens; the context is 64') as caught:
        engine.submit(make_request(range(64), max_tokens=1))
    assert caught.value.code is ErrorCode.CONTEXT_LENGTH
    with pytest.raises(RequestError, match=r'60 tokens and max_tokens is 5, together 65; .* 64'):
        engine.submit(make_request(range(60), max_tokens=5))
    tokens, finish = engine.submit(make_request(range(60), max_tokens=4)).collect(10.0)
    assert tokens == [1, 2, 3, 4][:len(tokens)] and finish.code is ErrorCode.NONE


def test_memory_with_both_numbers(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(num_full_pages=10)
    with pytest.raises(RequestError, match=r'needs 11 full.* and 5 .*; the engine has 10 and 200'
                       ) as caught:
        engine.submit(make_request(range(2, 32), max_tokens=12))
    assert caught.value.code is ErrorCode.MEMORY
    engine.submit(make_request(range(2, 32), max_tokens=11)).collect(10.0)


def test_everything_suppressed_is_seen_at_submit(make_engine: MakeEngine,
                                                 make_request: MakeRequest) -> None:
    rest = tuple(i for i in range(512) if i not in (1, 50, 106))
    engine = make_engine(suppress_tokens=rest)
    with pytest.raises(RequestError, match='All 512 token ids are suppressed') as caught:
        engine.submit(make_request(min_tokens=1))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    tokens, _ = engine.submit(make_request()).collect(10.0)
    assert tokens == [1], 'equal logits among the three that are left: the lowest id'


def test_bad_engine_settings() -> None:
    model = ScriptedModel(lambda prompt: [], 512)
    with pytest.raises(ValueError, match='page_size is 0'):
        Engine(model, page_size=0, num_sliding_pages=1, num_full_pages=1, max_sequences=1,
               max_waiting=1, prefill_chunk=1, context_length=1)
