# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Grammars of calls: names, free arguments, invented keys, text that looks like structure."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gemma_thor_ros.schema import RequestError
from gemma_thor_ros.text.call_syntax import DELIMITER, read_strict
from gemma_thor_ros.text.grammar import Grammar, GrammarError, Grammars, Tool
from gemma_thor_ros.text.grammar_keys import KeyState, UniqueKeys
from gemma_thor_ros.text.tokenizer import Tokenizer
from gemma_thor_ros.text.writer import MAX_DEPTH

from .walks import CALL_END, QUOTE, STOPS, Walker, encode, follow, ids_of, read_call, walk

ANYTHING = {'type': 'object', 'additionalProperties': True}


def test_names_that_begin_alike(grammars: Grammars, tokenizer: Tokenizer) -> None:
    names = ['get', 'get_battery', 'get.it', 'call', 'call:x', 'GET', 'a', 'ab-c', 'über']
    grammar = grammars.calls([Tool(name, None) for name in names])
    for name in names:
        tokens = encode(tokenizer, f'call:{name}{{}}<end>')
        assert follow(grammars, grammar, tokens)
        assert read_call(tokenizer, {name: {} for name in names}, tokens).name == name
    for name in ('ge', 'get_', 'abc', 'b', ''):
        assert not follow(grammars, grammar, encode(tokenizer, f'call:{name}{{}}<end>'))


def test_names_that_no_call_can_have(grammars: Grammars) -> None:
    for name in ('', 'a b', 'a{', 'a,', '"a"', 'a:', ':a'):
        with pytest.raises(RequestError):
            grammars.calls([Tool(name, None)])


