"""Chromium without a window, controlled by its DevTools protocol over a pair of pipes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "chrome-headless-shell", "google-chrome")
VARIABLE = "WHEELMQ_CHROMIUM"
"""Names the program, if it is not on the PATH."""
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--no-zygote",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
)
START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, wanted in zip(ends, (3, 4)):
    os.dup2(end, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Starts Chromium, which reads commands at descriptor 3, and writes answers at descriptor 4."""
_READ_BYTES = 1 << 20


def find_chromium() -> str | None:
    """Return the path of Chromium; None if this machine has none."""
    named = os.environ.get(VARIABLE)
    return named or next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Chromium:
    """A running browser with one tab. Each call waits for its answer."""

    def __init__(self, program: str, profile: Path, *options: str) -> None:
        read_end, self._commands = os.pipe()
        self._answers, write_end = os.pipe()
        self._log = (profile.parent / f"{profile.name}.log").open("wb")
        words = [sys.executable, "-c", START, str(read_end), str(write_end), program, *OPTIONS, *options]
        self._process = subprocess.Popen(
            [*words, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_end, write_end),
            stdout=self._log,
            stderr=self._log,
        )
        os.close(read_end)
        os.close(write_end)
        self._rest = b""
        self._numbers = itertools.count(1)
        self._session = ""
        self.events: list[dict[str, Any]] = []
        """Events of the tab that no call has taken yet."""

    def __enter__(self) -> Self:
        [tab] = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._commands)
        self._process.kill()
        self._process.wait()
        os.close(self._answers)
        self._log.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == number:
                assert "error" not in found, found
                return dict(found["result"])
            self.events.append(found)

    def wait_for(self, method: str) -> dict[str, Any]:
        """Return the next event of this name. Earlier events are dropped."""
        while True:
            found = self.events.pop(0) if self.events else self._next()
            if found.get("method") == method:
                return dict(found["params"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._answers, _READ_BYTES)
            if not data:
                raise AssertionError(f"Chromium ended with {self._process.wait()}: see {self._log.name}")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(text))

    # Pages ---------------------------------------------------------------------------------------------------------

    def open(self, url: str) -> None:
        """Load a page completely."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or that of its promise."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def submit(self, form: str, **values: str) -> None:
        """Fill in a form, press its button, and wait for the next page."""
        for name, value in values.items():
            self.run(f"document.getElementById({json.dumps(name)}).value = {json.dumps(value)}")
        self.events.clear()
        self.run(f"document.querySelector({json.dumps(form + ' button')}).click()")
        self.wait_for("Page.loadEventFired")

    def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Set the size of the window. A phone has two pixels per unit."""
        scale = 2 if is_phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=is_phone
        )

    def prefer(self, mode: str) -> None:
        """Prefer the light or the dark mode."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])

    def press_tab(self) -> None:
        """Press the Tab key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)

    def picture(self, *, whole: bool = False) -> bytes:
        """Return a PNG of the window, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def problems(self) -> list[str]:
        """Return the errors of scripts and of the page's policy, and take them from the events."""
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Network.loadingFailed")
        found = [json.dumps(one) for one in self.events if one.get("method") in kinds]
        self.events.clear()
        return found
