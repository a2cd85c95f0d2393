# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Random schemas, and walks through masks: by chance, by obstinate preferences, to the end."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np

from gemma_thor_ros.text.grammar import Grammar, Grammars, Matcher
from gemma_thor_ros.text.parser import OutputParser, ParsedCall
from gemma_thor_ros.text.tokenizer import Tokenizer

CALL, CALL_END, QUOTE, TURN_END = 48, 49, 52, 106
STOPS = frozenset((1, 50, 106))
# What ends things, the most urgent first, and then what the patterns of these tests wait for. In
# JSON a bracket may be part of a string, so that nothing is tried for ever.
_CLOSERS = (b'"', b'}', b']', b':', b'0', b'1', b'n', b'a', b'b', b'/', b'@')
STYLES = ('any', 'close', 'lowest', 'longest', 'control', 'bytes')


def ids_of(mask: bytes) -> list[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder='little')
    found: list[int] = np.flatnonzero(bits).tolist()
    return found


class Walker:
    """Chooses tokens of a mask in one of the styles."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random, style: str) -> None:
        self.bytes = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.rng = rng
        self.style = style
        self.rank = {i: _CLOSERS.index(token) for i, token in enumerate(self.bytes)
                     if token in _CLOSERS}
        self.rank.update({CALL_END: -2, QUOTE: -1})
        self.used: Counter[int] = Counter()

    def choose(self, ids: list[int]) -> int:
        closers = [i for i in ids if i in self.rank]
        if self.style == 'close' and closers:
            found = min(closers, key=lambda i: (self.used[i] // 8, self.rank[i], i))
            self.used[found] += 1
            return found
        if self.style == 'lowest':
            return ids[0]
        if self.style == 'longest':
            return max(ids, key=lambda i: len(self.bytes[i]))
        if self.style == 'control' and self.rng.random() < 0.5:
            return self.rng.choice([i for i in ids if not self.bytes[i]] or ids)
        if self.style == 'bytes':
            return self.rng.choice([i for i in ids if len(self.bytes[i]) == 1] or ids)
        if closers and self.rng.random() < 0.3:
            return self.rng.choice(closers)
        return self.rng.choice(ids)


def walk(tokenizer: Tokenizer, grammar: Grammar, seed: int, patience: int = 60,
         limit: int = 3000) -> list[int]:
    """A text of the grammar: so many tokens in a style drawn from the seed, then to the end.

    Tokens are taken back now and then. Fails when a mask is empty or the end doesn't come.
    """
    rng = random.Random(seed)
    walker = Walker(tokenizer, rng, rng.choice(STYLES))
    matcher, done = grammar.matcher(), []
    for step in range(limit):
        ids = ids_of(matcher.mask())
        assert ids, f'nothing may follow {tokenizer.decode(done)!r}'
        inside = [i for i in ids if i not in STOPS]
        assert matcher.complete == (len(inside) < len(ids))
        if matcher.complete and (not inside or step >= patience or rng.random() < 0.3):
            return done
        if step >= patience:
            walker.style = 'close'
        token_id = walker.choose(inside)
        matcher.accept(token_id)
        done.append(token_id)
        if rng.random() < 0.05:
            take_back(matcher, done, rng)
    raise AssertionError(f'no end after {limit} tokens: {tokenizer.decode(done)[-300:]!r}')


def take_back(matcher: Matcher, done: list[int], rng: random.Random) -> None:
    """Take tokens back and do them again: nothing changes."""
    count = min(len(done), rng.randint(1, 5))
    mask = matcher.mask()
    matcher.rollback(count)
    for token_id in done[len(done) - count:]:
        assert token_id in ids_of(matcher.mask())
        matcher.accept(token_id)
    assert matcher.mask() == mask


def follow(grammars: Grammars, grammar: Grammar, tokens: list[int]) -> bool:
    """Whether the masks let these tokens through, to an end."""
    matcher = grammar.matcher()
    for token_id in tokens:
        if token_id not in ids_of(matcher.mask()):
            return False
        matcher.accept(token_id)
    return bool(STOPS & set(ids_of(matcher.mask())))


def read_call(tokenizer: Tokenizer, tools: dict[str, Any], body: list[int]) -> ParsedCall:
    """What the parser makes of a call's body; it must be one call, read to the letter."""
    parser = OutputParser(tokenizer, tools)
    parser.push([CALL, *body, TURN_END])
    output = parser.finish()
    assert len(output.tool_calls) == 1, tokenizer.decode(body)
    assert not output.malformed
    assert not output.tool_calls[0].repaired, tokenizer.decode(body)
    assert (output.content, output.reasoning) == ('', '')
    return output.tool_calls[0]


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens of a call's body; <q> stands for the quote token, <end> for the closing one."""
    tokens: list[int] = []
    for part in text.replace('<end>', '\0<end>\0').replace('<q>', '\0<q>\0').split('\0'):
        if part in ('<q>', '<end>'):
            tokens.append(QUOTE if part == '<q>' else CALL_END)
        elif part:
            tokens += tokenizer.encode(part)
    return tokens


def canonical(tokenizer: Tokenizer, tokens: list[int]) -> list[int]:
    """The same text in the tokens that the tokenizer, and so the model, would choose for it."""
    found: list[int] = []
    run: list[int] = []
    for token_id in [*tokens, TURN_END]:
        if token_id in tokenizer.control_ids:
            found += [*tokenizer.encode(tokenizer.decode(run)), token_id]
            run = []
        else:
            run.append(token_id)
    return found[:-1]


