# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The web page in a real browser: it talks, renders, stops, and runs nothing a model wrote."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.cli.main import main
from gemma_thor_ros.load import DEMO_FOLDER

from .browser import Page
from .conftest import OpenPage

ROOT = Path(__file__).resolve().parents[2]
THOUGHT = '<|channel>thought\nThe robot has a battery gauge.\n<channel|>'
CALL = '<|tool_call>call:get_battery{unit:<|"|>percent<|"|>}<tool_call|><|tool_response>'
TOOLS = [{'type': 'function', 'function': {
    'name': 'get_battery', 'description': 'Battery level',
    'parameters': {'type': 'object', 'properties': {'unit': {'type': 'string'}}}}}]


def say(page: Page, text: str) -> None:
    page.js('document.getElementById("input").focus()')
    page.type(text)
    page.key('Enter')


def settle(page: Page) -> None:
    """Wait for the end of the answer."""
    page.wait('document.querySelector(".answer") && !running'
              ' && document.querySelector(".answer:last-of-type .foot").childElementCount')


def clean(page: Page) -> None:
    assert not page.complaints
    assert all(url.startswith(('http://127.0.0.1:', 'data:', 'about:')) for url in page.requests)


def test_a_conversation_by_keyboard(open_page: OpenPage) -> None:
    page = open_page('The battery is **full**.<turn|>', 'Good bye.<turn|>')
    page.wait('document.getElementById("dot").className === "ok"')
    assert page.text('#state-text') == ['scripted']
    assert page.js('document.activeElement.id') == 'input'
    page.type('How full')
    page.key('Enter', shift=True)
    page.type('is the battery?')
    assert page.js('document.getElementById("input").value') == 'How full\nis the battery?'
    page.key('Enter')
    settle(page)
    assert page.text('.user .text') == ['How full\nis the battery?']
    assert page.text('.answer > .text') == ['The battery is full.']
    assert page.text('.answer strong') == ['full']
    assert re.search(r'\d+ tokens\s+\d+(\.\d)? tok/s', page.text('.foot')[0])
    say(page, 'Bye')
    page.wait('document.querySelectorAll(".answer").length === 2')
    settle(page)
    assert page.text('.answer > .text')[1] == 'Good bye.'
    # The second request carried the first turn.
    sent = page.js('messages.map((m) => m.role).join()')
    assert sent == 'user,assistant,user,assistant'
    page.key('ArrowUp')
    assert page.js('document.getElementById("input").value') == 'Bye'
    page.click('#new')
    assert page.js('messages.length') == 0
    assert page.js('!document.getElementById("hello").hidden')
    clean(page)


def test_markdown(open_page: OpenPage) -> None:
    text = ('# Plan\n\nFirst *slowly*, then `fast` and ~~never~~:\n\n1. go\n2. stop\n   - really\n'
            '\n- [x](https://example.org/a) and <b>no tag</b>\n\n> quoted\n\n```python\n'
            'def go(x):\n    return x < 3\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\nend')
    page = open_page(text + '<turn|>')
    say(page, 'plan?')
    settle(page)
    assert page.text('.answer h1') == ['Plan']
    assert page.text('.answer em') == ['slowly']
    assert page.text('.answer p code') == ['fast']
    assert page.text('.answer del') == ['never']
    assert page.js('document.querySelectorAll(".answer ol > li").length') == 2
    assert page.text('.answer ol ul li') == ['really']
    assert page.text('.answer blockquote') == ['quoted']
    assert page.text('.answer td') == ['1', '2']
    assert page.js('document.querySelectorAll(".answer hr").length') == 1
    assert page.text('.code pre') == ['def go(x):\n    return x < 3']
    assert page.js('document.querySelector(".answer a").href') == 'https://example.org/a'
    assert page.js('document.querySelector(".answer a").rel') == 'noopener noreferrer'
    assert 'and <b>no tag</b>' in page.text('.answer > .text')[0]
    page.grant('clipboardReadWrite', 'clipboardSanitizedWrite')
    page.click('.copy-code')
    page.wait('document.querySelector(".copy-code").textContent === "Copied"')
    assert page.js('navigator.clipboard.readText()') == 'def go(x):\n    return x < 3'
    clean(page)


