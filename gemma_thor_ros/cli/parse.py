# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor parse`: what a model wrote as JSON in, the answer as we read it as JSON out.

Needs a tokenizer file and no model. Input and output are a stable contract, so that anybody can
check our reading against other implementations.
"""

from __future__ import annotations

import argparse
from typing import Any

from gemma_thor_ros.cli.render import (
    add_tokenizer_option,
    answer,
    bad,
    load_tokenizer,
    read_object,
)
from gemma_thor_ros.schema import FinishReason
from gemma_thor_ros.text.normalize_tools import tool_schemas
from gemma_thor_ros.text.parser import OutputParser, ParsedOutput
from gemma_thor_ros.text.prompt import PromptState, prompt_state
from gemma_thor_ros.text.segments import Segment, join_text, split_markers
from gemma_thor_ros.text.tokenizer import Tokenizer

_INPUT = """input: one JSON object
  raw              the model's text; marker texts in it are control tokens
  token_ids        or its token ids
  segments         or [{"text": ..., "control": true|false}]: a control segment is one token
  prompt_tail      the end of the prompt, to tell whether it left a thought open
  tools            names, a map name -> schema, or tools in OpenAI form
  finish           how the generation ended: "stop", "length", "cancelled" or "error"; without it
                   a stop token in the text means stop, none means length
output: {"content", "reasoning_content", "tool_calls": [{"name", "arguments", "repaired"}],
  "finish_reason", "repaired", "malformed": [raw text of calls that could not be read]},
  or {"error": {"message", "param"}} and exit code 2"""


def add_parser(subparsers: Any) -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'parse', help='raw model text or token ids on standard input to an answer',
        description='Read raw model output: text, reasoning and tool calls.', epilog=_INPUT,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add_tokenizer_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 = read (also when calls in it are malformed), 2 = bad input."""
    return answer(lambda: _parse(read_object(), load_tokenizer(args.tokenizer)))


def _parse(document: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    parser = OutputParser(tokenizer, tool_schemas(document.get('tools')),
                          prompt=_prompt(document))
    finish = _finish(document)
    parser.push(_token_ids(document, tokenizer))
    output = parser.finish(finish)
    return as_json(output)


def as_json(output: ParsedOutput) -> dict[str, Any]:
    """A parsed answer as the verb prints it; empty texts are null."""
    return {
        'content': output.content or None,
        'reasoning_content': output.reasoning or None,
        'tool_calls': [{'name': call.name, 'arguments': call.arguments, 'repaired': call.repaired}
                       for call in output.tool_calls],
        'finish_reason': str(output.finish_reason),
        'repaired': output.repaired,
        'malformed': list(output.malformed),
    }


def _prompt(document: dict[str, Any]) -> PromptState:
    tail = document.get('prompt_tail')
    if tail is not None and not isinstance(tail, str):
        raise bad(f'prompt_tail must be a string, found {type(tail).__name__}', 'prompt_tail')
    return prompt_state(split_markers(tail or ''))


def _finish(document: dict[str, Any]) -> FinishReason | None:
    finish = document.get('finish')
    if finish is None:
        return None
    names = [str(reason) for reason in FinishReason]
    if finish not in names:
        raise bad(f'finish is {finish!r}, expected one of {", ".join(names)}', 'finish')
    return FinishReason(finish)


def _token_ids(document: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    if document.get('token_ids') is not None:
        ids = document['token_ids']
        if not isinstance(ids, list) or not all(type(item) is int for item in ids):
            raise bad('token_ids must be a list of integers', 'token_ids')
        size = tokenizer.vocab_size
        unknown = next((item for item in ids if not 0 <= item < size), None)
        if unknown is not None:
            raise bad(f'token id {unknown} is outside the vocabulary (0 to {size - 1})',
                      'token_ids')
        return ids
    if document.get('segments') is not None:
        return _encode(_segments(document['segments']), tokenizer, strict=True)
    raw = document.get('raw', document.get('raw_model_output'))
    if not isinstance(raw, str):
        raise bad('one of raw (a string), token_ids or segments is needed', 'raw')
    return _encode(split_markers(raw), tokenizer, strict=False)


def _segments(given: Any) -> list[Segment]:
    segments = []
    for index, item in enumerate(given if isinstance(given, list) else [None]):
        text = item.get('text') if isinstance(item, dict) else None
        control = item.get('control') or False if isinstance(item, dict) else None
        if not isinstance(text, str) or not isinstance(control, bool):
            raise bad(f'segments[{index}] must be an object with text (a string) and control '
                      '(true or false)', 'segments')
        segments.append(Segment(text, control))
    return segments


def _encode(segments: list[Segment], tokenizer: Tokenizer, strict: bool) -> list[int]:
    """Token ids; a marker that the vocabulary lacks is text in `raw`, an error in `segments`."""
    known = tokenizer.controls.by_text()
    ids: list[int] = []
    for text, control in join_text(segment if segment.text in known or strict
                                   else Segment(segment.text) for segment in segments):
        if not control:
            ids += tokenizer.encode(text)
        elif text in known:
            ids.append(known[text])
        else:
            raise bad(f'{text!r} is no control token of this vocabulary', 'segments')
    return ids
