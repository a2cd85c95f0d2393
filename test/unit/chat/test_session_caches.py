# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Sessions with their K and V over a restart, on the scripted model, whose pages check themselves:
a page with other contents than its history's fails the step that reads it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.engine.saved_prefix import SavedPrefix
from gemma_thor_ros.load import DEMO_FOLDER, Runtime
from gemma_thor_ros.load_identity import kv_identity
from gemma_thor_ros.schema import ChatRequest, PromptImage, Usage
from gemma_thor_ros.session_caches import CacheRefused, read_cache, write_cache
from gemma_thor_ros.weights.fingerprint import headers_hash, sampled_hash

LONG = ' '.join(f'Shelf {number} is next to shelf {number + 1}.' for number in range(40))


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[Chat]:
    runtime = Runtime(EngineConfig.from_mapping({
        'model.path': 'scripted', 'model.script': ['All right.<turn|>'],
        'session.folder': str(folder), **settings}))
    runtime.start()
    assert runtime.wait_ready(20.0)
    yield runtime.require_chat()
    runtime.stop()


def say(chat: Chat, text: str, session_id: str = 's') -> Usage:
    messages = ({'role': 'user', 'content': text},)
    result = chat.submit(ChatRequest(messages, session_id=session_id)).result(20.0)
    assert result.text == 'All right.', result.message
    return result.usage


@pytest.fixture(scope='module')
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session that was saved with its cache."""
    folder = tmp_path_factory.mktemp('saved')
    with running(folder) as chat:
        say(chat, LONG)
        saved = chat.save_session('s', with_cache=True)
        assert saved.warning == '' and saved.cached_tokens > 300
        assert saved.num_bytes == sum(path.stat().st_size for path in folder.iterdir())
    return folder


@pytest.fixture
def folder(once: Path, tmp_path: Path) -> Path:
    """Its files, to be spoilt."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_over_a_restart(folder: Path) -> None:
    """Nothing of the saved part is prefilled; what came of it can be saved again."""
    assert stat.S_IMODE((folder / 's.kv').stat().st_mode) == 0o600
    with running(folder) as chat:
        back = chat.restore_session('s')
        assert back.warning == '' and back.view.num_messages == 2
        again = chat.save_session('s', 'again', with_cache=True)     # before any turn
        assert (again.cached_tokens, again.warning) == (back.cached_tokens, '')
        usage = say(chat, 'and now?')
        assert usage.cached_tokens == back.cached_tokens > 300
        assert usage.prompt_tokens - usage.cached_tokens < 60
        more = chat.save_session('s', with_cache=True)
    with running(folder) as chat:
        assert chat.restore_session('again', 'a').cached_tokens == back.cached_tokens
        assert chat.restore_session('s').cached_tokens == more.cached_tokens
        assert say(chat, 'and then?').cached_tokens == more.cached_tokens > back.cached_tokens


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(('damage', 'words'), [
    (lambda path: flip(path, -7), 'its hash is .* it is damaged'),
    (lambda path: flip(path, 0), 'it holds no KV pages'),
    (lambda path: path.write_bytes(b''), 'it holds no KV pages'),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), 'its hash is'),
    (lambda path: path.unlink(), 'it can not be read: No such file'),
    (lambda path: path.write_bytes(path.read_bytes().replace(b'scripted', b'Scripted')),
     "its weights is 'Scripted', here it is 'scripted'")])
def test_a_file_that_is_not_ours_costs_time_alone(folder: Path, damage: Any, words: str,
                                                  caplog: pytest.LogCaptureFixture) -> None:
    damage(folder / 's.kv')
    with running(folder) as chat:
        back = chat.restore_session('s')
        assert back.cached_tokens == 0 and back.view.num_messages == 2
        assert say(chat, 'and now?').cached_tokens == 0
    assert back.warning.startswith('s.kv is not used: ') and 'computed anew' in back.warning
    assert back.warning in caplog.text
    assert re.search(words, back.warning), back.warning


def test_the_hash_is_what_catches_damage(folder: Path) -> None:
    """Planted: a page that changed and a hash that was made to fit reach the model, and show."""
    flip(folder / 's.kv', -7)
    content = json.loads((folder / 's.json').read_text())
    content['cache'] = hashlib.sha256((folder / 's.kv').read_bytes()).hexdigest()
    (folder / 's.json').write_text(json.dumps(content))
    with running(folder) as chat:
        assert chat.restore_session('s').cached_tokens > 300
        with pytest.raises(AssertionError, match='PageFault'):
            say(chat, 'and now?')