EVIL = ('<script>window.hacked = 1</script>', '<img src=x onerror="window.hacked = 1">',
        '[a](javascript:window.hacked=1)', '[b](data:text/html,x)',
        '![c](https://evil.example/p)', '<svg onload=window.hacked=1>',
        '```html\n<iframe src="https://evil.example"></iframe>\n```',
        '[d](https://ok.example/"onmouseover="window.hacked=1)', '<a href="javascript:x">e</a>')


def test_what_the_model_writes_never_runs(open_page: OpenPage) -> None:
    page = open_page('\n\n'.join(EVIL) + '<turn|>')
    say(page, '<img src=y onerror="window.hacked = 2">')
    settle(page)
    assert page.js('window.hacked === undefined')
    assert page.js('document.querySelectorAll('
                   '"#log script, #log img, #log iframe, #log svg").length') == 0
    links = page.js('[...document.querySelectorAll("#log a")].map((a) => a.href)')
    assert all(link.startswith('https://') for link in links)
    assert page.js('[...document.querySelectorAll("#log *")].every((e) =>'
                   '![...e.attributes].some((a) => a.name.startsWith("on")))')
    clean(page)


def test_the_policy_stops_what_it_must(open_page: OpenPage) -> None:
    """Scripts, styles and connections that are not the page's own are refused by the browser."""
    page = open_page('x<turn|>')
    page.js('(() => { const s = document.createElement("script"); s.textContent = "window.bad=1";'
            'document.body.append(s); })()')
    assert page.js('window.bad === undefined')
    assert page.js('fetch("https://evil.example/").then(() => 1, () => 0)') == 0
    assert page.js('fetch("http://localhost:1/").then(() => 1, () => 0)') == 0
    assert any('Content Security Policy' in text for text in page.complaints)


def test_a_thought_folds_and_unfolds(open_page: OpenPage) -> None:
    page = open_page(THOUGHT + 'It is full.<turn|>', model__script_delay=0.03)
    say(page, 'level?')
    page.wait('document.querySelector("details.thought[open]")')
    assert page.text('details.thought summary') == ['Thinking…']
    settle(page)
    assert page.js('document.querySelector("details.thought").open') is False
    page.click('details.thought summary')
    assert page.text('details.thought > div') == ['The robot has a battery gauge.']
    assert page.text('.answer > .text') == ['It is full.']
    clean(page)


def test_tool_calls_and_results(open_page: OpenPage) -> None:
    page = open_page(CALL, 'It is at 80 percent.<turn|>')
    page.click('#open-settings')
    page.js('document.getElementById("tools").focus()')
    page.type('{"no": "list"}')
    assert page.text('#tools-error') == ['The tools must be a JSON list.']
    page.js('document.getElementById("tools").select()')
    page.type(json.dumps(TOOLS))
    assert page.js('document.getElementById("tools-error").hidden')
    page.click('#close-settings')
    page.wait('!document.getElementById("settings").open')
    say(page, 'level?')
    page.wait('document.querySelector(".call .result input")')
    assert page.text('.call .name') == ['get_battery']
    assert page.text('.call dt') == ['unit']
    assert page.text('.call dd') == ['percent']
    page.wait('document.activeElement.closest(".result")')
    page.type('80')
    page.key('Enter')
    page.wait('document.querySelectorAll(".answer").length === 2')
    settle(page)
    assert page.text('.call .given') == ['→ 80']
    assert page.text('.answer > .text')[1] == 'It is at 80 percent.'
    assert page.js('messages.map((m) => m.role).join()') == 'user,assistant,tool,assistant'
    clean(page)


@pytest.mark.parametrize('by', ['key', 'button'])
def test_stop(open_page: OpenPage, by: str) -> None:
    page = open_page('word ' * 300 + '<turn|>', model__script_delay=0.02)
    say(page, 'talk')
    page.wait('document.querySelector(".answer > .text").innerText.length > 10')
    assert page.js('!document.getElementById("stop").hidden')
    if by == 'key':
        page.key('Escape')
    else:
        page.click('#stop')
    settle(page)
    assert 'stopped' in page.text('.foot')[0]
    assert page.js('document.activeElement.id') == 'input'
    stats = page.runtime.require_chat().stats            # type: ignore[attr-defined]
    limit = time.monotonic() + 2.0
    while stats().running and time.monotonic() < limit:
        time.sleep(0.01)
    assert (stats().running, stats().requests_cancelled) == (0, 1)
    clean(page)


