# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Images over HTTP, on tiny models with sight that `gemma-thor synth` makes.

Case H14 (the same image early and late, the second time with a warm prefix) as a client sees it.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from gemma_thor_ros.cli.main import main
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import DEMO_FOLDER, Runtime
from gemma_thor_ros.schema import ChatRequest
from gemma_thor_ros.server.run import Sidecar

HTTP = httpx.Client(timeout=30.0, trust_env=False)
PRESETS = ('tiny-vision', 'tiny-unified', 'tiny-e2b-vision')


class Sighted:
    """A served model with sight."""

    def __init__(self, folder: Path) -> None:
        config = EngineConfig.from_mapping({
            'model.path': str(folder), 'engine.device': 'cpu', 'http.port': 0,
            'engine.prefill_chunk': 64, 'engine.page_size': 8,
            'image.max_bytes': 1, 'request.max_images': 3})
        self.runtime = Runtime(config)
        self.runtime.start()
        assert self.runtime.wait_ready(60.0), self.runtime.error
        self.sidecar = Sidecar(self.runtime, config)
        self.url = f'http://127.0.0.1:{self.sidecar.start()}'

    def post(self, path: str, **body: Any) -> httpx.Response:
        return HTTP.post(f'{self.url}{path}', json=body)

    def chat(self, *messages: dict[str, Any], **options: Any) -> dict[str, Any]:
        answer = self.post('/v1/chat/completions', messages=messages, **{
            'temperature': 0, 'max_tokens': 8, **options})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def stop(self) -> None:
        self.sidecar.stop(5.0)
        self.runtime.stop(5.0)


@pytest.fixture(scope='module', params=PRESETS)
def sighted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
            ) -> Iterator[Sighted]:
    folder = tmp_path_factory.mktemp('sighted') / request.param
    assert main(['synth', str(folder), '--preset', request.param, '--format', 'bf16']) == 0
    shutil.copy(DEMO_FOLDER / 'tokenizer.json', folder)
    server = Sighted(folder)
    yield server
    server.stop()


def url(seed: int, height: int = 60, width: int = 90, kind: str = 'PNG') -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return f'data:image/{kind.lower()};base64,' + base64.b64encode(out.getvalue()).decode()


def image(seed: int) -> dict[str, Any]:
    return {'type': 'image_url', 'image_url': {'url': url(seed)}}


def user(*parts: Any) -> dict[str, Any]:
    return {'role': 'user', 'content': [
        {'type': 'text', 'text': part} if isinstance(part, str) else part for part in parts]}


def said(answer: dict[str, Any]) -> tuple[str, int]:
    usage = answer['usage']
    return answer['choices'][0]['message']['content'], usage['prompt_tokens']


def test_case_h14_the_same_image_early_and_late(sighted: Sighted) -> None:
    early, late = user(image(1), 'What is it?'), user('word ' * 500, image(1), 'What is it?')
    for message in (early, late):
        cold, warm = sighted.chat(message), sighted.chat(message)
        assert said(cold) == said(warm)
        cached = warm['usage']['prompt_tokens_details']['cached_tokens']
        assert cached > warm['usage']['prompt_tokens'] - 9
    at = [sighted.post('/tokenize', messages=[message]).json()['tokens'].index(4091)
          for message in (early, late)]
    assert at[0] < 20 and at[1] > 1490
    other = sighted.chat(user('word ' * 500, image(2), 'What is it?'))
    assert other['usage']['prompt_tokens_details']['cached_tokens'] <= at[1]


def test_the_answer_depends_on_the_image(sighted: Sighted) -> None:
    asked = {'logprobs': True, 'top_logprobs': 5, 'max_tokens': 2}
    first, again, other = (sighted.chat(user('Look:', image(seed)), **asked)['choices'][0][
        'logprobs'] for seed in (3, 3, 4))
    assert first == again != other


def test_streamed_equals_whole_and_counts_soft_tokens(sighted: Sighted) -> None:
    body = {'messages': [user(image(5), 'and', image(6))], 'temperature': 0, 'max_tokens': 8}
    whole = sighted.chat(*body['messages'])
    with HTTP.stream('POST', f'{sighted.url}/v1/chat/completions',
                     json={**body, 'stream': True}) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith('data: {')]
    text = ''.join(json.loads(line[6:])['choices'][0]['delta'].get('content') or ''
                   for line in lines)
    assert text == said(whole)[0]
    alone = said(sighted.chat(user('and')))[1]
    assert whole['usage']['prompt_tokens'] == alone + 2 * (60 + 2)


def test_responses_take_images_too(sighted: Sighted) -> None:
    whole = sighted.chat(user('Look:', image(7)))
    answer = sighted.post('/v1/responses', temperature=0, max_output_tokens=8, input=[{
        'role': 'user', 'content': [{'type': 'input_text', 'text': 'Look:'},
                                    {'type': 'input_image', 'image_url': url(7)}]}])
    assert answer.status_code == 200, answer.text
    parts = [part['text'] for item in answer.json()['output'] if item['type'] == 'message'
             for part in item['content']]
    assert ''.join(parts) == said(whole)[0]


