# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Grammars over token ids: which token may come next in a tool call or in a JSON answer.

Compiles schemas for llguidance, the one library that is told the vocabulary here. A control token
is known by its id alone, text that spells one is text. Knows no request, no engine and no array.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.text.grammar_keys import KeyState, UniqueKeys
from gemma_thor_ros.text.grammar_notation import CallNotation, JsonNotation
from gemma_thor_ros.text.grammar_rules import NO_TEXT, Rules, SchemaRules, TooLarge
from gemma_thor_ros.text.grammar_schema import SchemaReader
from gemma_thor_ros.text.normalize_tools import NAME
from gemma_thor_ros.text.tokenizer import Tokenizer

MAX_ROLLBACK = 64                  # tokens that a matcher can take back
_LONGEST_TOKEN = 256                     # bytes; no vocabulary of the family has longer ones
_CACHED_GRAMMARS = 64
_NOTHING_LEFT = ('NoExtension', 'NoExtensionBias')       # the library's reasons to stop
_UNGUIDED: Mapping[str, Any] = {'type': 'object', 'additionalProperties': True}


class GrammarError(Exception):
    """A grammar failed at work; the request that it guides can't go on."""


class Tool(NamedTuple):
    """A tool for `Grammars.calls`; `where` names its parameters in errors.

    What its schema can't be held to is an error if it is strict, else its arguments may be any.
    """

    name: str
    parameters: Any
    where: str = 'parameters'
    strict: bool = False