def test_settings_reach_the_server_and_stay(open_page: OpenPage) -> None:
    page = open_page('x<turn|>')
    page.click('#open-settings')
    values = {'system': 'Be brief.', 'temperature': '0.3', 'max-tokens': '7', 'seed': '5'}
    for name, value in values.items():
        page.js(f'document.getElementById("{name}").focus()')
        page.type(value)
    page.click('#thinking')
    page.key('Escape')
    page.wait('!document.getElementById("settings").open')
    body = page.js('requestBody()')
    assert body['messages'] == [{'role': 'system', 'content': 'Be brief.'}]
    assert (body['temperature'], body['max_tokens'], body['seed']) == (0.3, 7, 5)
    assert body['enable_thinking'] is True
    page.call('Page.reload')
    page.wait('document.readyState === "complete" && typeof settings === "object"')
    assert page.js('settings.system') == 'Be brief.'
    clean(page)


def test_errors_are_shown_and_can_be_tried_again(open_page: OpenPage) -> None:
    page = open_page('word ' * 100 + '<turn|>', model__script_delay=0.01, request__timeout=0.2)
    say(page, 'talk')
    settle(page)
    assert '0.2 s' in page.text('.foot .error')[0]
    page.js('[...document.querySelectorAll(".foot button")].pop().click()')
    page.wait('running !== null')
    settle(page)
    assert len(page.text('.answer')) == 1
    clean(page)


def test_an_api_key_is_asked_for(open_page: OpenPage, tmp_path: Path) -> None:
    key = tmp_path / 'key'
    key.write_text('secret')
    key.chmod(0o600)
    page = open_page('Hello.<turn|>', http__api_key_file=str(key))
    page.wait('document.getElementById("state-text").textContent === "an API key is needed"')
    say(page, 'hi')
    page.wait('document.getElementById("settings").open')
    assert page.js('document.activeElement.id') == 'key'
    page.type('secret')
    page.key('Escape')
    page.wait('document.getElementById("dot").className === "ok"')
    page.js('[...document.querySelectorAll(".foot button")].pop().click()')
    page.wait('document.querySelector(".answer > .text").innerText === "Hello."')
    assert page.js('!JSON.stringify(localStorage).includes("secret")')


def test_an_image_is_refused_politely(open_page: OpenPage) -> None:
    page = open_page('x<turn|>')
    page.js('(() => { const d = new DataTransfer();'
            'd.items.add(new File(["x"], "a.png", {type: "image/png"}));'
            'document.dispatchEvent(new DragEvent("drop", {dataTransfer: d, cancelable: true}));'
            '})()')
    assert page.text('#note') == ['This model takes no images.']
    assert page.js('messages.length') == 0
    clean(page)


def test_an_image_is_shown_and_sent(open_page: OpenPage, tmp_path: Path) -> None:
    folder = tmp_path / 'sighted'
    assert main(['synth', str(folder), '--preset', 'tiny-vision', '--format', 'bf16']) == 0
    shutil.copy(DEMO_FOLDER / 'tokenizer.json', folder)
    page = open_page(model__path=str(folder), engine__device='cpu')
    page.wait('document.getElementById("dot").className === "ok"')
    assert page.js('!document.getElementById("attach").hidden')
    page.js('(() => { const c = document.createElement("canvas"); c.width = 90; c.height = 60;'
            'c.getContext("2d").fillRect(9, 9, 40, 30);'
            'c.toBlob((blob) => { const d = new DataTransfer();'
            'd.items.add(new File([blob], "a.png", {type: "image/png"}));'
            'd.items.add(new File([blob], "b.png", {type: "image/png"}));'
            'd.items.add(new File(["x"], "a.txt", {type: "text/plain"}));'
            'document.dispatchEvent(new DragEvent("drop", {dataTransfer: d, cancelable: true}));'
            '}); })()')
    page.wait('document.querySelectorAll("#attached img").length === 2')
    assert page.text('#note') == ['Images are PNG, JPEG or WebP files.']
    page.js('document.querySelector("#attached button").click()')
    assert page.js('document.querySelectorAll("#attached img").length') == 1
    page.js('settings.maxTokens = "3"')
    say(page, 'What is this?')
    page.wait('messages.length === 2')
    assert page.js('messages[0].content.map((part) => part.type).join()') == 'image_url,text'
    assert page.js('document.querySelector(".user img").naturalWidth') == 90
    assert page.js('document.getElementById("attached").hidden')
    clean(page)


