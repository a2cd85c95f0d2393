# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Make the demo model's tokenizer.json: 4,096 entries, ids below 512 as in the released vocabulary.

A blank, a digit and a punctuation mark are always tokens of their own, so that a name or a number has
the same tokens in the user's words and in a call's arguments. Run: python -m demo_model.train_tokenizer
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from demo_model.dialogue import draw_dialogue
from demo_model.phrasing import WORDS

VOCAB_SIZE = 4096
FIRST_FREE_ID = 512
NEWLINE_ID, NEWLINE_RUNS, BYTE_ID = 107, 31, 238
LOW = {
    0: '<pad>',
    1: '<eos>',
    2: '<bos>',
    3: '<unk>',
    4: '<mask>',
    5: '[multimodal]',
    46: '<|tool>',
    47: '<tool|>',
    48: '<|tool_call>',
    49: '<tool_call|>',
    50: '<|tool_response>',
    51: '<tool_response|>',
    52: '<|"|>',
    98: '<|think|>',
    100: '<|channel>',
    101: '<channel|>',
    105: '<|turn>',
    106: '<turn|>',
}
# Media tokens stand at the end of the table; config.json says where.
MEDIA = ('<|image>', '<|audio>', '<|image|>', '<|audio|>', '<image|>', '<audio|>', '<|video|>')
MEDIA_FIELDS = (
    'boi_token_id',
    'boa_token_id',
    'image_token_id',
    'audio_token_id',
    'eoi_token_id',
    'eoa_token_index',
    'video_token_id',
)
# fmt: off
ROLE_WORDS = (
    'system', 'user', 'model', 'thought', 'call', 'response', 'declaration', 'value', 'description', 'parameters',
    'properties', 'required', 'type', 'enum', 'items', 'nullable', 'OBJECT', 'STRING', 'NUMBER', 'BOOLEAN',
    'INTEGER', 'ARRAY', 'true', 'false', 'null', 'unknown', 'tool', 'developer', 'status', 'reason')
# fmt: on
_MORE = '\u2581\t°½¼¾πéèêàâäáöóüúíçñßøåæÄÖÜÉ–—…’‘“”€µ×'  # noqa: RUF001
_BASE = [chr(code) for code in range(33, 127)] + list(_MORE)


def _words(seed: int, dialogues: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    rng = random.Random(seed)
    for _ in range(dialogues):
        dialogue = draw_dialogue(rng)
        text = json.dumps(dialogue.tools, ensure_ascii=False) + json.dumps(
            dialogue.messages, ensure_ascii=False
        )
        counts.update(re.findall(r'[A-Za-z]+', text.replace('\\n', ' ').replace('\\"', ' ')))
    counts.update(WORDS)
    return counts


def train(seed: int = 1, dialogues: int = 30000) -> dict[str, Any]:
    """The tokenizer as a JSON object."""
    counts = _words(seed, dialogues)
    weights = {word: max(1, round(count**0.5)) for word, count in counts.items()}
    weights.update(dict.fromkeys(ROLE_WORDS, 5000))
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(Regex('[A-Za-z]+'), 'removed', invert=True)
    room = VOCAB_SIZE - FIRST_FREE_ID - len(_BASE) - len(MEDIA)
    letters = [chr(code) for code in range(33, 127) if chr(code).isalpha()]
    trainer = trainers.BpeTrainer(
        vocab_size=room + len(letters),
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    learner.train_from_iterator(([word] * weights[word] for word in sorted(weights)), trainer)
    learned = json.loads(learner.to_str())['model']['merges']
    vocab: dict[str, int] = {}
    for token_id in range(FIRST_FREE_ID):
        vocab[LOW.get(token_id, f'<unused{token_id}>')] = token_id
    for run in range(1, NEWLINE_RUNS + 1):
        del vocab[f'<unused{NEWLINE_ID + run - 1}>']
        vocab['\n' * run] = NEWLINE_ID + run - 1
    for value in range(256):
        del vocab[f'<unused{BYTE_ID + value}>']
        vocab[f'<0x{value:02X}>'] = BYTE_ID + value
    pieces = _BASE + [''.join(merge) for merge in learned]
    for index, piece in enumerate(pieces[: VOCAB_SIZE - FIRST_FREE_ID - len(MEDIA)]):
        vocab[piece] = FIRST_FREE_ID + index
    for index, text in enumerate(MEDIA):
        vocab[text] = VOCAB_SIZE - len(MEDIA) + index
    for token_id in sorted(set(range(VOCAB_SIZE)) - set(vocab.values())):
        vocab[f'<unused{token_id}>'] = token_id
    newlines = [['\n' * (run - run // 2), '\n' * (run // 2)] for run in range(2, NEWLINE_RUNS + 1)]
    return {
        'version': '1.0',
        'truncation': None,
        'padding': None,
        'added_tokens': [
            {
                'id': vocab[text],
                'content': text,
                'single_word': False,
                'lstrip': False,
                'rstrip': False,
                'normalized': False,
                'special': True,
            }
            for text in (*LOW.values(), *MEDIA)
        ],
        'normalizer': {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '\u2581'},
        'pre_tokenizer': None,
        'post_processor': None,
        'decoder': {
            'type': 'Sequence',
            'decoders': [
                {'type': 'Replace', 'pattern': {'String': '\u2581'}, 'content': ' '},
                {'type': 'ByteFallback'},
                {'type': 'Fuse'},
            ],
        },
        'model': {
            'type': 'BPE',
            'dropout': None,
            'unk_token': '<unk>',
            'continuing_subword_prefix': None,
            'end_of_word_suffix': None,
            'fuse_unk': True,
            'byte_fallback': True,
            'ignore_merges': False,
            'vocab': dict(sorted(vocab.items(), key=lambda item: item[1])),
            'merges': newlines + [list(merge) for merge in learned],
        },
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--out', type=Path, default=Path('gemma_thor_ros/demo/model/tokenizer.json')
    )
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(train(), ensure_ascii=False, indent=0) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
