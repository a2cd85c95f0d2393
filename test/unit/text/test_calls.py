# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The strict rule and the repairs: which calls may act, which are shown, which are dropped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemma_thor_ros.schema import FinishReason
from gemma_thor_ros.text.normalize_tools import tool_schemas
from gemma_thor_ros.text.parser import OutputParser, ParsedOutput
from gemma_thor_ros.text.prompt import prompt_state
from gemma_thor_ros.text.segments import encode_segments, split_markers
from gemma_thor_ros.text.tokenizer import Tokenizer

Q = '<|"|>'
OPEN, CLOSE, STOP = '<|tool_call>', '<tool_call|>', '<|tool_response>'


def read(tokenizer: Tokenizer, raw: str, tools: Any = None, tail: str = '<|turn>model\n',
         finish: FinishReason | None = None) -> ParsedOutput:
    parser = OutputParser(tokenizer, tool_schemas(tools), prompt=prompt_state(split_markers(tail)))
    parser.push(encode_segments(split_markers(raw), tokenizer))
    return parser.finish(finish)


def one(tokenizer: Tokenizer, body: str, tools: Any = None) -> tuple[dict[str, Any], bool] | None:
    """Arguments and repaired flag of the call with this body; delimiters are written ^."""
    output = read(tokenizer, OPEN + body.replace('^', Q) + CLOSE + STOP, tools)
    assert not output.content and not output.reasoning
    if not output.tool_calls:
        assert output.malformed == (body.replace('^', Q),)
        assert output.finish_reason is FinishReason.STOP
        return None
    call, = output.tool_calls
    assert not output.malformed
    assert output.finish_reason is FinishReason.TOOL_CALLS
    assert output.repaired is call.repaired
    assert json.dumps(call.arguments, ensure_ascii=False) == call.arguments_json
    return call.arguments, call.repaired


STRICT: list[tuple[str, dict[str, Any]]] = [
    ('call:f{}', {}),
    (' call : f { } ', {}),
    ('call:f{a:1}', {'a': 1}),
    ('call:f{\r\n\ta\t:\n1\n}', {'a': 1}),
    ('call:f{a:-0,b:0,c:-1.5,d:1e5,e:1E-2,f:0.50,g:12345678901234567890}',
     {'a': 0, 'b': 0, 'c': -1.5, 'd': 100000.0, 'e': 0.01, 'f': 0.5,
      'g': 12345678901234567890}),
    ('call:f{a:true,b:false,c:null}', {'a': True, 'b': False, 'c': None}),
    ('call:f{a:^^,b:^ ^,c:^\n^}', {'a': '', 'b': ' ', 'c': '\n'}),
    ('call:f{a:^{"k": [1, \'x\']} = \\n <b>, c:d}^}',
     {'a': '{"k": [1, \'x\']} = \\n <b>, c:d}'}),
    ('call:f{a:[],b:{},c:[[],{}],d:[{a:[^]^]}]}',
     {'a': [], 'b': {}, 'c': [[], {}], 'd': [{'a': [']']}]}),
    ('call:f{key with space:1,dotted.key:2,hy-phen:3,a(b):4,température:5}',
     {'key with space': 1, 'dotted.key': 2, 'hy-phen': 3, 'a(b)': 4, 'température': 5}),
    ('call:f{true:1,1:2,null:3}', {'true': 1, '1': 2, 'null': 3}),
]


@pytest.mark.parametrize(('body', 'arguments'), STRICT)
def test_grammatical_call_may_act(tokenizer: Tokenizer, body: str,
                                  arguments: dict[str, Any]) -> None:
    found = one(tokenizer, body)
    assert found == (arguments, False)
    assert found and json.dumps(found[0]) == json.dumps(arguments)


@pytest.mark.parametrize('name', ['f', 'nav2.go-to_pose', 'a:b', 'ns/f', 'über', 'f_2', '@x'])
def test_names(tokenizer: Tokenizer, name: str) -> None:
    output = read(tokenizer, f'{OPEN}call:{name}{{a:1}}{CLOSE}{STOP}')
    assert [(call.name, call.repaired) for call in output.tool_calls] == [(name, False)]


