# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over its debugging pipe: no driver program, no other package."""

from __future__ import annotations

import base64
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
FLAGS = (
    '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--mute-audio',
    '--no-first-run', '--disable-extensions', '--disable-background-networking',
    '--disable-component-update', '--disable-sync', '--force-color-profile=srgb',
    '--remote-debugging-pipe')
KEYS = {'Enter': (13, '\r'), 'Escape': (27, ''), 'Tab': (9, ''), 'ArrowUp': (38, '')}


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser process; every page has storage of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        to_child, to_browser = os.pipe()
        from_browser, from_child = os.pipe()
        # The browser reads its commands from descriptor 3 and answers on 4.
        command = f'exec "$0" "$@" 3<&{to_child} 4>&{from_child}'
        self._process = subprocess.Popen(
            ['bash', '-c', command, program, *FLAGS, f'--user-data-dir={folder}',
             'about:blank'],
            pass_fds=(to_child, from_child), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        self._in = os.fdopen(to_browser, 'wb', buffering=0)
        self._out = os.fdopen(from_browser, 'rb')
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._lock = threading.Lock()
        self._last_id = 0
        threading.Thread(target=self._read, daemon=True).start()

    def call(self, method: str, session: str = '', **params: Any) -> dict[str, Any]:
        """Run a command of the protocol and return its result."""
        answer: queue.Queue[dict[str, Any]] = queue.Queue()
        with self._lock:
            self._last_id += 1
            number = self._last_id
            self._answers[number] = answer
            message: dict[str, Any] = {'id': number, 'method': method, 'params': params}
            if session:
                message['sessionId'] = session
            self._in.write(json.dumps(message).encode() + b'\0')
        found = answer.get(timeout=20.0)
        assert 'error' not in found, f'{method}: {found["error"]}'
        result: dict[str, Any] = found['result']
        return result

    def open(self, url: str, width: int = 1000, height: int = 760) -> Page:
        """Open a page in a fresh profile."""
        context = self.call('Target.createBrowserContext')['browserContextId']
        target = self.call('Target.createTarget', url='about:blank', browserContextId=context,
                           width=width, height=height)['targetId']
        session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        page = Page(self, session, context)
        self._pages[session] = page
        for domain in ('Page', 'Runtime', 'Network', 'Log'):
            page.call(f'{domain}.enable')
        page.call('Emulation.setDeviceMetricsOverride', width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        page.call('Page.navigate', url=url)
        page.wait('document.readyState === "complete"')
        return page

    def close(self) -> None:
        try:
            self.call('Browser.close')
            self._process.wait(10.0)
        except (AssertionError, OSError, queue.Empty, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(10.0)

    def _read(self) -> None:
        rest = b''
        while data := self._out.read1(1 << 20):          # type: ignore[attr-defined]
            *messages, rest = (rest + data).split(b'\0')
            for raw in messages:
                message = json.loads(raw)
                if 'id' in message:
                    self._answers.pop(message['id']).put(message)
                elif page := self._pages.get(message.get('sessionId', '')):
                    page.hear(message['method'], message['params'])


class Page:
    """One tab, with everything that it asked for and complained about."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser = browser
        self._context = context
        self._session = session
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def hear(self, method: str, params: dict[str, Any]) -> None:
        if method == 'Network.requestWillBeSent':
            self.requests.append(params['request']['url'])
        elif method == 'Runtime.exceptionThrown':
            self.complaints.append(json.dumps(params['exceptionDetails'])[:1000])
        elif method == 'Log.entryAdded' and params['entry']['level'] == 'error':
            self.complaints.append(params['entry']['text'])

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        result = self.call('Runtime.evaluate', expression=expression, awaitPromise=True,
                           returnByValue=True)
        assert 'exceptionDetails' not in result, result['exceptionDetails']
        return result['result'].get('value')

    def wait(self, expression: str, seconds: float = 10.0) -> None:
        """Wait until an expression is true."""
        limit = time.monotonic() + seconds
        while True:
            value = self.js(f'!!({expression})')
            if value or time.monotonic() > limit:
                assert value, f'never true: {expression}\n{self.js("document.body.innerText")}'
                return
            time.sleep(0.02)

    def grant(self, *permissions: str) -> None:
        """Allow the page something, as the clipboard."""
        self._browser.call('Browser.grantPermissions', permissions=permissions,
                           browserContextId=self._context)

    def text(self, selector: str) -> list[str]:
        """The texts of all elements that match."""
        found: list[str] = self.js(
            f'[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText)')
        return found

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        box = self.js(
            f'(() => {{ const e = document.querySelector({json.dumps(selector)});'
            'e.scrollIntoView({block: "nearest"}); const b = e.getBoundingClientRect();'
            'return [b.x + b.width / 2, b.y + b.height / 2]; })()')
        for kind in ('mousePressed', 'mouseReleased'):
            self.call('Input.dispatchMouseEvent', type=kind, x=box[0], y=box[1], button='left',
                      clickCount=1)

    def type(self, text: str) -> None:
        """Type text where the focus is."""
        self.call('Input.insertText', text=text)

    def key(self, name: str, shift: bool = False) -> None:
        """Press a key."""
        code, text = KEYS[name]
        common: dict[str, Any] = {'key': name, 'code': name, 'windowsVirtualKeyCode': code,
                                  'modifiers': 8 if shift else 0}
        self.call('Input.dispatchKeyEvent', type='keyDown', text=text, **common)
        self.call('Input.dispatchKeyEvent', type='keyUp', **common)

    def emulate(self, **features: str) -> None:
        """Set media features, as prefers_color_scheme='dark'."""
        self.call('Emulation.setEmulatedMedia', features=[
            {'name': name.replace('_', '-'), 'value': value} for name, value in features.items()])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call('Page.captureScreenshot')['data']))
