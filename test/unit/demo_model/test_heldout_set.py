# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The evaluation files come from the held-out half of the generator; a curve from its log."""

from __future__ import annotations

import json
import random
from xml.etree import ElementTree

import pytest

from demo_model.dialogue import draw_dialogue
from demo_model.heldout_set import COUNTS, rows
from demo_model.receipt import loss_svg
from gemma_thor_ros.demo.evaluation.cases import LIMITS, load_cases


def test_the_files_are_what_the_generator_writes() -> None:
    written = load_cases()
    assert set(COUNTS) | {'by_hand', 'by_hand_more', 'plain'} == set(LIMITS)
    for name in ('known', 'unseen_names_and_values', 'missing', 'after_failure'):
        for row, case in zip(rows({name: 4}), written[name], strict=False):
            assert row['messages'] == list(case.messages), name
            assert json.loads(json.dumps(row['tools'])) == list(case.tools)
            assert json.loads(json.dumps(row['expect'])) == case.expect


def test_no_held_out_sentence_is_trained_on() -> None:
    """Sentences of five words and more; shorter ones may be said by anybody."""
    held = {str(case.messages[-1]['content']) for cases in load_cases().values()
            for case in cases if case.messages[-1]['role'] == 'user' and case.row != 'long'}
    trained = set()
    for seed in range(400):
        for message in draw_dialogue(random.Random(f'train {seed}')).messages:
            if message['role'] == 'user':
                trained.add(str(message['content']))
    assert len(trained) > 500
    assert {text for text in trained & held if len(text.split()) >= 5} == set()


def test_the_curve_is_drawn_from_the_log() -> None:
    log = [{'seconds': 10.0 * i, 'loss': 4.0 / i, 'rounded': float(i > 5)} for i in range(1, 9)]
    root = ElementTree.fromstring(loss_svg(log))
    line = next(node for node in root if node.tag.endswith('polyline'))
    heights = [float(pair.split(',')[1]) for pair in line.attrib['points'].split()]
    assert len(heights) == 8
    assert heights == sorted(heights)            # a falling loss goes down the page
    assert any('NVFP4' in (node.text or '') for node in root)
    with pytest.raises(ValueError, match='two points'):
        loss_svg(log[:1])