REPAIRED: list[tuple[str, dict[str, Any]]] = [
    # numbers that JSON doesn't know stay as they were spelled
    ('call:f{a:007}', {'a': '007'}), ('call:f{a:1.}', {'a': '1.'}), ('call:f{a:.5}', {'a': '.5'}),
    ('call:f{a:+1}', {'a': '+1'}), ('call:f{a:0x10}', {'a': '0x10'}), ('call:f{a:-}', {'a': '-'}),
    ('call:f{a:1e}', {'a': '1e'}), ('call:f{a:1_000}', {'a': '1_000'}),
    ('call:f{a:nan,b:inf,c:-Infinity,d:NaN}',
     {'a': 'nan', 'b': 'inf', 'c': '-Infinity', 'd': 'NaN'}),
    ('call:f{a:1e999,b:-1e999}', {'a': '1e999', 'b': '-1e999'}),
    ('call:f{a:٣}', {'a': '٣'}),
    ('call:f{a:1 2}', {'a': '1 2'}),
    # words
    ('call:f{unit:celsius}', {'unit': 'celsius'}),
    ('call:f{a:True,b:None,c:False}', {'a': True, 'b': None, 'c': False}),
    ('call:f{a:TRUE,b:nil}', {'a': 'TRUE', 'b': 'nil'}),
    ('call:f{a:go left, then right,b:2}', {'a': 'go left, then right', 'b': 2}),
    ('call:f{a:[x,y z]}', {'a': ['x', 'y z']}),
    ('call:f{u:http://h:80/p,b:1}', {'u': 'http://h:80/p', 'b': 1}),
    # quotes
    ('call:f{a:"x",b:\'y\'}', {'a': 'x', 'b': 'y'}),
    ('call:f{"a":1,\'b\':2,^c d^:3}', {'a': 1, 'b': 2, 'c d': 3}),
    ('call:f{a:["x",\'z]\']}', {'a': ['x', 'z]']}),
    ('call:f{a:"say \\"hi\\"\\n"}', {'a': 'say "hi"\n'}),
    ("call:f{a:'it's fine',b:1}", {'a': "it's fine", 'b': 1}),
    ("call:f{text:'abc'^}", {'text': 'abc'}),
    ('call:f{text:^press ^OK^ now^,volume:3}', {'text': 'press "OK" now', 'volume': 3}),
    ('call:f{a:^x^ ^,b:1}', {'a': 'x', 'b': 1}),
    # signs
    ('call:f{a=1,b = ^x^}', {'a': 1, 'b': 'x'}),
    ('call:f(a: 1, b: "m")', {'a': 1, 'b': 'm'}),
    ('call:f({a:1})', {'a': 1}), ('call:f()', {}),
    ('call:f{a:1}}', {'a': 1}),
    ('call:f{a:1,a:2}', {'a': 2}), ('call:f{a:{b:1,b:2}}', {'a': {'b': 2}}),
    # heads
    ('f{a:1}', {'a': 1}), (':f{a:1}', {'a': 1}), ('call:"f"{a:1}', {'a': 1}),
    ('call:^f^{a:1}', {'a': 1}), ('call: "f" {a:1}', {'a': 1}), ('call::f{a:1}', {'a': 1}),
    # keys that the grammar doesn't allow
    ('call:f{a<b:1}', {'a<b': 1}),
]


@pytest.mark.parametrize(('body', 'arguments'), REPAIRED)
def test_ungrammatical_call_is_repaired(tokenizer: Tokenizer, body: str,
                                        arguments: dict[str, Any]) -> None:
    found = one(tokenizer, body)
    assert found == (arguments, True)
    assert found and json.dumps(found[0]) == json.dumps(arguments)


