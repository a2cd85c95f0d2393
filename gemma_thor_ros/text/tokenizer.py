# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, with control tokens out of reach of any text.

Wraps the `tokenizers` library. The tokenizer knows no added tokens, so text that looks like a
control token is encoded as ordinary pieces; only the renderer places control ids, from a table.
Knows no chat format.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from gemma_thor_ros.schema import ConfigError, ErrorCode, RequestError
from gemma_thor_ros.text.controls import CORE, MEDIA, ControlTokens

_SPACE = '\u2581'                 # what the vocabulary writes for a blank
_CACHED_CHARS = 64                # texts up to this length are encoded once and remembered
_CACHED_TEXTS = 8192
_SAMPLE = ' A  b\nç e\u0301 日 \U0001f916\t{x:1.5}'


class Tokenizer:
    """Gemma 4's BPE tokenizer. Build it with `from_file` or `from_folder`; use it from any thread.

    `pieces[i]` is the text of id i as it appears in an answer, or None for a byte token, whose
    byte is `byte_values[i]`; control ids have their marker text and are in `control_ids`.
    """

    def __init__(self, backend: tokenizers.Tokenizer, pieces: list[str | None],
                 byte_values: dict[int, int], controls: ControlTokens) -> None:
        self._backend = backend
        self._cache: dict[str, list[int]] = {}
        self._cache_lock = threading.Lock()
        self.pieces = pieces
        self.byte_values = byte_values
        self.controls = controls
        self._control_by_text = controls.by_text()
        self.control_ids = frozenset(self._control_by_text.values())

    @classmethod
    def from_file(cls, path: str | Path, config: Mapping[str, Any] | None = None) -> Tokenizer:
        """Load a tokenizer.json. `config` is the checkpoint's config.json, for the media ids.

        Added tokens and the post-processor of the file are dropped. Raises ConfigError, naming
        the file and the token, when the file isn't a tokenizer of this family.
        """
        path = Path(path)
        if not path.is_file():
            raise ConfigError(f'{path}: no such tokenizer file')
        try:
            loaded = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:                      # the library raises plain Exception
            raise ConfigError(f'{path}: not a readable tokenizer file: {error}') from error
        model = loaded.model
        if not isinstance(model, models.BPE) or not model.byte_fallback or model.ignore_merges:
            raise ConfigError(f'{path}: expected a BPE model with byte_fallback and without '
                              f'ignore_merges, found {type(model).__name__}')
        _forget_words(model)
        backend = tokenizers.Tokenizer(model)
        if loaded.normalizer is not None:
            backend.normalizer = loaded.normalizer
        if loaded.pre_tokenizer is not None:
            backend.pre_tokenizer = loaded.pre_tokenizer
        vocab = backend.get_vocab(with_added_tokens=False)
        added = {token.content: token_id
                 for token_id, token in loaded.get_added_tokens_decoder().items()}
        controls = _control_tokens(path, vocab, added, config or {})
        pieces, byte_values = _pieces(path, vocab, controls)
        tokenizer = cls(backend, pieces, byte_values, controls)
        tokenizer._check(path)
        return tokenizer

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Load tokenizer.json of a checkpoint folder, with the config.json beside it if any."""
        folder = Path(folder)
        return cls.from_file(folder / 'tokenizer.json', read_config(folder / 'config.json'))

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id of the file."""
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Encode ordinary text: never a control id, no bos, the whole text as one run.

        Lone surrogates, which no UTF-8 text can hold, are encoded as U+FFFD.
        """
        if len(text) > _CACHED_CHARS:
            return self._encode(text)
        ids = self._cache.get(text)
        if ids is None:
            ids = self._encode(text)
            with self._cache_lock:
                if len(self._cache) >= _CACHED_TEXTS:
                    self._cache.clear()
                self._cache[text] = ids
        return ids.copy()

    def decode(self, token_ids: Iterable[int]) -> str:
        """Decode with control tokens as their marker texts; bytes that aren't UTF-8 are dropped.

        Equal to what a Detokenizer gives for the same ids however they are cut. Raises
        RequestError for an id outside the vocabulary.
        """
        out: list[str] = []
        run = bytearray()
        pieces = self.pieces
        for token_id in token_ids:
            if not 0 <= token_id < len(pieces):
                raise RequestError(
                    ErrorCode.INVALID_REQUEST,
                    f'token id {token_id} is outside the vocabulary (0 to {len(pieces) - 1})',
                    'token_ids')
            piece = pieces[token_id]
            if piece is None:
                run.append(self.byte_values[token_id])
                continue
            if run:
                out.append(run.decode('utf-8', 'ignore'))
                run.clear()
            out.append(piece)
        out.append(run.decode('utf-8', 'ignore'))
        return ''.join(out)

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that an id adds to an answer; b'' for control and unknown ids."""
        if token_id in self.control_ids or not 0 <= token_id < len(self.pieces):
            return b''
        piece = self.pieces[token_id]
        if piece is None:
            return bytes((self.byte_values[token_id],))
        return piece.encode('utf-8')

    def control_id(self, text: str) -> int:
        """The id of a control token by its marker text.

        Raises RequestError (UNSUPPORTED) when this vocabulary has none, as for images in a model
        without vision.
        """
        token_id = self._control_by_text.get(text)
        if token_id is None:
            raise RequestError(ErrorCode.UNSUPPORTED,
                               f'this model has no {text} token, so it can not take that input',
                               'messages')
        return token_id

    def _encode(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        except TypeError:                               # the library's answer to lone surrogates
            ids = self._backend.encode(_without_surrogates(text), add_special_tokens=False).ids
        if not self.control_ids.isdisjoint(ids):
            raise ConfigError('the merges of this tokenizer can make control tokens out of text')
        return ids

    def _check(self, path: Path) -> None:
        """Refuse a file whose text could become a control token or is lost in a round trip."""
        for text in self._control_by_text:
            self._encode(text)
        found = self.decode(self._encode(_SAMPLE))
        if found != _SAMPLE:
            raise ConfigError(f'{path}: text is not kept by encode and decode: '
                              f'{_SAMPLE!r} became {found!r}')


def read_config(path: Path) -> dict[str, Any] | None:
    """Read a config.json; None when there is none, ConfigError when it isn't a JSON object."""
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding='utf-8'))
    except ValueError as error:
        raise ConfigError(f'{path}: not JSON: {error}') from error
    if not isinstance(config, dict):
        raise ConfigError(f'{path}: expected a JSON object, found {type(config).__name__}')
    return config


