# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor render`: messages and tools as JSON in, the exact prompt as JSON out.

Needs a tokenizer file and no model. Input and output are a stable contract, so that anybody can
check our prompts against other implementations.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from gemma_thor_ros.schema import ConfigError, ErrorCode, RequestError
from gemma_thor_ros.text.controls import BOS
from gemma_thor_ros.text.prompt import render
from gemma_thor_ros.text.segments import encode_segments, segments_text
from gemma_thor_ros.text.tokenizer import Tokenizer, read_config

DEFAULT_TOKENIZER = Path(__file__).resolve().parent.parent / 'demo' / 'model' / 'tokenizer.json'
_SWITCHES = {'enable_thinking': False, 'add_generation_prompt': True, 'preserve_thinking': False,
             'normalize': True}
_INPUT = """input: one JSON object
  messages, tools             a chat in OpenAI form
  variant                     "large" (12B, 26B, 31B; default) or "small" (E2B, E4B)
  enable_thinking, preserve_thinking, add_generation_prompt (default true)
  continue_final_message      true, "content" or "reasoning_content"
  normalize                   default true; false renders exactly as the model's own template
  kwargs, chat_template_kwargs    may hold the options instead
output: {"text": ..., "token_ids": [...]}, or {"error": {"message", "param"}} and exit code 2"""


def add_parser(subparsers: Any) -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'render', help='JSON messages on standard input to the exact prompt',
        description='Render a chat as the prompt that the model gets.', epilog=_INPUT,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add_tokenizer_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 = rendered, 2 = bad input."""
    return answer(lambda: _render(read_object(), load_tokenizer(args.tokenizer)))


def add_tokenizer_option(parser: argparse.ArgumentParser) -> None:
    """The options that render and parse share."""
    parser.add_argument('--tokenizer', type=Path, default=DEFAULT_TOKENIZER, metavar='FILE',
                        help="a tokenizer.json; the config.json beside it is read too "
                             "(default: the demo model's)")
    parser.add_argument('--json', action='store_true', help='accepted; the output is always JSON')


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file, with the config.json beside it. Raises ConfigError."""
    return Tokenizer.from_file(path, read_config(path.parent / 'config.json'))


def read_object() -> dict[str, Any]:
    """One JSON object from standard input. Raises RequestError."""
    try:
        document = json.loads(sys.stdin.buffer.read().decode('utf-8'), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = 'nested too deeply' if isinstance(error, RecursionError) else str(error)
        raise bad(f'standard input is not JSON: {reason}', '') from error
    if not isinstance(document, dict):
        raise bad(f'standard input must be one JSON object, found {type(document).__name__}', '')
    return document


def answer(work: Callable[[], Mapping[str, Any]]) -> int:
    """Print what `work` gives as JSON; bad input becomes an error object and exit code 2."""
    try:
        result, code = work(), 0
    except RequestError as error:
        result, code = {'error': {'message': error.message, 'param': error.param}}, 2
    except ConfigError as error:
        result, code = {'error': {'message': str(error), 'param': 'tokenizer'}}, 2
    print(json.dumps(result))
    return code


def bad(sentence: str, param: str) -> RequestError:
    """An error about the input."""
    return RequestError(ErrorCode.INVALID_REQUEST, sentence, param)


def _render(document: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    if 'messages' not in document and isinstance(document.get('request'), dict):
        document = {**document, **document['request']}
    options: dict[str, Any] = {}
    for key in ('kwargs', 'chat_template_kwargs'):
        given = document.get(key)
        if given is not None and not isinstance(given, dict):
            raise bad(f'{key} must be an object, found {type(given).__name__}', key)
        options.update(given or {})
    options.update(document)
    if options.get('bos_token', BOS) != BOS:
        raise bad(f'bos_token is {options["bos_token"]!r}, only {BOS!r} is supported', 'bos_token')
    switches = {name: _switch(options, name, default) for name, default in _SWITCHES.items()}
    messages, tools = options.get('messages'), options.get('tools')
    if not isinstance(messages, list):
        raise bad(f'messages must be a list, found {type(messages).__name__}', 'messages')
    if tools is not None and not isinstance(tools, list):
        raise bad(f'tools must be a list, found {type(tools).__name__}', 'tools')
    part = options.get('continue_final_message') or False
    if not isinstance(part, bool | str):
        raise bad('continue_final_message must be true, false or a string',
                  'continue_final_message')
    segments = render(messages, tools, variant=_variant(options), continue_final_message=part,
                      **switches)
    return {'text': segments_text(segments), 'token_ids': encode_segments(segments, tokenizer)}


def _variant(options: Mapping[str, Any]) -> str:
    """The template's variant; a test vector names it at the end of its id."""
    variant = options.get('variant')
    if variant is None:
        identity = options.get('id')
        return 'small' if isinstance(identity, str) and identity.endswith('/small') else 'large'
    if not isinstance(variant, str):
        raise bad("variant must be 'large' or 'small'", 'variant')
    return variant


def _switch(options: Mapping[str, Any], name: str, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad(f'{name} must be true or false, found {value!r}', name)
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f'{name} is not JSON')