def test_what_can_not_be_kept_is_said(folder: Path) -> None:
    with running(folder, **{'session.max_cache': 1e-6}) as chat:
        back = chat.restore_session('s')
        assert 'bytes, at most 1,073 are read' in back.warning
        say(chat, 'and now?')
        saved = chat.save_session('s', with_cache=True)
        assert 'bytes of KV pages, at most 1,073 are saved' in saved.warning
        assert saved.cached_tokens == 0 and not (folder / 's.kv').exists(), 'the older one is gone'
        assert chat.restore_session('s', 't').warning == ''
    with running(folder, **{'engine.max_checkpoints': 0}) as chat:
        say(chat, LONG, 'u')
        saved = chat.save_session('u', with_cache=True)
        assert saved.warning == ('nothing of it is in the prefix cache: engine.max_checkpoints '
                                 'is 0')
        chat.restore_session('u', 'v')
        assert 'nothing of it has been computed' in chat.save_session('v', with_cache=True).warning


def test_a_session_too_short_for_a_page_says_from_how_many_tokens_on(folder: Path) -> None:
    with running(folder, **{'engine.page_size': 64}) as chat:
        for words, kept in (('hi', 0), ('now and then ' * 20, 64)):
            say(chat, words, 'u')
            saved = chat.save_session('u', with_cache=True)
            assert (saved.cached_tokens >= 64) == bool(kept) == (saved.warning == ''), saved
            assert kept or 'tokens, and one is kept from 65 on' in saved.warning


def test_pages_of_another_shape_and_a_cache_without_room(folder: Path) -> None:
    with running(folder, **{'engine.page_size': 8}) as chat:
        assert 'its pages of 16 positions hold' in chat.restore_session('s').warning
    with running(folder, **{'engine.max_checkpoints': 0}) as chat:
        assert 'engine.max_checkpoints leaves no room' in chat.restore_session('s').warning
        say(chat, 'and now?')


def prefix() -> SavedPrefix:
    images = (PromptImage(3, 4, b'\x01\xff', None, 0),)
    rng = np.random.default_rng(1)
    return SavedPrefix(np.arange(32, dtype=np.int32), 'who', images, 16, ('a', 'b'), *(
        rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((2, 5), (1, 7))))


def test_all_fields_come_back(tmp_path: Path) -> None:
    path, identity = tmp_path / 'x.kv', {'weights': 'w'}
    num_bytes, digest = write_cache(path, prefix(), identity)
    assert num_bytes == path.stat().st_size
    back = read_cache(path, digest, identity, 1 << 20)
    assert np.array_equal(back.full, prefix().full) and np.array_equal(
        back.sliding, prefix().sliding) and np.array_equal(back.token_ids, prefix().token_ids)
    assert (back.identity, back.page_size, back.layout) == ('who', 16, ('a', 'b'))
    image, = back.images
    assert (image.start, image.num_tokens, image.digest) == (3, 4, b'\x01\xff')


@pytest.mark.parametrize(('find', 'put', 'words'), [
    (b'"format": 1', b'"format": 2', 'it is of format 2, this version reads 1'),
    (b'"tokens": 32', b'"tokens": 31', 'do not agree'),
    (b'"full": [2, 5]', b'"full": [5, 2]', ''), (b'[2, 5]', b'[2,-5]', 'do not agree'),
    (b'"images": [[', b'"images": [{[', 'its header is no JSON'),
    (b'"page_size": 16', b'"page_sise": 16', 'do not agree'),
    (b'"w"', b'"v"', "its weights is 'v', here it is 'w'"),
    (b'"identity": {"weights": "w"}', b'"identity": "weights-ww--"  ', 'its identity is')])
def test_headers_that_say_something_else(tmp_path: Path, find: bytes, put: bytes,
                                         words: str) -> None:
    path = tmp_path / 'x.kv'
    write_cache(path, prefix(), {'weights': 'w'})
    data = path.read_bytes()
    assert data.count(find) == 1
    path.write_bytes(data.replace(find, put))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if not words:                        # as many bytes: the engine knows its own pages
        assert read_cache(path, digest, {'weights': 'w'}, 1 << 20).full.shape == (5, 2)
        return
    with pytest.raises(CacheRefused, match=re.escape(words)):
        read_cache(path, digest, {'weights': 'w'}, 1 << 20)


def test_identities_of_checkpoints(tmp_path: Path) -> None:
    """One number more or less is another model, though the headers are the same."""
    identity = kv_identity(DEMO_FOLDER, 'fp8', 'cpu', 'large', None)
    assert identity == kv_identity(DEMO_FOLDER, 'fp8', 'cpu', 'large', None)
    assert 'NumPy' in identity['numerics'] and identity['drafter'] == 'none'
    for path in DEMO_FOLDER.iterdir():
        if path.suffix in ('.json', '.safetensors'):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert sampled_hash(tmp_path) == sampled_hash(DEMO_FOLDER) == identity['weights']
    weights, = tmp_path.glob('*.safetensors')
    data = bytearray(weights.read_bytes())
    changed = np.frombuffer(data, np.uint8)[len(data) // 2:]
    changed += 1                         # half of the numbers
    weights.write_bytes(data)
    assert headers_hash(tmp_path) == headers_hash(DEMO_FOLDER)
    assert sampled_hash(tmp_path) != sampled_hash(DEMO_FOLDER)