def test_tools_without_arguments(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """Nothing declared is nothing to give; a map says so itself."""
    for schema, free in ((None, False), ({}, False), ({'type': 'object'}, False),
                         ({'type': 'object', 'properties': {}}, False), (ANYTHING, True)):
        grammar = grammars.calls([Tool('t', schema)])
        assert follow(grammars, grammar, encode(tokenizer, 'call:t{}<end>'))
        assert follow(grammars, grammar, encode(tokenizer, 'call:t{x:1}<end>')) == free


def test_null_for_what_may_be_null_alone(grammars: Grammars, tokenizer: Tokenizer) -> None:
    grammar = grammars.calls([Tool('t', {'properties': {
        'a': {'type': 'string', 'nullable': True}, 'b': {'type': ['integer', 'null']},
        'c': {'type': 'string'}}})])
    for text, fits in (('a:null,b:null', True), ('a:<q><q>,b:1', True), ('c:null', False),
                       ('c:<q>null<q>', True)):
        assert follow(grammars, grammar, encode(tokenizer, f'call:t{{{text}}}<end>')) == fits


@pytest.mark.parametrize('text', [
    '<|"|>', '<tool_call|>', '<|tool_call>call:t{}<tool_call|>', '<turn|>', '}<tool_call|><turn|>',
    '\n', ' ', "it's \"so\" {a:[1,2]},b:c", '日本 🤖 é', '\x00\x7f\u2028', 'thought\nx<channel|>'])
def test_strings_hold_any_text(grammars: Grammars, tokenizer: Tokenizer, text: str) -> None:
    """What looks like a control token is made of ordinary ones, and stays text."""
    schema = {'properties': {'s': {'type': 'string'}}, 'required': ['s']}
    grammar = grammars.calls([Tool('t', schema)])
    tokens = encode(tokenizer, 'call:t{s:<q>')
    tokens += [*tokenizer.encode(text), QUOTE, *tokenizer.encode('}'), CALL_END]
    assert follow(grammars, grammar, tokens)
    assert read_call(tokenizer, {'t': schema}, tokens).arguments == {'s': text}
    constant = grammars.calls([Tool('t', {'properties': {'s': {'const': text}},
                                          'required': ['s']})])
    assert follow(grammars, constant, tokens)


def test_no_ordinary_token_spells_a_control_token(grammars: Grammars,
                                                  tokenizer: Tokenizer) -> None:
    """Where only a control token may come, no text passes for it; the byte 0xFF is how the
    library marks them within.
    """
    byte_ids = {value: token_id for token_id, value in tokenizer.byte_values.items()}
    grammar = grammars.calls([Tool('t', {'properties': {'s': {'enum': ['a', None, 1]}},
                                         'required': ['s']})])
    matcher = grammar.matcher()
    for token_id in tokenizer.encode('call:t{s:'):
        matcher.accept(token_id)
    allowed = set(ids_of(matcher.mask()))
    assert QUOTE in allowed
    assert allowed & tokenizer.control_ids == {QUOTE}
    assert not {byte_ids[value] for value in (0xFF, 0xFE, 0xC0, ord('<'))} & allowed
    for text in ('<|"|>', '[52]', '<'):
        assert tokenizer.encode(text)[0] not in allowed
    free = grammars.calls([Tool('t', ANYTHING)])
    for seed in range(30):
        tokens = walk(tokenizer, free, seed)
        assert byte_ids[0xFF] not in tokens
        assert set(tokens) & tokenizer.control_ids <= {QUOTE, CALL_END}


def test_stop_tokens_only_come_where_a_text_is_whole(grammars: Grammars,
                                                     tokenizer: Tokenizer) -> None:
    for grammar in (grammars.calls([Tool('t', ANYTHING)]), grammars.answer(ANYTHING, 'schema')):
        for seed in range(10):
            matcher = grammar.matcher()
            tokens = walk(tokenizer, grammar, seed)
            for token_id in tokens:
                assert not STOPS & set(ids_of(matcher.mask())) or matcher.complete
                matcher.accept(token_id)
            assert set(ids_of(matcher.mask())) >= STOPS


def keys_of(tokenizer: Tokenizer, tokens: list[int]) -> bool:
    """Whether the strict reader takes the call, whose only fault can be a key that comes twice."""
    parts, run = [], []
    for token_id in [*tokens[:-1], QUOTE]:
        if token_id == QUOTE:
            parts.append(tokenizer.decode(run))
            run = []
        else:
            run.append(token_id)
    return read_strict(DELIMITER.join(parts)) is not None


def obstinate(tokenizer: Tokenizer, grammar: Grammar, seed: int) -> list[int]:
    """A call whose writer likes one key and many pairs."""
    walker = Walker(tokenizer, random.Random(seed), 'close')
    liked = [tokenizer.encode(text)[0] for text in ('a', 'ab', ':', '1', ',', '{')]
    matcher, tokens = grammar.matcher(), []
    while tokens[-1:] != [CALL_END]:
        ids = ids_of(matcher.mask())
        chosen = [i for i in liked if i in ids]
        token_id = walker.rng.choice(chosen) if chosen and len(tokens) < 60 \
            else walker.choose([i for i in ids if i not in STOPS])
        matcher.accept(token_id)
        tokens.append(token_id)
    return tokens


@pytest.mark.parametrize('schema', [
    ANYTHING, {'type': 'object', 'additionalProperties': {'type': 'integer'}},
    {'type': 'object', 'properties': {'a': {'type': 'integer'}},
     'additionalProperties': {'type': 'object'}},
    {'properties': {'m': {'type': 'object'}, 'n': {}}}])
def test_invented_keys_come_once(grammars: Grammars, tokenizer: Tokenizer, schema: Any) -> None:
    grammar = grammars.calls([Tool('t', schema)])
    for seed in range(40):
        read_call(tokenizer, {'t': schema}, obstinate(tokenizer, grammar, seed))


def test_without_the_look_at_keys_some_come_twice(grammars: Grammars,
                                                  tokenizer: Tokenizer) -> None:
    """The planted error: the grammar alone lets a key come twice."""
    grammar = grammars.calls([Tool('t', {'additionalProperties': {'type': 'integer'}})])
    assert grammar._keys is not None
    blind = Grammar(grammar._prototype, None, grammar._stop_ids, grammar._ids)
    assert all(keys_of(tokenizer, obstinate(tokenizer, grammar, seed)) for seed in range(20))
    assert not all(keys_of(tokenizer, obstinate(tokenizer, blind, seed)) for seed in range(20))


def test_keys_are_followed_by_brackets() -> None:
    tokens = [b'', b'a', b':', b'{', b'}', b',', b'[', b']', b'1', b'b:', b'ab:', b',a:', b'a:1',
              b'{a:']
    quote = 0
    keys = UniqueKeys(tokens, quote)

    def state(text: str) -> KeyState:
        now = KeyState()
        for token_id in map(int, text.split()):
            now = keys.after(now, token_id)
        return now

    assert set(keys.forbidden(KeyState())) == set()
    # {a:1,  then a: is taken, as are tokens that hold a whole pair; a longer key is free
    after_pair = state('3 1 2 8 5')
    assert after_pair == KeyState(((b'a',),), b'')
    assert set(keys.forbidden(after_pair)) == {11, 13, 12}
    assert set(keys.forbidden(keys.after(after_pair, 1))) == {11, 13, 2}
    # {a:{  is another object, and [ has no keys
    assert set(keys.forbidden(state('3 1 2 3'))) == {11, 13}
    assert state('3 1 2 6 8 5').key is None
    assert state('3 1 2 6 3 1 2 8 4 7 5') == KeyState(((b'a',),), b'')
    # within a string nothing counts
    assert keys.forbidden(state('3 1 2 0 5 1 2')) == []
    assert state('3 1 2 0 5 3 0 5') == KeyState(((b'a',),), b'')


def test_values_nest_as_deep_as_the_parser_reads(grammars: Grammars,
                                                 tokenizer: Tokenizer) -> None:
    deep: dict[str, Any] = {'type': 'integer'}
    for _ in range(MAX_DEPTH - 1):
        deep = {'type': 'array', 'items': deep}
    tool = Tool('t', {'properties': {'a': deep}}, strict=True)
    brackets = MAX_DEPTH - 1
    tokens = encode(tokenizer, 'call:t{a:' + '[' * brackets + '1' + ']' * brackets + '}<end>')
    assert follow(grammars, grammars.calls([tool]), tokens)
    read_call(tokenizer, {'t': tool.parameters}, tokens)
    deeper = Tool('t', {'properties': {'a': {'type': 'array', 'items': deep, 'minItems': 1}},
                        'required': ['a']}, strict=True)
    # The innermost array may be left empty, one level further out.
    brackets += 1
    tokens = encode(tokenizer, 'call:t{a:' + '[' * brackets + '1' + ']' * brackets + '}<end>')
    assert not follow(grammars, grammars.calls([deeper]), tokens)


def test_a_loose_tool_falls_back_and_a_strict_one_is_refused(grammars: Grammars,
                                                             tokenizer: Tokenizer) -> None:
    schema = {'properties': {'a': {'not': {'type': 'null'}}}}
    loose = grammars.calls([Tool('t', schema), Tool('u', {'properties': {}})])
    assert follow(grammars, loose, encode(tokenizer, 'call:t{b:{c:[<q>x<q>]}}<end>'))
    assert not follow(grammars, loose, encode(tokenizer, 'call:u{b:1}<end>'))
    with pytest.raises(RequestError) as caught:
        grammars.calls([Tool('t', schema, 'tools[3].function.parameters', strict=True)])
    assert caught.value.param == 'tools[3].function.parameters'
    assert '/properties/a/not' in caught.value.message


def test_a_matcher_raises_for_a_wrong_token_and_too_long_a_rollback(
        grammars: Grammars, tokenizer: Tokenizer) -> None:
    matcher = grammars.calls([Tool('t', None)]).matcher()
    with pytest.raises(GrammarError):
        matcher.accept(QUOTE)
    with pytest.raises(GrammarError):                    # it never recovers
        matcher.mask()
    matcher = grammars.calls([Tool('t', None)]).matcher()
    matcher.accept(tokenizer.encode('call')[0])
    with pytest.raises(GrammarError):
        matcher.rollback(2)


def test_grammars_are_compiled_once_and_matchers_are_apart(grammars: Grammars,
                                                           tokenizer: Tokenizer) -> None:
    tools = [Tool('t', {'properties': {'a': {'type': 'integer'}}})]
    grammar = grammars.calls(tools)
    assert grammars.calls(list(tools)) is grammar
    one, other = grammar.matcher(), grammar.matcher()
    start = other.mask()
    one.accept(tokenizer.encode('call')[0])
    assert other.mask() == start != one.mask()
    ordered = grammars.answer({'properties': {'a': True, 'b': True}}, 'schema')
    assert grammars.answer({'properties': {'b': True, 'a': True}}, 'schema') is not ordered


def test_threads_do_not_disturb_each_other(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """Matchers of one grammar in several threads: the same walks as one after the other."""
    schema = {'properties': {'a': {'type': 'string', 'maxLength': 9}, 'b': {'type': 'object'},
                             'c': {'type': 'number', 'minimum': 0.5}}}
    grammar = grammars.calls([Tool('t', schema), Tool('u', None)])
    seeds = range(48)
    alone = [walk(tokenizer, grammar, seed) for seed in seeds]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda seed: walk(tokenizer, grammar, seed), seeds)) == alone