@pytest.mark.parametrize('body', [
    '', ' ', 'call', 'call:', 'call:f', 'call:{a:1}', 'f', 'call:f{', 'call:f{a', 'call:f{a:',
    'call:f{a:1', 'call:f{a:^x}', 'call:f{a:^x^', 'call:f{a:[1}', 'call:f{a:{b:1}',
    'call:f{a:1,}', 'call:f{a:[1,]}', 'call:f{,a:1}', 'call:f{a:,b:1}', 'call:f{a:[,1]}',
    'call:f{:1}', 'call:f{ :1}', 'call:f{a:1} and more', 'call:f{a:1}call:g{b:2}',
    'call:get battery{}', 'call:f{a:"x}', 'call:f{a}', 'call:f{1,2}', 'call:f(1, 2)',
    '{"name":"f","arguments":{"a":1}}', 'call:f[1]', 'hello there', 'call:f{a:]}', 'call:f{a:b{}}',
    'call:f{a:^x^^y^z}', 'call:f{a:1,,b:2}',
])
def test_unreadable_call_is_dropped(tokenizer: Tokenizer, body: str) -> None:
    assert one(tokenizer, body) is None


def test_very_long_number_stays_text(tiny: Tokenizer) -> None:
    assert one(tiny, f'call:f{{a:{"9" * 4300}}}') == ({'a': int('9' * 4300)}, False)
    assert one(tiny, f'call:f{{a:{"9" * 4301}}}') == ({'a': '9' * 4301}, True)


def test_depth_limit(tiny: Tokenizer) -> None:
    def nested(levels: int) -> str:                       # the arguments are the first level
        return 'call:f{a:' + '[' * (levels - 1) + ']' * (levels - 1) + '}'
    found = one(tiny, nested(64))
    assert found and found[1] is False
    assert one(tiny, nested(65)) is None
    assert one(tiny, nested(5000)) is None
    assert one(tiny, 'call:f' + '{a:' * 5000) is None
    assert one(tiny, 'call:f' + '{a=' * 64 + '1' + '}' * 64) is not None
    assert one(tiny, 'call:f' + '{a=' * 65 + '1' + '}' * 65) is None


SCHEMA = {'f': {'type': 'object', 'properties': {
    's': {'type': 'string'}, 'i': {'type': 'integer'}, 'n': {'type': 'number'},
    'b': {'type': 'boolean'}, 'si': {'type': ['string', 'integer']},
    'ns': {'anyOf': [{'type': 'integer'}, {'type': 'null'}]},
    'e': {'enum': ['1', 'two']}, 'o': {'$ref': '#/$defs/O'},
    'a': {'type': 'array', 'items': {'type': 'string'}}, 'any': {}},
    'additionalProperties': {'type': 'integer'},
    '$defs': {'O': {'type': 'object', 'properties': {'s': {'type': 'string'},
                                                     'i': {'type': 'integer'}}}}}}


@pytest.mark.parametrize(('body', 'arguments', 'repaired'), [
    ('s:^5^,i:5,n:5,b:true,si:5,ns:null,e:^1^', {'s': '5', 'i': 5, 'n': 5, 'b': True, 'si': 5,
                                                 'ns': None, 'e': '1'}, False),
    ('n:5.0,i:5.0,any:^5^', {'n': 5.0, 'i': 5.0, 'any': '5'}, False),
    ('s:012', {'s': '012'}, True), ('s:1.50', {'s': '1.50'}, True),
    ('s:true', {'s': 'true'}, True),
    ('i:^5^', {'i': 5}, True), ('n:^-0.5^', {'n': -0.5}, True), ('b:^false^', {'b': False}, True),
    ('b:^True^', {'b': True}, True), ('ns:^null^', {'ns': None}, True),
    ('ns:^7^', {'ns': 7}, True),
    ('si:^5^', {'si': '5'}, False), ('e:1', {'e': '1'}, True),
    ('i:^five^', {'i': 'five'}, False), ('i:^1.5^', {'i': '1.5'}, False),
    ('b:^maybe^', {'b': 'maybe'}, False), ('i:^007^', {'i': '007'}, False),
    ('o:{s:5,i:^6^}', {'o': {'s': '5', 'i': 6}}, True),
    ('o:^{"s": "x"}^', {'o': {'s': 'x'}}, True), ('o:^{"s": NaN}^', {'o': '{"s": NaN}'}, False),
    ('a:[1,^2^]', {'a': ['1', '2']}, True), ('a:[^1^]', {'a': ['1']}, False),
    ('zzz:^5^', {'zzz': 5}, True), ('s:null', {'s': None}, False),
])
def test_schema_guides_values(tokenizer: Tokenizer, body: str, arguments: dict[str, Any],
                              repaired: bool) -> None:
    found = one(tokenizer, f'call:f{{{body}}}', SCHEMA)
    assert found == (arguments, repaired)
    assert found and json.dumps(found[0]) == json.dumps(arguments)


