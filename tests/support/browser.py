"""A tab of headless Chromium, driven through the DevTools protocol."""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest
from websockets.sync.client import connect as websocket

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LACKING = "no Chromium on PATH (Debian: apt-get install chromium)"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=LACKING)
OFF = ("gpu", "quic", "background-networking", "component-update", "sync", "dev-shm-usage")
FLAGS = ["--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars", "--remote-debugging-port=0"]
FLAGS += [f"--disable-{what}" for what in OFF]


class Browser:
    """One tab. `js` evaluates an expression in the page and returns its value."""

    def __init__(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        assert CHROMIUM is not None
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        none = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stderr=none, stdout=none)
        port_file = Path(self._profile) / "DevToolsActivePort"
        until(lambda: port_file.exists() and len(port_file.read_text().split()) == 2, 30)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            tab = next(t for t in json.load(answer) if t["type"] == "page")
        self._socket = websocket(tab["webSocketDebuggerUrl"], max_size=2**26)
        self._id = 0
        self.errors: list[str] = []
        self.call("Runtime.enable")
        self.call("Page.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=url)

    def call(self, method: str, **params):
        self._id += 1
        self._socket.send(json.dumps({"id": self._id, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"]["exception"].get("description", "?"))
            if message.get("id") == self._id:
                # A page that loads anew drops what was asked of it; `until` asks again.
                if "navigated" in message.get("error", {}).get("message", ""):
                    raise ConnectionResetError(message["error"]["message"])
                assert "error" not in message, message
                return message["result"]

    def js(self, expression: str):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(20)
        shutil.rmtree(self._profile, ignore_errors=True)


def until(check, limit_s: float):
    """The first true value of `check()`; what it raises last once the time is up."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if value := check():
                return value
        except (OSError, KeyError):
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.05)
