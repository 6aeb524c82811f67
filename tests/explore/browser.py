"""A headless Chromium that is driven through its DevTools protocol, over a pair of pipes.

Nothing is installed for it: the browser is the system's (`chromium` of Debian, or Chrome). What is
waited for is a condition of the page, never a time.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--mute-audio",
)
PATIENCE = 30  # seconds until something that never happens fails a test
KEYS = {  # name: (code, number, text)
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "Backspace": ("Backspace", 8, ""),
    "Delete": ("Delete", 46, ""),
    "End": ("End", 35, ""),
    "Home": ("Home", 36, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    " ": ("Space", 32, " "),
}
SHIFT = 8


def find_browser() -> str | None:
    """The path of the system's Chromium or Chrome, None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def opened_browser(executable: str) -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(executable, profile)
        try:
            yield browser
        finally:
            browser.close()


class Browser:
    """A running browser: requests go to its file 3, answers and events come from its file 4."""

    def __init__(self, executable: str, profile: str) -> None:
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()

        def as_three_and_four() -> None:
            spare = os.dup(theirs_out)  # `theirs_out` may be 3 itself
            os.dup2(theirs_in, 3)
            os.dup2(spare, 4)

        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [executable, *FLAGS, *sandbox, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(3, 4),
            preexec_fn=as_three_and_four,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        threading.Thread(target=self._listen, daemon=True).start()

    def page(self) -> Page:
        """A new empty page."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        found = self.send("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, found["sessionId"])
        self._pages[page.session] = page
        page.prepare()
        return page

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The answer to a command of the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._answers[number] = queue.Queue()
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        answer = self._answers[number].get(timeout=PATIENCE)
        del self._answers[number]
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        try:
            self.send("Browser.close")
            self._process.wait(timeout=PATIENCE)
        except (OSError, queue.Empty, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        rest = b""
        while piece := os.read(self._in.fileno(), 2**16):
            *messages, rest = (rest + piece).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers[message["id"]].put(message)
                elif page := self._pages.get(message.get("sessionId", "")):
                    page.heard(message["method"], message["params"])


class Page:
    """One page: what a person does with it, and what it shows."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self.session = browser, session
        self.errors: list[str] = []  # of the console, of scripts, and of what could not be loaded

    def prepare(self) -> None:
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.send(method, self.session, **params)

    def heard(self, method: str, params: dict[str, Any]) -> None:
        """Keeps the errors among the events."""
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(params["entry"]))

    def size(self, width: int, height: int, scale: float = 1.0) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def dark(self, on: bool) -> None:
        """The system's wish for dark colours."""
        wish = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.send("Emulation.setEmulatedMedia", features=[wish])

    def go(self, url: str) -> None:
        """Open an address, from about:blank, so that another hash loads the page again too."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, what it is fulfilled with."""
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, condition: str) -> Any:
        """The value of an expression as soon as it is true."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                if value := self.js(condition):
                    return value
            except RuntimeError:
                pass  # the page is being loaded, or an element is not there yet
            time.sleep(0.02)
        shown = self.js("document.body.innerText")
        raise AssertionError(f"never true: {condition}\n{self.errors}\nthe page shows:\n{shown}")

    def find(self, selector: str) -> None:
        """Wait until there is such an element."""
        self.wait(f"{_first(selector)} !== null")

    def count(self, selector: str, number: int) -> None:
        """Wait until there are so many such elements."""
        self.wait(f"{_all(selector)}.length === {number}")

    def shows(self, selector: str, text: str) -> None:
        """Wait until the text of the first such element, or the value of a field, contains this."""
        shown = f"{_first(selector)}?.value || {_first(selector)}?.innerText"
        self.wait(f"({shown}).includes({json.dumps(text)})")

    def text(self, selector: str) -> str:
        """The text of the first element, once it is there."""
        self.find(selector)
        return self.js(f"{_first(selector)}.innerText")

    def texts(self, selector: str) -> list[str]:
        return self.js(f"{_all(selector)}.map(e => e.innerText)")

    def data(self, selector: str, name: str = "value") -> list[float]:
        """Numbers that elements carry as data-NAME: what they show, before it was rounded."""
        return self.js(f"{_all(selector)}.map(e => Number(e.dataset[{json.dumps(name)}]))")

    def focus(self, selector: str) -> None:
        self.find(selector)
        self.js(f"{_first(selector)}.focus()")

    def click(self, selector: str, shift: bool = False) -> None:
        x, y = self._middle(selector)
        self._mouse("mousePressed", x, y, shift)
        self._mouse("mouseReleased", x, y, shift)

    def tap(self, selector: str) -> None:
        """Touch the middle of an element with a finger."""
        x, y = self._middle(selector)
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def hover(self, selector: str) -> None:
        self._mouse("mouseMoved", *self._middle(selector), buttons=0)

    def drag(self, first: str, last: str) -> None:
        """Press on the middle of one element, move to another, release."""
        begin, end = self._middle(first), self._place(last)
        self._mouse("mousePressed", *begin)
        for part in (0.3, 0.7, 1.0):
            x, y = (a + part * (b - a) for a, b in zip(begin, end, strict=True))
            self._mouse("mouseMoved", x, y)
        self._mouse("mouseReleased", *end)

    def type(self, selector: str, text: str) -> None:
        """Replace what stands in a field."""
        self.focus(selector)
        self.js(f"{_first(selector)}.select()")
        if text:
            self.send("Input.insertText", text=text)
        else:
            self.press("Delete")

    def press(self, *keys: str, shift: bool = False) -> None:
        for key in keys:
            code, number, text = KEYS.get(key, ("", ord(key[0]), key))
            common = {"key": key, "code": code, "windowsVirtualKeyCode": number}
            common["modifiers"] = SHIFT if shift else 0
            self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
            self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self) -> bytes:
        """What the window shows, as a PNG."""
        found = self.send("Page.captureScreenshot", format="png")
        return base64.b64decode(found["data"])

    def _middle(self, selector: str) -> tuple[float, float]:
        self.find(selector)
        self.js(f"{_first(selector)}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        return self._place(selector)

    def _place(self, selector: str) -> tuple[float, float]:
        found = self.js(
            "(box => [box.x + box.width / 2, box.y + box.height / 2])"
            f"({_first(selector)}.getBoundingClientRect())"
        )
        return found[0], found[1]

    def _mouse(self, kind: str, x: float, y: float, shift: bool = False, buttons: int = 1) -> None:
        button = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {}
        self.send(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            buttons=buttons,
            modifiers=SHIFT if shift else 0,
            **button,
        )


def _first(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)})"


def _all(selector: str) -> str:
    return f"[...document.querySelectorAll({json.dumps(selector)})]"