def _forget_words(model: models.BPE) -> None:
    """Let the library keep no encoded words.

    Here a word is a whole text, so it would hardly meet one again; and it keeps up to 10,000 of
    them for each thread and tokenizer, also when the tokenizer has gone (0.23: 46 MB for 12,000
    sentences in 4 threads).
    """
    resize = getattr(model, '_resize_cache', None)
    if resize is not None:                              # not before 0.21
        resize(0)


def _control_tokens(path: Path, vocab: Mapping[str, int], added: Mapping[str, int],
                    config: Mapping[str, Any]) -> ControlTokens:
    ids: dict[str, int] = {}
    for name, (text, expected) in CORE.items():
        found = vocab.get(text, added.get(text))
        if found != expected:
            where = 'missing' if found is None else f'id {found}'
            raise ConfigError(f'{path}: control token {text} is {where}, expected id {expected}')
        ids[name] = expected
    for name, (text, _, keys) in MEDIA.items():
        found = vocab.get(text, added.get(text))
        stated = next((config[key] for key in keys if isinstance(config.get(key), int)), None)
        if found is not None and stated is not None and stated != found:
            raise ConfigError(f'{path}: control token {text} is id {found}, '
                              f'config.json says {stated}')
        if found is not None:
            ids[name] = found
    return ControlTokens(**ids)


def _pieces(path: Path, vocab: Mapping[str, int],
            controls: ControlTokens) -> tuple[list[str | None], dict[int, int]]:
    control_texts = controls.by_text()
    size = 1 + max(max(vocab.values()), max(control_texts.values()))
    pieces: list[str | None] = [''] * size
    for text, token_id in vocab.items():
        pieces[token_id] = text.replace(_SPACE, ' ')
    for text, token_id in control_texts.items():
        pieces[token_id] = text
    byte_values: dict[int, int] = {}
    for value in range(256):
        byte_id = vocab.get(f'<0x{value:02X}>')
        if byte_id is None:
            raise ConfigError(f'{path}: byte token <0x{value:02X}> is missing')
        pieces[byte_id] = None
        byte_values[byte_id] = value
    return pieces, byte_values


def _without_surrogates(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates by U+FFFD."""
    return text.encode('utf-16-le', 'surrogatepass').decode('utf-16-le', 'replace')