_NAMES = ('a', 'b', 'B', 'count', 'to', 'x y', 'né', 'distance_m', 'a.b', 'Z', 'z1')
_VALUES = (0, 1, -1, 2.5, -0.5, 1e-07, True, False, None, '', 'dock', 'a"b', '<|"|>', '{x}',
           "it's", '日本', 12345678901)
_PATTERNS = ('^[a-z]+$', r'\d{2,3}', '^a|b$', '^(x|yz)*$', '^[^"]{2}', r'[/\\]', r'^\w+@\w+$')
_FORMATS = ('date', 'time', 'date-time', 'uuid', 'email', 'ipv4', 'ipv6', 'uri', 'hostname',
            'duration', 'int32')


class SchemaMaker:
    """Draws schemas with every keyword that is kept, and some that may not be."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.defs = ('d1', 'd2')[:rng.randint(0, 2)]

    def root(self, *, arguments: bool) -> dict[str, Any]:
        if arguments:
            made: Any = {'type': 'object', **self.fields(1)}
        else:
            made = self.schema(0)
            made = {'allOf': [made]} if isinstance(made, bool) else made
        if self.defs:
            made['$defs'] = {name: self.schema(1) for name in self.defs}
        return made

    def schema(self, depth: int) -> Any:
        rng = self.rng
        kinds = [self.string, self.number, self.words, self.given, self.free]
        if depth < 4:
            kinds += [self.array, self.object, self.object, self.union]
        made = rng.choice(kinds)(depth)
        if isinstance(made, dict) and '$ref' not in made:
            if self.chance(0.1):
                made['description'] = 'text'
            if self.chance(0.07):
                made['nullable'] = True
        return made

    def string(self, depth: int) -> Any:
        made: dict[str, Any] = {'type': 'string'}
        if self.chance(0.3):
            made['minLength'] = self.rng.randint(0, 4)
        if self.chance(0.3):
            made['maxLength'] = self.rng.randint(3, 9)
        if self.chance(0.15):
            made['pattern'] = self.rng.choice(_PATTERNS)
        elif self.chance(0.15):
            made['format'] = self.rng.choice(_FORMATS)
        return made

    def number(self, depth: int) -> Any:
        rng = self.rng
        made: dict[str, Any] = {'type': rng.choice(('integer', 'number'))}
        low = rng.choice((0, 1, -5, -2.5, 10, 0.001, -1e6, 100))
        if self.chance(0.5):
            made[rng.choice(('minimum', 'exclusiveMinimum'))] = low
        if self.chance(0.5):
            made[rng.choice(('maximum', 'exclusiveMaximum'))] = low + rng.choice(
                (0.5, 1, 3, 100, 1e5))
        if self.chance(0.1):
            made['multipleOf'] = rng.choice((2, 5, 10, 15, 7, 100))
        return made

    def words(self, depth: int) -> Any:
        return {'type': self.rng.choice((
            'boolean', 'null', ['string', 'null'], ['integer', 'string'],
            ['boolean', 'number', 'array']))}

    def given(self, depth: int) -> Any:
        if self.chance(0.3):
            return {'const': self.rng.choice((*_VALUES, {'k': [1, 'z', None]}, [1, [2]], {}))}
        return {'enum': [self.rng.choice(_VALUES) for _ in range(self.rng.randint(1, 4))]}

    def free(self, depth: int) -> Any:
        if self.defs and self.chance(0.7):
            return {'$ref': '#/$defs/' + self.rng.choice(self.defs)}
        return self.rng.choice((True, {}, {'type': 'object'}, {'type': 'array'}))

    def array(self, depth: int) -> Any:
        made: dict[str, Any] = {'type': 'array'}
        if self.chance(0.8):
            made['items'] = self.schema(depth + 1)
        if self.chance(0.2):
            made['prefixItems'] = [self.schema(depth + 1) for _ in range(self.rng.randint(1, 3))]
        if self.chance(0.3):
            made['minItems'] = self.rng.randint(0, 3)
        if self.chance(0.3):
            made['maxItems'] = self.rng.randint(0, 5)
        return made

    def object(self, depth: int) -> Any:
        made: dict[str, Any] = {'type': 'object', **self.fields(depth + 1)}
        if self.chance(0.2):
            made['additionalProperties'] = self.rng.choice((False, True, self.schema(depth + 1)))
        if self.chance(0.1):
            made['minProperties'] = self.rng.randint(0, 2)
        if self.chance(0.1):
            made['maxProperties'] = self.rng.randint(1, 6)
        return made

    def fields(self, depth: int) -> dict[str, Any]:
        names = self.rng.sample(_NAMES, self.rng.randint(0, 4))
        return {'properties': {name: self.schema(depth) for name in names},
                'required': [name for name in names if self.chance(0.5)]}

    def union(self, depth: int) -> Any:
        members = [self.schema(depth + 1) for _ in range(self.rng.randint(1, 3))]
        return {self.rng.choice(('anyOf', 'anyOf', 'oneOf', 'allOf')): members}

    def chance(self, share: float) -> bool:
        return self.rng.random() < share


def with_nulls(schema: Any) -> Any:
    """`nullable`, which JSON Schema does not know, in its own words."""
    if isinstance(schema, list):
        return [with_nulls(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, item in schema.items():
        if key in ('properties', '$defs'):
            made[key] = {name: with_nulls(inner) for name, inner in item.items()}
        else:
            made[key] = item if key in ('const', 'enum') else with_nulls(item)
    if made.pop('nullable', False):
        defs = made.pop('$defs', {})
        made = {'anyOf': [{'type': 'null'}, made], '$defs': defs}
    return made