@pytest.mark.parametrize('schema', [
    {'type': 3}, {'properties': 3}, {'properties': {'a': 3}}, {'anyOf': 3}, {'anyOf': [3]},
    {'$ref': '#/$defs/x'}, {'$ref': '#'}, {'properties': {'a': {'$ref': '#/properties/a'}}},
    {'properties': {'a': {'enum': 3}}}, {'additionalProperties': True},
    {'properties': {'a': {'anyOf': [{'$ref': '#/properties/a'}] * 50}}},
])
def test_odd_schema_changes_nothing(tiny: Tokenizer, schema: Any) -> None:
    assert one(tiny, 'call:f{a:^1^}', {'f': schema}) == ({'a': '1'}, False)


@pytest.mark.parametrize(('raw', 'calls', 'content', 'reasoning'), [
    # without its closer a call counts where a stop token or other structure ends it
    (f'{OPEN}call:f{{a:1}}{STOP}', [('f', True)], '', ''),
    (f'{OPEN}call:f{{a:1}}<eos>', [('f', True)], '', ''),
    (f'{OPEN}call:f{{a:1}}{OPEN}call:g{{}}{CLOSE}{STOP}', [('f', True), ('g', False)], '', ''),
    (f'{OPEN}call:f{{a:1}}<channel|>Hi<turn|>', [('f', True)], 'Hi', ''),
    (f'{OPEN}call:f{{a:{Q}x{STOP}', [], '', ''),
    (f'{OPEN}call:f{{a:{OPEN}call:g{{}}{CLOSE}{STOP}', [('g', False)], '', ''),
    # control tokens that mean nothing spoil the call they are in
    (f'{OPEN}call:f{{a:1<pad>}}{CLOSE}{STOP}', [('f', True)], '', ''),
    (f'{OPEN}<bos>call:f{{}}{CLOSE}{STOP}', [('f', True)], '', ''),
    (f'<pad>{OPEN}call:f{{}}{CLOSE}<mask>{STOP}', [('f', False)], '', ''),
    (f'{OPEN}call:f{{}}<tool_response|>Hi{STOP}', [('f', True)], 'Hi', ''),
    (f'{OPEN}{OPEN}call:f{{}}{CLOSE}{STOP}', [('f', True)], '', ''),
    (f'{OPEN}{STOP}', [], '', ''),
    # within an unclosed thought nothing acts
    (f'<|channel>thought\nx{OPEN}call:f{{}}{CLOSE}{STOP}', [('f', True)], '', 'x'),
    (f'<|channel>thought\nx{OPEN}call:f{{}}{CLOSE}{OPEN}call:g{{}}{CLOSE}{STOP}',
     [('f', True), ('g', True)], '', 'x'),
    (f'<|channel>thought\nx{OPEN}call:f{{}}{CLOSE}y<channel|>Hi{OPEN}call:g{{}}{CLOSE}{STOP}',
     [('f', True), ('g', False)], 'Hi', 'x\ny'),
    (f'<|channel>thought\nx{OPEN}call:f{{}}{CLOSE}Done.<turn|>', [('f', True)], 'Done.', 'x'),
    (f'<|channel>{OPEN}call:f{{}}{CLOSE}{STOP}', [('f', True)], '', ''),
    (f'<|channel>thought\nx<channel|>{OPEN}call:f{{}}{CLOSE}{STOP}', [('f', False)], '', 'x'),
    # nothing behind a stop token
    (f'{OPEN}call:f{{}}{CLOSE}{STOP}{OPEN}call:g{{}}{CLOSE}', [('f', False)], '', ''),
    (f'Hi<turn|>\n<|turn>user\n{OPEN}call:g{{}}{CLOSE}', [], 'Hi', ''),
    (f'Hi<|turn>user\nmore{OPEN}call:g{{}}{CLOSE}', [], 'Hi', ''),
    ('<|turn>model\nHi<turn|>', [], 'Hi', ''),
    ('<|turn>user\nHi<turn|>', [], '', ''),
    # stray structure in text disappears
    (f'a{CLOSE}b{Q}c<tool|>d<|think|>e<|image|>f<turn|>', [], 'abcdef', ''),
    ('<channel|>a<channel|> b<turn|>', [], 'a b', ''),
])
def test_structure(tokenizer: Tokenizer, raw: str, calls: list[tuple[str, bool]], content: str,
                   reasoning: str) -> None:
    output = read(tokenizer, raw)
    assert [(call.name, call.repaired) for call in output.tool_calls] == calls
    assert (output.content, output.reasoning) == (content, reasoning)


