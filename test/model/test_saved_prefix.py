# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""restored == never ended: a prefix is saved on one engine and put back on another, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from draft_gates import Oracle
from engine_books import check_books
from engine_gates import WAIT, HashModel, Job, make_request
from forward import TINY_DENSE, TINY_MOE, random_model
from prefix_gates import Kitchen, fresh, save
from prefix_gates import saved_gate as gate

from gemma_thor_ros.engine import Engine, saved_prefix
from gemma_thor_ros.engine.page_pool import PageManager
from gemma_thor_ros.engine.prefix_cache import PrefixCache
from gemma_thor_ros.engine.saved_prefix import SavedPrefix
from gemma_thor_ros.models.page_planes import Planes
from gemma_thor_ros.models.scripted_drafter import ScriptedDrafter
from gemma_thor_ros.schema import DeviceError, ErrorCode, PromptImage, Request, RequestError

PAGE = 16                                # the tiny models' window is 40
EDGES = (17, 41, 80)
GIB = 1 << 30
request = partial(make_request, vocab_size=96, max_tokens=4)


@cache
def model(name: str) -> Any:
    if name == 'hash':
        return HashModel(96, sliding_window=40)
    if name == 'fp8':
        return random_model(TINY_DENSE, rounding='device', kv_dtype='fp8')
    return random_model(TINY_MOE, rounding='device', kv_dtype='bf16')


saved_gate = partial(gate, make=request)


@pytest.mark.parametrize('name', ['moe', 'fp8', 'hash'])
def test_a_restored_prefix_answers_as_one_that_never_ended(name: str, grid: bool) -> None:
    for length in range(17, 120) if grid else EDGES:
        assert saved_gate(model(name), length) == [], length


def test_many_pieces_and_shared_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_prefix, 'PIECE_BYTES', 1)
    assert saved_gate(model('moe'), 97, prefill_chunk=19) == []
    kitchen = Kitchen(model('moe'), page_size=PAGE)
    long = request('long', 97)
    kitchen.answer(long)
    saved = save(kitchen.engine, long.prompt_ids)
    kitchen.engine.restore_prefix(saved).result(WAIT)    # all of it is there
    assert kitchen.engine.stats().full_pages_cached == 6
    kitchen.close()
    kitchen = Kitchen(model('moe'), page_size=PAGE)
    kitchen.answer(replace(long, request_id='short', prompt_ids=long.prompt_ids[:50]))
    assert kitchen.engine.restore_prefix(saved).result(WAIT) == 96   # behind three of its pages
    assert kitchen.engine.stats().full_pages_cached == 6
    assert kitchen.answer(long)['long'].token_ids == fresh(
        model('moe'), [long], page_size=PAGE)['long'].token_ids
    kitchen.close()


def window_one_page_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(pages: Any, planes: Any, tables: Any, saved: SavedPrefix, places: range) -> None:
        right(pages, planes, tables, replace(saved, sliding=np.roll(saved.sliding, 1, 0)), places)
    right = saved_prefix._fill
    monkeypatch.setattr(saved_prefix, '_fill', fill)


def value_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: Planes, kind: str, pages: Any, source: Any) -> None:
        changed = source.copy()
        changed[0, 2] ^= 0x10            # one bit of one number of a page
        right(self, kind, pages, changed)
    right = Planes.write
    monkeypatch.setattr(Planes, 'write', write)


def pages_of_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Planes, kind: str, pages: Any, target: Any) -> None:
        right(self, kind, [*pages[1:], pages[0]], target)
    right = Planes.read
    monkeypatch.setattr(Planes, 'read', read)


@pytest.mark.parametrize('name', ['moe', 'hash'])
@pytest.mark.parametrize('plant', [window_one_page_early, value_that_changed,
                                   pages_of_a_neighbour])
