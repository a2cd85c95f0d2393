# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""/tokenize, /detokenize, /render-prompt, /v1/models, /metrics: what needs no answer of the model,
and what counts the answers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from .conftest import Server, StartServer, wait_until

USER: Any = [{'role': 'user', 'content': 'hi'}]


def post(server: Server, path: str, body: Any) -> httpx.Response:
    return server.post(body, path)


def figures(server: Server) -> dict[str, float]:
    """All samples of /metrics: name with labels -> value."""
    page = server.get('/metrics')
    assert page.status_code == 200
    assert page.headers['content-type'].startswith('text/plain; version=')
    found = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            labels = ','.join(f'{key}={value}' for key, value in sorted(sample.labels.items()))
            found[f'{sample.name}{{{labels}}}' if labels else sample.name] = sample.value
    return found


def test_tokenize_and_back(plain_server: Server) -> None:
    server = plain_server
    text = 'Fahr zum Dock, 3 m! 🤖 <turn|>'
    plain = post(server, '/tokenize', {'content': text}).json()
    assert plain['count'] == len(plain['tokens']) > 5
    assert plain['max_model_len'] == server.runtime.require_chat().model_info().context_length
    assert 106 not in plain['tokens']                    # what looks like a control token is text
    with_bos = post(server, '/tokenize', {'prompt': text}).json()
    assert with_bos['tokens'] == [2, *plain['tokens']]
    without = post(server, '/tokenize', {'prompt': text, 'add_special_tokens': False}).json()
    assert without['tokens'] == plain['tokens']
    back = post(server, '/detokenize', {'tokens': plain['tokens']}).json()
    assert back == {'prompt': text, 'content': text}


def test_rendered_prompt_is_what_the_model_gets(plain_server: Server) -> None:
    server = plain_server
    rendered = post(server, '/render-prompt', {'messages': USER}).json()
    assert rendered['text'].startswith('<bos>')
    assert 'hi' in rendered['text']
    tokens = post(server, '/tokenize', {'messages': USER}).json()['tokens']
    assert tokens == rendered['token_ids']
    answer = server.post({'messages': USER}).json()
    assert answer['usage']['prompt_tokens'] == len(tokens)
    raw = post(server, '/v1/completions', {'prompt': tokens}).json()
    assert raw['usage']['prompt_tokens'] == len(tokens)
    thinking = post(server, '/render-prompt', {
        'messages': USER, 'chat_template_kwargs': {'enable_thinking': True}}).json()
    assert thinking['text'] != rendered['text']


@pytest.mark.parametrize(('path', 'body'), [
    ('/tokenize', {}), ('/tokenize', {'prompt': 'a', 'content': 'b'}), ('/tokenize', []),
    ('/tokenize', {'messages': []}), ('/tokenize', {'prompt': 'a', 'model': 'gpt-9'}),
    ('/detokenize', {}), ('/detokenize', {'tokens': [-1]}), ('/detokenize', {'tokens': [10 ** 9]}),
    ('/detokenize', {'tokens': ['x']}), ('/detokenize', {'tokens': [10 ** 400]}),
    ('/render-prompt', {}), ('/render-prompt', {'messages': [{'role': 'robot'}]}),
    ('/render-prompt', {'messages': USER, 'tools': [{'type': 'function'}]})])
def test_bad_input_is_4xx(plain_server: Server, path: str, body: Any) -> None:
    answer = post(plain_server, path, body)
    assert answer.status_code in (400, 404)
    assert answer.json()['error']['message']


def test_models(start_server: StartServer) -> None:
    server = start_server('x<turn|>', model__name='robot/brain')
    client = server.client()
    assert client.models.retrieve('robot/brain').id == 'robot/brain'
    assert server.get('/v1/models/gpt-9').json()['error']['code'] == 'model_not_found'
    asked = server.post({'messages': USER, 'model': 'gpt-9'})
    assert (asked.status_code, asked.json()['error']['code']) == (404, 'model_not_found')


def test_figures_count_what_happened(start_server: StartServer) -> None:
    server = start_server('one two three four five<turn|>')
    before = figures(server)
    assert before['vllm:num_requests_running'] == before['vllm:num_requests_waiting'] == 0
    assert before['vllm:kv_cache_usage_perc'] == 0
    answers = [server.post({'messages': USER}).json(),
               server.post({'messages': USER, 'max_tokens': 3}).json()]
    server.post({'messages': USER, 'model': 'gpt-9'})
    list(server.client().chat.completions.create(model='scripted', messages=USER, stream=True))
    completion = sum(answer['usage']['completion_tokens'] for answer in answers)
    completion += answers[0]['usage']['completion_tokens']
    # An answer's end goes out before its step is added up.
    assert wait_until(lambda: figures(server)['vllm:generation_tokens_total'] == completion)
    now = figures(server)
    assert now['vllm:prompt_tokens_total'] == 3 * answers[0]['usage']['prompt_tokens']
    assert now['vllm:request_success_total{finished_reason=stop}'] == 2
    assert now['vllm:request_success_total{finished_reason=length}'] == 1
    assert now['gemma_thor:requests_total{front_end=http}'] == 3
    assert now['vllm:time_to_first_token_seconds_count'] == 3
    assert now['vllm:inter_token_latency_seconds_count'] <= completion - 3
    assert now['vllm:request_generation_tokens_sum'] == completion
    path = '/v1/chat/completions'
    assert now[f'gemma_thor:http_responses_total{{path={path},status=200}}'] == 3
    assert now[f'gemma_thor:http_responses_total{{path={path},status=404}}'] == 1


def test_figures_while_it_runs_and_after_a_cancel(start_server: StartServer) -> None:
    server = start_server('word ' * 300 + '<turn|>', model__script_delay=0.01)
    stream = server.client().chat.completions.create(model='scripted', messages=USER, stream=True)
    next(iter(stream))
    assert figures(server)['vllm:num_requests_running'] == 1
    assert figures(server)['vllm:kv_cache_usage_perc'] > 0
    server.runtime.require_chat().cancel(stream.response.headers['x-request-id'])
    list(stream)
    assert wait_until(lambda: figures(server)['vllm:num_requests_running'] == 0)
    now = figures(server)
    assert now['vllm:request_success_total{finished_reason=abort}'] == 1


def test_figures_while_loading(start_server: StartServer) -> None:
    server = start_server('x<turn|>', wait=False, model__script_load=5.0)
    now = figures(server)
    assert now['gemma_thor:ready'] == 0
    assert 'vllm:num_requests_running' not in now


def test_unknown_paths_make_no_labels(start_server: StartServer) -> None:
    server = start_server('x<turn|>')
    for number in range(5):
        assert server.get(f'/nothing/{number}').status_code == 404
    now = figures(server)
    assert now['gemma_thor:http_responses_total{path=none,status=404}'] == 5


def test_docs_list_every_figure(plain_server: Server) -> None:
    docs = (Path(__file__).resolve().parents[2] / 'docs' / 'http.md').read_text(encoding='utf-8')
    plain_server.post({'messages': USER})
    page = plain_server.get('/metrics').text
    names = set(re.findall(r'^# TYPE (\S+) (?:counter|gauge|histogram)', page, re.MULTILINE))
    names = {name for name in names if not name.endswith('_created')}
    assert len(names) > 30
    documented = set(re.findall(r'`((?:vllm|gemma_thor|llamacpp):\w+)', docs))
    assert documented == names