@pytest.mark.parametrize(('finish', 'calls', 'reason'), [
    (None, 0, 'length'), (FinishReason.LENGTH, 0, 'length'), (FinishReason.STOP, 1, 'tool_calls'),
    (FinishReason.TOOL_CALLS, 1, 'tool_calls'), (FinishReason.CANCELLED, 0, 'cancelled'),
    (FinishReason.ERROR, 0, 'error'),
])
def test_a_call_cut_off_before_its_closer(tiny: Tokenizer, finish: FinishReason | None,
                                          calls: int, reason: str) -> None:
    output = read(tiny, f'{OPEN}call:f{{a:1}}', finish=finish)
    assert len(output.tool_calls) == calls
    assert all(call.repaired for call in output.tool_calls)
    assert output.finish_reason == reason
    assert output.malformed == (() if calls else ('call:f{a:1}',))


def test_finish_reason_follows_the_stop_token(tiny: Tokenizer) -> None:
    done = f'{OPEN}call:f{{}}{CLOSE}{STOP}'
    assert read(tiny, done, finish=FinishReason.LENGTH).finish_reason == 'tool_calls'
    assert read(tiny, done, finish=FinishReason.CANCELLED).finish_reason == 'cancelled'
    assert read(tiny, 'Hi', finish=FinishReason.STOP).finish_reason == 'stop'
    assert read(tiny, 'Hi').finish_reason == 'length'


TOOLS = ['say', 'get_battery', 'say_all']


@pytest.mark.parametrize(('raw', 'calls', 'content'), [
    (f'call:say{{text:{Q}hi{Q}}}{CLOSE}{STOP}', [{'text': 'hi'}], ''),
    (f'Sure. call:say{{text:{Q}}} {{{Q}}}{CLOSE}{STOP}', [{'text': '} {'}], 'Sure.'),
    (f'<channel|>call:get_battery{{}}{CLOSE}ok{STOP}', [{}], 'ok'),
    (f'call:fly{{}}{CLOSE}{STOP}', [], 'call:fly{}'),
    (f'recall:say{{}}{CLOSE}{STOP}', [], 'recall:say{}'),
    (f'call:say{{}} there{CLOSE}{STOP}', [], 'call:say{} there'),
    (f'call:say{{{CLOSE}{STOP}', [], 'call:say{'),
    (f'call:say{{a:{Q}x{CLOSE}{STOP}', [], 'call:say{a:x'),
    (f'call:say{{,}}{CLOSE}{STOP}', [], 'call:say{,}'),
    ('call:say{}<turn|>', [], 'call:say{}'),
    ('call:say{', [], 'call:say{'), ('call:sa', [], 'call:sa'), ('cal', [], 'cal'),
    (f'a c b ca call: call:say{{x:1}}{CLOSE}{STOP}', [{'x': 1}], 'a c b ca call:'),
    (f'call:say{{}} no, call:say_all{{b:2}}{CLOSE}{STOP}', [{'b': 2}], 'call:say{} no,'),
])
def test_bare_call(tokenizer: Tokenizer, raw: str, calls: list[dict[str, Any]],
                   content: str) -> None:
    output = read(tokenizer, raw, TOOLS)
    assert [call.arguments for call in output.tool_calls] == calls
    assert all(call.repaired for call in output.tool_calls)
    assert output.content == content
    assert read(tokenizer, raw).tool_calls == ()          # no declared tools, no bare calls