class Grammars:
    """All grammars of one vocabulary; use it from any thread.

    Building one takes about a second for a vocabulary of 262,144 tokens and holds the
    interpreter's lock, so it belongs where a model is loaded. `stop_ids` end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, stop_ids: Sequence[int]) -> None:
        self.controls = tokenizer.controls
        self.control_ids = tokenizer.control_ids
        self.stop_ids = tuple(stop_ids)
        tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self._keys = UniqueKeys(tokens, self.controls.quote)
        self._ids = {text: token_id for token_id, text in enumerate(tokens) if text}
        vocabulary = cast(TokenizerWrapper, _Vocabulary(tokenizer, tokens))
        self._tokenizer = LLTokenizer(vocabulary, eos_token=list(stop_ids))
        self._cache: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def calls(self, tools: Sequence[Tool]) -> Grammar:
        """One call of one of the tools, from behind its opening token to its closing one.

        Raises RequestError, UNSUPPORTED with the JSON pointer, for a strict tool.
        """
        return self._cached(['calls', *tools], lambda: self._calls(tools))

    def answer(self, schema: Any, where: str) -> Grammar:
        """A JSON text that fits a schema; a stop id may follow. `where` names it in errors.

        Raises RequestError, UNSUPPORTED with the JSON pointer.
        """
        return self._cached(['answer', schema, where], lambda: self._answer(schema, where))

    def _calls(self, tools: Sequence[Tool]) -> Grammar:
        rules = Rules(CallNotation(self.controls.quote), self._fault)
        bodies = []
        for tool in tools:
            if not NAME.fullmatch(tool.name):
                raise RequestError(ErrorCode.INVALID_REQUEST,
                                   f'{tool.name!r} can not be the name of a tool', tool.where)
            try:
                body = self._root(rules, tool.parameters or {}, tool.where, closed=True)
            except RequestError:
                if tool.strict:
                    raise
                body = self._root(rules, _UNGUIDED, tool.where, closed=True)
            bodies.append(rules.rule(f'{json.dumps(tool.name)} {body}'))
        start = f'"call:" ({" | ".join(bodies)}) <[{self.controls.call_end}]>'
        return self._grammar(rules, start, 'tools')

    def _answer(self, schema: Any, where: str) -> Grammar:
        rules = Rules(JsonNotation(), self._fault)
        return self._grammar(rules, self._root(rules, schema, where, closed=False), where)

    def _root(self, rules: Rules, schema: Any, where: str, *, closed: bool) -> str:
        try:
            body = SchemaRules(rules, SchemaReader(schema, where)).root(closed=closed)
        except TooLarge as error:
            raise RequestError(ErrorCode.UNSUPPORTED, f'{where}: the schema is too large for '
                               f'guided decoding: {error}', where) from error
        if body is None:
            raise RequestError(ErrorCode.UNSUPPORTED, f'{where}: no value that guided decoding '
                               'can write fits the schema', where)
        return body

    def _grammar(self, rules: Rules, start: str, where: str) -> Grammar:
        # Canonical tokens are forced where only one text is possible. The library's way to find
        # these places fails on conjunctions, which therefore leave the choice to the model.
        options = '%llguidance {"no_forcing": true}\n' if rules.has_conjunctions else ''
        matcher = LLMatcher(self._tokenizer, options + rules.text(start), log_level=0)
        trial = matcher.deep_copy()
        if not matcher.is_error():
            trial.compute_bitmask()                      # where some of its limits show
        if trial.is_error():
            raise RequestError(ErrorCode.UNSUPPORTED, f'{where}: the grammar of the schema can '
                               f'not be built: {_first_line(trial.get_error())}', where)
        keys = self._keys if rules.has_free_keys and rules.notation.unique_keys else None
        return Grammar(matcher, keys, self.stop_ids, self._ids)

    def _fault(self, terminal: str) -> str:
        """What is wrong with the definition of a terminal, or ''."""
        matcher = LLMatcher(self._tokenizer, f'%llguidance {{"no_forcing": true}}\nstart: T\n'
                                             f'T: {terminal}\n', log_level=0)
        if not matcher.is_error():
            stuck = _has(matcher.compute_bitmask(), self.stop_ids[0])
            if matcher.stop_reason() in _NOTHING_LEFT or (stuck and not matcher.is_accepting()):
                return '' if matcher.is_accepting() else NO_TEXT
        return _first_line(matcher.get_error())

    def _cached(self, key: list[Any], make: Callable[[], Grammar]) -> Grammar:
        name = json.dumps(key, default=repr)             # with the order of properties
        with self._lock:
            if name in self._cache:
                self._cache.move_to_end(name)
                return self._cache[name]
        grammar = make()
        with self._lock:
            self._cache[name] = grammar
            while len(self._cache) > _CACHED_GRAMMARS:
                self._cache.popitem(last=False)
        return grammar


class Grammar:
    """A compiled grammar; `matcher()` starts one text of it."""

    def __init__(self, prototype: LLMatcher, keys: UniqueKeys | None,
                 stop_ids: tuple[int, ...], ids: Mapping[bytes, int]) -> None:
        self._ids = ids
        self._prototype = prototype
        self._keys = keys
        self._stop_ids = stop_ids
        self._lock = threading.Lock()

    def matcher(self) -> Matcher:
        """A new matcher at the start of the grammar."""
        with self._lock:
            return Matcher(self._prototype.deep_copy(), self._keys, self._stop_ids, self._ids)


class Matcher:
    """One text of a grammar as it grows, for one thread. Raises GrammarError when it fails."""

    def __init__(self, matcher: LLMatcher, keys: UniqueKeys | None,
                 stop_ids: tuple[int, ...], ids: Mapping[bytes, int]) -> None:
        self._ids = ids                                  # of all tokens with a text
        self._matcher = matcher
        self._keys = keys
        self._stop_ids = stop_ids
        self._states: deque[KeyState] = deque([KeyState()], MAX_ROLLBACK + 1)
        self._mask: bytes | None = None

    def mask(self) -> bytes:
        """One bit per id, bit id % 8 of byte id // 8: what may come next, stop ids at the end."""
        if self._mask is None:
            mask = self._matcher.compute_bitmask()
            self._check()
            if _has(mask, self._stop_ids[0]) and not self._matcher.is_accepting():
                raise GrammarError('no token fits')      # which the library shows as an end
            forbidden = self._keys.forbidden(self._states[-1]) if self._keys else []
            self._mask = self._widened(_without(mask, forbidden) if forbidden else mask)
        return self._mask

    def _widened(self, mask: bytes) -> bytes:
        """A mask of a single token, with the longer ones of the text that has to come.

        The library forces the first token of a text that is certain, as the tokenizer cuts that
        text alone; what follows may move the cut (`:{}` is `:`, `{}`, but `:{}}` is `:{`, `}}`).
        """
        if int.from_bytes(mask, 'little').bit_count() != 1:
            return mask
        text = bytes(self._matcher.deep_copy().compute_ff_bytes())
        found = False
        bits = bytearray(mask)
        for size in range(1, min(len(text), _LONGEST_TOKEN) + 1):
            token_id = self._ids.get(text[:size])
            if token_id is None:
                continue
            if _has(mask, token_id):
                found = True                             # the one that is forced
            elif found:
                bits[token_id >> 3] |= 1 << (token_id & 7)
        return bytes(bits)

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        return bool(self._matcher.is_accepting())

    def accept(self, token_id: int) -> None:
        """Add a token, which has to be one of the mask's."""
        self._mask = None
        if not self._matcher.consume_token(token_id):
            self._check()
            raise GrammarError(f'token {token_id} is not allowed here')
        if self._keys is not None:
            self._states.append(self._keys.after(self._states[-1], token_id))

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens, at most MAX_ROLLBACK."""
        self._mask = None
        if not self._matcher.rollback(num_tokens):
            self._check()
            raise GrammarError(f'{num_tokens} tokens can not be taken back')
        if self._keys is not None:
            for _ in range(num_tokens):
                self._states.pop()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(_first_line(self._matcher.get_error()))


class _Vocabulary:
    """What the library asks of a tokenizer."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[bytes]) -> None:
        self._encode = tokenizer.encode
        self.eos_token_id = tokenizer.controls.eos
        self.bos_token_id = tokenizer.controls.bos
        self.special_token_ids = sorted(tokenizer.control_ids)
        self.tokens = list(tokens)
        for token_id in tokenizer.control_ids:
            self.tokens[token_id] = (tokenizer.pieces[token_id] or '').encode()
        # The library marks control tokens by this byte, which no text holds: without it the byte
        # token and some letters could spell one.
        for token_id, value in tokenizer.byte_values.items():
            if value == 0xFF:
                self.tokens[token_id] = b''

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode('utf-8', 'replace'))


def _has(mask: bytes, token_id: int) -> bool:
    return bool(mask[token_id >> 3] & (1 << (token_id & 7)))


def _without(mask: bytes, ids: Iterable[int]) -> bytes:
    """The mask without some ids."""
    bits = bytearray(mask)
    for token_id in ids:
        bits[token_id >> 3] &= ~(1 << (token_id & 7))
    return bytes(bits)


def _first_line(message: str) -> str:
    lines = message.strip().splitlines()
    return lines[0][:200] if lines else ''
