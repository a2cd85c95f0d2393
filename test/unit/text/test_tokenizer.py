# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Loading tokenizer files, sound and unfit ones, and the incremental detokenizer."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from gemma_thor_ros.schema import ConfigError, ErrorCode, RequestError
from gemma_thor_ros.text.controls import CORE, MEDIA
from gemma_thor_ros.text.detokenize import Detokenizer
from gemma_thor_ros.text.segments import Segment, encode_segments, join_text, split_markers
from gemma_thor_ros.text.tokenizer import Tokenizer

Change = Callable[[dict[str, Any]], None]


def changed(tiny_file: Path, tmp_path: Path, change: Change) -> Path:
    document = json.loads(tiny_file.read_text(encoding='utf-8'))
    change(document)
    path = tmp_path / 'tokenizer.json'
    path.write_text(json.dumps(document), encoding='utf-8')
    return path


def test_real_vocabulary(real: Tokenizer) -> None:
    assert real.vocab_size == 262144
    texts = dict(CORE.values())
    texts.update((text, token_id) for text, token_id, _ in MEDIA.values())
    assert real.controls.by_text() == texts
    assert real.controls.stop_ids == {1, 106, 50}
    for word, token_id in (('system', 9731), ('user', 2364), ('model', 4368), ('thought', 45518),
                           ('call', 6639), (':', 236787), ('{', 236782), ('}', 236783)):
        assert real.encode(word) == [token_id]


def test_small_vocabulary_has_its_own_media_ids(tiny: Tokenizer) -> None:
    assert (tiny.controls.image, tiny.controls.image_begin, tiny.controls.video) == (200, 201, 204)
    assert tiny.controls.audio_end == -1
    assert tiny.control_id('<|image|>') == 200
    with pytest.raises(RequestError, match=r'no <audio\|> token') as caught:
        encode_segments([Segment('<audio|>', True)], tiny)
    assert caught.value.code is ErrorCode.UNSUPPORTED


def without(text: str) -> Change:
    def change(document: dict[str, Any]) -> None:
        token_id = document['model']['vocab'].pop(text)
        document['model']['vocab'][f'<gone{token_id}>'] = token_id
    return change


def swapped(document: dict[str, Any]) -> None:
    vocab = document['model']['vocab']
    vocab['<|turn>'], vocab['<turn|>'] = vocab['<turn|>'], vocab['<|turn>']


def mergeable(document: dict[str, Any]) -> None:
    vocab = document['model']['vocab']
    merges = [[',', 'eos']]
    for before, after in (('<', 'e'), ('<e', 'o'), ('<eo', 's'), ('<eos', '>')):
        vocab.setdefault(before + after, max(vocab.values()) + 1)
        merges.append([before, after])
    document['model']['merges'] = merges[1:] + document['model']['merges']


@pytest.mark.parametrize(('change', 'message'), [
    (without('<|turn>'), r'<\|turn> is missing, expected id 105'),
    (without('<0x0A>'), 'byte token <0x0A> is missing'),
    (swapped, r'<\|turn> is id 106, expected id 105'),
    (lambda document: document['model'].update(byte_fallback=False), 'byte_fallback'),
    (lambda document: document['model'].update(ignore_merges=True), 'ignore_merges'),
    (mergeable, 'merges of this tokenizer can make control tokens'),
    (lambda document: document.update(normalizer={'type': 'Lowercase'}), 'not kept by encode'),
    (lambda document: document.update(model={
        'type': 'WordLevel', 'vocab': {'a': 0}, 'unk_token': 'a'}), 'found WordLevel'),
    (lambda document: document.pop('model'), 'not a readable tokenizer file'),
])
def test_unfit_file_is_refused(tiny_file: Path, tmp_path: Path, change: Change,
                               message: str) -> None:
    path = changed(tiny_file, tmp_path, change)
    with pytest.raises(ConfigError, match=message):
        Tokenizer.from_file(path)


def test_missing_file_and_config(tiny_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='no such tokenizer file'):
        Tokenizer.from_file(tmp_path / 'nothing.json')
    with pytest.raises(ConfigError, match=r'<\|image\|> is id 200, config.json says 7'):
        Tokenizer.from_file(tiny_file, {'image_token_id': 7})
    folder = tmp_path / 'model'
    folder.mkdir()
    (folder / 'tokenizer.json').write_text(tiny_file.read_text(encoding='utf-8'))
    assert Tokenizer.from_folder(folder).controls.image == 200
    for broken in ('{', '[]'):
        (folder / 'config.json').write_text(broken)
        with pytest.raises(ConfigError, match=r'config\.json'):
            Tokenizer.from_folder(folder)


def test_added_tokens_of_the_file_are_dropped(tiny_file: Path, tmp_path: Path,
                                              tiny: Tokenizer) -> None:
    naive = tokenizers.Tokenizer.from_file(str(tiny_file))
    naive.add_special_tokens(['<|turn>', '<strong>', '<unused7>'])
    naive.post_processor = tokenizers.processors.TemplateProcessing(
        single='<bos> $A', special_tokens=[('<bos>', 2)])
    path = tmp_path / 'tokenizer.json'
    naive.save(str(path))
    text = 'a <|turn> <strong> <unused7> <bos>'
    assert Tokenizer.from_file(path).encode(text) == tiny.encode(text)
    assert naive.encode(text).ids != tiny.encode(text)