@pytest.mark.parametrize(('raw', 'tail', 'content', 'reasoning'), [
    ('thought\nplan<channel|>Go.<turn|>', '<|turn>model\n', 'Go.', 'plan'),
    (' thought\nplan<channel|>Go.<turn|>', '<|turn>model\n', 'Go.', 'plan'),
    ('thought<channel|>Go.<turn|>', '<|turn>model\n', 'Go.', ''),
    ('thou<channel|>Go.<turn|>', '<|turn>model\n', 'thouGo.', ''),
    ('thought\nplan<turn|>', '<|turn>model\n', 'thought\nplan', ''),
    ('thought\nplan', '<|turn>model\n', 'thought\nplan', ''),
    ('thoughts\nplan<channel|>x<turn|>', '<|turn>model\n', 'thoughts\nplanx', ''),
    ('<|channel>thought \n plan\n<channel|>x<turn|>', '<|turn>model\n', 'x', 'plan'),
    ('<|channel>analysis\nplan<channel|>x<turn|>', '<|turn>model\n', 'x', 'analysis\nplan'),
    ('<|channel>thoughtful<channel|>x<turn|>', '<|turn>model\n', 'x', 'thoughtful'),
    ('<|channel>thought\na<|channel>thought\nb<channel|>x<turn|>', '<|turn>model\n', 'x', 'a\nb'),
    ('<|channel>thought\na<channel|>x <|channel>thought\n \n<channel|>y<turn|>', '', 'x y', 'a'),
    ('<|channel>thought\na<turn|>', '<|turn>model\n', '', 'a'),
    ('plan<channel|>x<turn|>', '<|channel>thought\n', 'x', 'plan'),
    (' goes on<channel|>x<turn|>', '<|channel>thought\nI think', 'x', 'goes on'),
    ('ght\nplan<channel|>x<turn|>', '<|channel>thou', 'x', 'plan'),
    ('thought\nplan<channel|>x<turn|>', '<|channel>', 'x', 'plan'),
    ('Hi<turn|>', '<|channel>thought\n<channel|>', 'Hi', ''),
    (' a time<turn|>', '<|turn>model\nOnce upon', ' a time', ''),
    (' \n<turn|>', '<|turn>model\nOnce upon', '', ''),
    ('thought\nfree<channel|>!<turn|>', '<|turn>model\nA ', 'thought\nfree!', ''),
])
def test_thoughts(tokenizer: Tokenizer, raw: str, tail: str, content: str,
                  reasoning: str) -> None:
    output = read(tokenizer, raw, tail=tail)
    assert (output.content, output.reasoning) == (content, reasoning)


def test_in_thought_is_short_for_the_prompt_state(tiny: Tokenizer) -> None:
    parser = OutputParser(tiny, in_thought=True)
    parser.push(encode_segments(split_markers(f'a{OPEN}call:f{{}}{CLOSE}{STOP}'), tiny))
    output = parser.finish()
    assert output.reasoning == 'a' and output.repaired


def test_counts(tiny: Tokenizer) -> None:
    parser = OutputParser(tiny)
    ids = encode_segments(split_markers('<|channel>thought\nab<channel|>c<turn|>'), tiny)
    parser.push([*ids, 50, 50])
    assert parser.num_tokens == len(ids)
    assert parser.reasoning_tokens == len(ids) - 2
    assert parser.stop_id == 106


def test_bytes_that_are_no_text_spoil_a_call(tiny: Tokenizer) -> None:
    byte_id = {value: token_id for token_id, value in tiny.byte_values.items()}
    quote = tiny.controls.quote
    ids = [48, *tiny.encode('call:f{a:'), quote, byte_id[0xf0], byte_id[0x9f], quote,
           *tiny.encode('}'), 49, 50]
    parser = OutputParser(tiny)
    parser.push(ids)
    call, = parser.finish().tool_calls
    assert (call.arguments, call.repaired) == ({'a': ''}, True)
