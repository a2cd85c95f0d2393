# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Our prompts against the reference template: text and token ids of every published vector."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_thor_ros.schema import RequestError
from gemma_thor_ros.text.prompt import render
from gemma_thor_ros.text.segments import encode_segments, segments_text
from gemma_thor_ros.text.tokenizer import Tokenizer

# Vectors that show what normalisation is for, so the default differs from the template there.
NORMALISED = {'11_tools_union_type', '26_tool_name_fallback'}


def rendered(case: dict[str, Any], **options: Any) -> Any:
    kwargs = {key: value for key, value in case['kwargs'].items() if key != 'bos_token'}
    return render(case['messages'], case['tools'], variant=case['id'].split('/')[1],
                  **kwargs, **options)


@pytest.mark.vectors('chat_vectors')
def test_text_is_the_templates(case: dict[str, Any]) -> None:
    text = segments_text(rendered(case, normalize=False))
    if case['rendered'] is None:
        assert case['expect_ours_contains'] in text
    else:
        assert text == case['rendered']


@pytest.mark.vectors('chat_vectors', key='token_ids')
def test_ids_are_the_references(case: dict[str, Any], real: Tokenizer) -> None:
    assert encode_segments(rendered(case, normalize=False), real) == case['token_ids']


@pytest.mark.vectors('chat_vectors')
def test_normalising_changes_nothing_in_clean_input(case: dict[str, Any]) -> None:
    name = case['id'].split('/')[0]
    if name == '26_tool_name_fallback':
        with pytest.raises(RequestError, match=r'messages\[2\].*zz.*no open call'):
            rendered(case)
        return
    text = segments_text(rendered(case))
    if case['rendered'] is None:
        assert case['expect_ours_contains'] in text
    else:
        assert (text == case['rendered']) == (name not in NORMALISED)


@pytest.mark.vectors('chat_vectors')
def test_markers_in_user_text_stay_text(case: dict[str, Any], real: Tokenizer) -> None:
    segments = rendered(case, normalize=False)
    placed = [real.control_id(segment.text) for segment in segments if segment.control]
    ids = encode_segments(segments, real)
    assert [token_id for token_id in ids if token_id in real.control_ids] == placed
    if case['id'].startswith('30_'):
        assert placed.count(real.controls.turn_end) == 1
        assert real.controls.quote not in placed