def test_a_planted_error_shows(name: str, plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert saved_gate(model(name), 80) != []


@pytest.mark.parametrize('planted', [False, True])
def test_what_a_drafter_keeps_comes_along(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It checks its own pages at each draft; planted: they are left out."""
    if planted:
        monkeypatch.setattr(Planes, 'joined', lambda self, other: self)
    prompt = request('first', 60, max_tokens=12)
    whole = fresh(model('hash'), [prompt], page_size=PAGE)
    failures = []
    saved: SavedPrefix | None = None
    for _ in range(2):
        drafter = ScriptedDrafter(Oracle(whole, [Job(prompt)]), 96, window=40)
        kitchen = Kitchen(model('hash'), page_size=PAGE, max_rows=16, drafter=drafter,
                          num_drafts=3)
        if saved is not None:
            assert kitchen.engine.restore_prefix(saved).result(WAIT) == 48
        assert kitchen.answer(prompt)['first'].token_ids == whole['first'].token_ids
        failures.append(kitchen.engine.stats().draft_failure)
        saved = save(kitchen.engine, prompt.prompt_ids)
        kitchen.close()
    assert failures[0] == '' and bool(failures[1]) is planted


class Stepped:
    """An engine without a thread, a page of an errand at each border."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        monkeypatch.setattr(saved_prefix, 'PIECE_BYTES', 1)
        self.engine = Engine(model('hash'), **{
            'page_size': PAGE, 'num_sliding_pages': 40, 'num_full_pages': 40, 'max_sequences': 4,
            'max_waiting': 8, 'prefill_chunk': 64, 'context_length': 512, 'stop_ids': (),
            'max_rows': 1, **options})
        self.engine.start(threaded=False)

    def run(self, *requests: Request) -> None:
        boxes = [self.engine.submit(each) for each in requests]
        while self.engine.step():
            pass
        for box in boxes:
            assert box.collect(0.0)[1].code is ErrorCode.NONE


def test_steps_go_on_between_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, prompt = Stepped(monkeypatch), request('first', 97)
    stepped.run(prompt)
    engine = stepped.engine
    box = engine.submit(request('beside', 20, max_tokens=30))
    engine.step()
    future = engine.save_prefix(np.array(prompt.prompt_ids, np.int32), (), GIB)
    steps = engine.stats().steps
    while not future.done():
        assert engine.step()
    assert engine.stats().steps - steps == 6 + 3 + 1     # full pages, the window, the end
    saved = future.result()
    back = engine.restore_prefix(saved)
    engine.stop()                        # it answers errands too
    assert box.collect(0.0)[1].code is ErrorCode.CANCELLED
    with pytest.raises(RequestError, match='stopped'):
        back.result(0.0)
    check_books(engine._pages, engine._cache, [])
    with pytest.raises(RequestError) as caught:
        engine.restore_prefix(saved)
    assert caught.value.code is ErrorCode.NOT_READY


def test_a_request_waits_for_pages_that_an_errand_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, prompt = Stepped(monkeypatch), request('first', 97)
    stepped.run(prompt)
    saved = save_stepped(stepped, prompt)
    small = Stepped(monkeypatch, num_full_pages=8, num_sliding_pages=9)
    back = small.engine.restore_prefix(saved)
    small.engine.step()
    small.run(request('large', 110))     # needs all pages
    assert back.result(0.0) == 96 and small.engine.stats().state == 'running'
    # beside a sequence that was promised nearly all of them there is no room
    small.engine.submit(request('long', 90, max_tokens=20))
    small.engine.step()
    late = small.engine.restore_prefix(saved)
    while small.engine.step():
        pass
    with pytest.raises(RequestError, match='6 KV pages can not be held') as caught:
        late.result(0.0)
    assert caught.value.code is ErrorCode.MEMORY
    check_books(small.engine._pages, small.engine._cache, [])


def save_stepped(stepped: Stepped, prompt: Request) -> SavedPrefix:
    future = stepped.engine.save_prefix(np.array(prompt.prompt_ids, np.int32), (), GIB)
    while stepped.engine.step():
        pass
    saved = future.result(0.0)
    assert saved is not None
    return saved


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, prompt = Stepped(monkeypatch), request('first', 97)
    engine, ids = stepped.engine, np.array(prompt.prompt_ids, np.int32)
    assert run(engine, engine.save_prefix(ids, (), GIB)) is None         # nothing is cached yet
    stepped.run(prompt)
    saved = save_stepped(stepped, prompt)
    image = PromptImage(90, 20, b'x', None, 0)
    for wrong, words in (
            (replace(saved, page_size=8), 'pages of 8 positions'),
            (replace(saved, layout=saved.layout[1:]), 'its pages of 16 positions hold'),
            (replace(saved, token_ids=saved.token_ids[1:]), 'it has 95 tokens'),
            (replace(saved, sliding=saved.sliding[1:]), '2 sliding ones'),
            (replace(saved, images=(image,)), 'ending in no image')):
        with pytest.raises(RequestError, match=words):
            run(engine, engine.restore_prefix(wrong))
    with pytest.raises(RequestError, match=r'96 tokens have [\d,]+ bytes of KV pages, at most 5'):
        run(engine, engine.save_prefix(ids, (), 5))
    none = Stepped(monkeypatch, max_checkpoint_pages=0).engine
    assert run(none, none.restore_prefix(saved)) == 0    # no budget for its window
    check_books(none._pages, none._cache, [])


def run(engine: Engine, future: Any) -> Any:
    while engine.step():
        pass
    return future.result(0.0)


def test_a_copy_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, prompt = Stepped(monkeypatch), request('first', 97)
    stepped.run(prompt)
    engine = stepped.engine
    saved = save_stepped(stepped, prompt)
    faults: list[Exception] = [DeviceError('gone'), ValueError('torn')]

    def write(*args: Any) -> None:
        raise faults.pop()
    monkeypatch.setattr(Planes, 'write', write)
    engine._cache.clear()
    with pytest.raises(ValueError, match='torn'):
        run(engine, engine.restore_prefix(saved))
    stepped.run(request('still', 20))
    check_books(engine._pages, engine._cache, [])
    lost = engine.restore_prefix(saved)
    with pytest.raises(DeviceError):
        engine.step()
    assert isinstance(lost.exception(0.0), DeviceError)


def drained(work: Any) -> Any:
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def test_an_image_is_part_of_what_is_saved() -> None:
    """It is found again by its digest; another image of the same size is another prefix."""
    ids = np.arange(97, dtype=np.int32) % 90
    images = (PromptImage(20, 30, b'dog', object(), 5),)
    planes = [model('hash').new_kv_cache(20, 20, PAGE).planes() for _ in range(2)]
    books = []
    for _ in range(2):
        pages = PageManager(page_size=PAGE, num_sliding_pages=20, num_full_pages=20, window=40,
                            max_rows=1, max_chunk=64)
        books.append((pages, PrefixCache(pages, max_window_pages=20, interval=128)))
    pages, kept = books[0]
    tables = pages.admit(97)
    assert tables is not None
    pages.grow(tables, 97)
    kept.leave(kept.trail(ids, '', (), images), tables, 97)
    pages.release(tables)
    saved = drained(saved_prefix.save(*books[0], planes[0], ids, '', images, GIB))
    assert drained(saved_prefix.restore(*books[1], planes[1], saved)) == 96
    for digest, cached in ((b'dog', 96), (b'cat', 0)):
        trail = books[1][1].trail(ids, '', (), (replace(images[0], digest=digest),))
        assert books[1][1].num_cached(trail) == cached
    # planted: images that are left out make it the prefix of a prompt of ids alone
    drained(saved_prefix.restore(*books[1], planes[1], replace(saved, images=())))
    assert books[1][1].num_cached(books[1][1].trail(ids, '', (), ())) == 96
    for each in books:
        check_books(*each, [])