def test_a_chain_of_responses_ends_at_its_images_in_clear_words(sighted: Sighted) -> None:
    """Three are taken here; without a new one the chain goes on."""
    def ask(before: str | None, *images: int) -> Any:
        parts = [{'type': 'input_image', 'image_url': url(seed)} for seed in images]
        return sighted.post('/v1/responses', max_output_tokens=1, previous_response_id=before,
                            input=[{'role': 'user', 'content': [
                                *parts, {'type': 'input_text', 'text': 'Look'}]}])
    last = None
    for seed in (7, 8):
        last = ask(last, seed).json()['id']
    refused = ask(last, 9, 7)
    assert refused.status_code == 400
    error = refused.json()['error']
    assert error['param'] == 'previous_response_id' and error['message'].startswith(
        'input has 2 images and what previous_response_id goes on with has 2; at most 3 are taken')
    assert ask(last, 9).status_code == ask(last).status_code == 200
    assert ask(None, 7, 8, 9, 7).json()['error']['message'].startswith('input: 4 images')


def test_the_prompt_is_shown_as_the_model_gets_it(sighted: Sighted) -> None:
    shown = sighted.post('/render-prompt', messages=[user('a', image(1), 'b')]).json()
    assert shown['text'].count('<|image|>') == shown['token_ids'].count(4091) == 60
    assert 'a<|image>' + '<|image|>' * 60 + '<image|>b' in shown['text']


@pytest.mark.parametrize(('part', 'words', 'param'), [
    ({'type': 'image_url', 'image_url': {'url': 'https://example.org/a.png'}},
     'images are taken as data URLs alone', 'messages[0].content[0].image_url.url'),
    ({'type': 'image_url', 'image_url': {'url': 'file:///etc/passwd'}}, "'file:'", None),
    ({'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,QUJD'}},
     'is no PNG, JPEG or WebP file', None),
    ({'type': 'image_url', 'image_url': {'url': url(1, 1, 65)}}, 'stand 65 to 1', None),
    ({'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,' + 'A' * 1500000}},
     'at most 1,048,576 are taken', None),
    ({'type': 'image_url'}, 'has no image_url: images are', 'messages[0].content[0]'),
    ({'type': 'image_url', 'image_url': {}}, 'must be a URL', None),
    ({'type': 'input_audio'}, 'takes no', None),
    ({'type': 'video'}, 'takes no video', None)])
def test_what_is_refused_and_how(sighted: Sighted, part: dict[str, Any], words: str,
                                 param: str | None) -> None:
    answer = sighted.post('/v1/chat/completions', messages=[user(part)])
    assert answer.status_code == 400, answer.text
    error = answer.json()['error']
    assert words in error['message'] and error['param'] in (param, error['param'])


def test_a_context_too_short_for_the_image_is_said_in_tokens(sighted: Sighted) -> None:
    answer = sighted.post('/v1/chat/completions', messages=[user('word ' * 1360, image(1))])
    assert answer.status_code == 400
    assert 'the context is 4,096 tokens' in answer.json()['error']['message']


def test_the_terminal_shows_image_files(sighted: Sighted, tmp_path: Path,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / 'seen.png'
    path.write_bytes(base64.b64decode(url(9).partition(',')[2]))
    asked = ['chat', '--url', f'{sighted.url}/v1', '--temperature', '0', '--max-tokens', '8',
             '--prompt', 'What is it?', '--json']
    assert main([*asked, '--image', str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown['text'] == said(sighted.chat(user(image(9), 'What is it?')))[0]
    path.write_text('text')
    assert main([*asked, '--image', str(path)]) == 2
    assert 'is no PNG, JPEG or WebP file' in capsys.readouterr().err


def test_a_session_keeps_its_images(sighted: Sighted) -> None:
    """The second turn of a session has the prompt of the whole conversation sent at once."""
    chat = sighted.runtime.require_chat()
    greedy = {'temperature': 0.0, 'max_tokens': 6}
    first = user(image(8), 'What is it?')
    one = chat.submit(ChatRequest((first,), sampling=greedy, session_id='s')).result()
    two = chat.submit(ChatRequest((user('Why?'),), sampling=greedy, session_id='s')).result()
    whole = chat.submit(ChatRequest((first, {'role': 'assistant', 'content': one.text},
                                     user('Why?')), sampling=greedy)).result()
    assert two.token_ids == whole.token_ids
    assert two.usage.prompt_tokens == whole.usage.prompt_tokens > 62


def test_a_session_with_an_image_a_turn_goes_on_for_ever(sighted: Sighted) -> None:
    """Its oldest turns go when there are more images than a request may have."""
    chat = sighted.runtime.require_chat()
    greedy = {'temperature': 0.0, 'max_tokens': 4}
    asked: list[dict[str, Any]] = []
    for turn in range(6):
        asked.append(user(image(20 + turn), f'{turn}?'))
        answer = chat.submit(ChatRequest((asked[-1],), sampling=greedy, session_id='eyes'))
        asked.append({'role': 'assistant', 'content': answer.result().text})
    (view,) = [each for each in chat.list_sessions() if each.session_id == 'eyes']
    assert view.num_messages == 6
    whole = chat.submit(ChatRequest(tuple(asked[-6:-1]), sampling=greedy)).result()
    assert whole.text == asked[-1]['content']
    refused = sighted.post('/v1/chat/completions', messages=[user(*map(image, range(4)))])
    assert refused.status_code == 400
    assert 'messages: 4 images, history included; at most 3' in refused.json()['error']['message']
