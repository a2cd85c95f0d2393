# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI page is true: requests made from it, right and wrong ones, never meet an answer that
it does not describe, nor a 5xx.
"""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    UndefinedStatusCode,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from .conftest import Server, StartServer, wait_until

EXAMPLES = 15
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance,
          response_headers_conformance, response_schema_conformance]
READ = [('GET', '/health'), ('GET', '/metrics'), ('GET', '/v1/models'),
        ('GET', '/v1/models/{model}'), ('GET', '/v1/responses/{response_id}'),
        ('DELETE', '/v1/responses/{response_id}')]
ASK = [('POST', '/v1/chat/completions'), ('POST', '/v1/completions'), ('POST', '/v1/responses'),
       ('POST', '/tokenize'), ('POST', '/detokenize'), ('POST', '/render-prompt')]
RIGHT, WRONG = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
USER: Any = [{'role': 'user', 'content': 'level?'}]
TOOLS: Any = [{'type': 'function', 'function': {'name': 'get_battery', 'parameters': {
    'type': 'object', 'properties': {}}}}]
FLAT: Any = [{'type': 'function', 'name': 'get_battery', 'parameters': {
    'type': 'object', 'properties': {}}}]
ANSWER = ('<|channel>thought\nhm\n<channel|>I look.<|tool_call>call:get_battery{}<tool_call|>'
          '<|tool_response>')
GOOD: list[tuple[str, Any]] = [
    ('/v1/chat/completions', {'messages': USER, 'tools': TOOLS, 'logprobs': True, 'n': 2}),
    ('/v1/chat/completions', {'messages': USER, 'stream': True}),
    ('/v1/completions', {'prompt': ['a', 'b'], 'logprobs': 1}),
    ('/v1/responses', {'input': 'level?', 'tools': FLAT, 'top_logprobs': 1, 'metadata': {}}),
    ('/tokenize', {'messages': USER}), ('/detokenize', {'tokens': [300]}),
    ('/render-prompt', {'messages': USER, 'tools': TOOLS})]


@pytest.fixture(scope='session')
def page(plain_server: Server) -> Any:
    return schemathesis.openapi.from_url(f'{plain_server.url}/openapi.json')


def call_many(operation: Any, mode: Any) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, timeout=20.0)

    run()


@pytest.mark.parametrize(('method', 'path', 'mode'), [
    *((*route, RIGHT) for route in READ + ASK), *((*route, WRONG) for route in ASK)])
def test_answers_are_as_described(page: Any, method: str, path: str, mode: Any) -> None:
    call_many(page[path][method], mode)


def test_a_page_that_hides_an_answer_is_caught(plain_server: Server) -> None:
    raw = plain_server.get('/openapi.json').json()
    del raw['paths']['/tokenize']['post']['responses']['400']
    page = schemathesis.openapi.from_dict(raw)
    page.config.update(base_url=plain_server.url)
    with pytest.raises(BaseExceptionGroup) as caught:
        call_many(page['/tokenize']['POST'], WRONG)
    assert caught.group_contains(UndefinedStatusCode)


@pytest.mark.parametrize(('path', 'body'), GOOD)
def test_good_answers_have_the_described_form(start_server: StartServer, path: str,
                                              body: Any) -> None:
    page = schemathesis.openapi.from_url(f'{start_server(ANSWER).url}/openapi.json')
    case = page[path]['POST'].Case(body=body, media_type='application/json')
    response = case.call_and_validate(checks=CHECKS, timeout=20.0)
    assert response.status_code == 200


def test_every_route_is_on_the_page(plain_server: Server) -> None:
    paths = plain_server.get('/openapi.json').json()['paths']
    assert {(method.upper(), path) for path in paths for method in paths[path]} == {
        *READ, *ASK}
    for path in paths.values():
        for operation in path.values():
            assert operation['description'], operation
            assert '422' not in operation['responses']


def test_the_server_still_answers(plain_server: Server) -> None:
    answer = plain_server.post({'messages': [{'role': 'user', 'content': 'x'}]})
    assert answer.status_code == 200
    assert wait_until(lambda: plain_server.runtime.require_chat().stats().running == 0)