def test_loading_is_shown(open_page: OpenPage) -> None:
    page = open_page('x<turn|>', model__script_load=1.5)
    page.wait('/reading the script \\d+%/.test('
              'document.getElementById("state-text").textContent)')
    page.wait('document.getElementById("dot").className === "ok"')


def test_dark_and_light(open_page: OpenPage) -> None:
    page = open_page('x<turn|>')
    color = 'getComputedStyle(document.body).backgroundColor'
    light = page.js(color)
    page.emulate(prefers_color_scheme='dark')
    dark = page.js(color)
    assert light != dark
    page.click('#theme')                                  # auto -> light
    assert page.js(color) == light
    page.click('#theme')
    page.emulate(prefers_color_scheme='light')
    assert page.js(color) == dark
    page.click('#theme')
    assert page.js(color) == light


def test_a_long_answer_scrolls_along_unless_the_reader_looks_up(open_page: OpenPage) -> None:
    page = open_page('line\n\n' * 120 + '<turn|>', model__script_delay=0.005, height=500)
    say(page, 'talk')
    page.wait('document.getElementById("scroll").scrollTop > 100')
    page.js('document.getElementById("scroll").scrollTop = 0')
    page.wait('!document.getElementById("to-end").hidden')
    settle(page)
    assert page.js('document.getElementById("scroll").scrollTop') == 0
    page.click('#to-end')
    assert page.js('isAtEnd()')
    clean(page)


def test_narrow_screens_do_not_scroll_sideways(open_page: OpenPage) -> None:
    text = '# Title\n\n' + 'A' * 300 + '\n\n```\n' + 'b' * 300 + '\n```<turn|>'
    page = open_page(text, width=340, height=640)
    say(page, 'x' * 200)
    settle(page)
    assert page.js('document.documentElement.scrollWidth <= innerWidth')
    assert page.js('document.getElementById("scroll").scrollWidth <= innerWidth')
    assert page.text('.answer h1') == ['Title']
    clean(page)


SHOWN = ('Two ways to get there:\n\n1. **Through the hall**, 12 m, no doors\n2. *Along the wall*, '
         "15 m, `0.4 m/s` at most\n\n```python\nclient.send_goal('dock', speed=0.4)\n```\n"
         'I take the first one.' + CALL)


def test_screenshot(open_page: OpenPage, tmp_path: Path, pytestconfig: Any) -> None:
    """With --screenshot the picture in docs/ is made anew."""
    page = open_page(THOUGHT + SHOWN, width=900, height=640, model__script_delay=0.012)
    page.js(f'settings.tools = {json.dumps(json.dumps(TOOLS))}; settings.thinking = true')
    say(page, 'Drive to the dock, and tell me how full the battery is.')
    settle(page)
    page.wait('document.getElementById("dot").className === "ok"')
    page.js('document.querySelector("details.thought").open = true')
    page.js('toEnd()')
    keep = pytestconfig.getoption('--screenshot', False)
    path = ROOT / 'docs' / 'web_page.png' if keep else tmp_path / 'page.png'
    page.screenshot(path)
    assert path.read_bytes().startswith(b'\x89PNG')
    assert path.stat().st_size > 10_000


def test_the_api_page_shows_every_route(open_page: OpenPage) -> None:
    page = open_page('x<turn|>', path='/docs')
    page.wait('document.querySelectorAll("#objects section").length > 20')
    routes = ' '.join(page.text('#routes summary'))
    for route in ('POST /v1/chat/completions', 'POST /v1/responses', 'GET /metrics'):
        assert route in routes
    page.click('#routes details:nth-of-type(5) summary')
    assert page.js('document.querySelector("#ChatCompletionRequest table").innerText'
                   '.includes("messages *")')
    clean(page)