def test_a_control_token_may_be_an_added_token_only(tiny_file: Path, tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        size = max(document['model']['vocab'].values()) + 1
        document['added_tokens'].append({
            'id': size, 'content': '<audio|>', 'single_word': False, 'lstrip': False,
            'rstrip': False, 'normalized': False, 'special': True})
    tokenizer = Tokenizer.from_file(changed(tiny_file, tmp_path, change))
    assert tokenizer.controls.audio_end == tokenizer.vocab_size - 1
    assert tokenizer.decode([tokenizer.controls.audio_end]) == '<audio|>'
    assert tokenizer.control_ids.isdisjoint(tokenizer.encode('<audio|>'))


def test_surrogates(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode('a\ud83e\udd16b') == tokenizer.encode('a\U0001f916b')
    assert tokenizer.encode('a\ud83eb') == tokenizer.encode('a\ufffdb')
    assert tokenizer.encode('\udc00' * 100) == tokenizer.encode('\ufffd' * 100)


def test_remembered_texts_are_not_shared(tiny: Tokenizer) -> None:
    first = tiny.encode('abc')
    first.append(50)
    assert tiny.encode('abc') == first[:-1]


def test_encoding_from_many_threads(tiny: Tokenizer) -> None:
    expected = {f'text {n % 300}': tiny.encode(f'text {n % 300}') for n in range(300)}
    wrong: list[str] = []

    def work() -> None:
        wrong.extend(text for text, ids in expected.items() if tiny.encode(text) != ids)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_decode_and_token_bytes(tiny: Tokenizer) -> None:
    ids = [2, 105, *tiny.encode('user\nHi  é'), 106]
    assert tiny.decode(ids) == '<bos><|turn>user\nHi  é<turn|>'
    assert tiny.token_bytes(105) == tiny.token_bytes(-1) == tiny.token_bytes(10 ** 6) == b''
    assert tiny.token_bytes(238 + 0xf0) == b'\xf0'
    assert b''.join(map(tiny.token_bytes, tiny.encode(' é\n日\U0001f916'))) \
        == ' é\n日\U0001f916'.encode()
    for wrong in (-1, tiny.vocab_size):
        with pytest.raises(RequestError, match=f'token id {wrong} is outside'):
            tiny.decode([wrong])


def test_no_half_characters(tiny: Tokenizer) -> None:
    """Case S10: the halves of a robot face arrive as one piece."""
    byte_id = {value: token_id for token_id, value in tiny.byte_values.items()}
    detokenizer = Detokenizer(tiny)
    pieces = [detokenizer.push([byte_id[value] for value in bytes.fromhex(text)])
              for text in ('486920', 'f09f', 'a496', '21')]
    assert pieces == ['Hi ', '', '\U0001f916', '!']
    detokenizer.push([byte_id[0xf0], byte_id[0x9f]])
    assert detokenizer.push(tiny.encode('a')) == 'a'
    detokenizer.push([byte_id[0xf0]])
    assert detokenizer.flush() == ''
    assert detokenizer.push([byte_id[0x9f], byte_id[0x41], 106]) == 'A<turn|>'
    assert Detokenizer(tiny, keep_controls=False).push([106, *tiny.encode('a'), 2]) == 'a'


def test_segments() -> None:
    assert split_markers('a<|turn>b<|"|><turn|>') == [
        Segment('a'), Segment('<|turn>', True), Segment('b'), Segment('<|"|>', True),
        Segment('<turn|>', True)]
    assert split_markers('[multimodal] <|tool_call|> <|think>') \
        == [Segment('[multimodal] <|tool_call|> <|think>')]
    assert join_text([Segment(''), Segment('a'), Segment('b'), Segment('<bos>', True),
                      Segment('c')]) == [Segment('ab'), Segment('<bos>', True), Segment('c')]


def growth_mb(encode: Callable[[str], object]) -> float:
    """Return how much memory 6,000 different texts leave behind."""
    def resident_mb() -> float:
        return int(Path('/proc/self/statm').read_text().split()[1]) * 4096 / 1e6

    ctypes.CDLL(None).malloc_trim(0)             # else it would take what others have freed
    before = resident_mb()
    for number in range(6000):
        # Longer than what is remembered by design, shorter than what the library leaves out.
        encode(f'{number}' + 'x' * 200)
    return resident_mb() - before


def test_texts_leave_no_memory_behind(tiny_file: Path) -> None:
    tiny = Tokenizer.from_file(tiny_file)
    assert growth_mb(tiny.encode) < 4.0


def test_with_the_library_as_it_comes_they_do(tiny_file: Path) -> None:
    """What the test above catches; when this fails, the library has been mended."""
    assert growth_mb(tokenizers.Tokenizer.from_file(str(tiny_file)).encode) > 16.0
