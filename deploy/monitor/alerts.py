"""Send alerts of a run to a webhook or a command (`telemetry.on_alert`): each kind of warning once, and the
end of the run.

A thread delivers alerts, so a hook that hangs or fails does not affect the run. Failures are printed once. A
webhook receives a POST with JSON, a command the same JSON on standard input:

    {"run": "mine", "kind": "no_hit", "text": "no success in any of the 60 groups …", "step": 12, "time": …,
     "folder": "/runs/mine", "host": "node-3"}

`kind` is that of a warning, or run_finished, run_failed or run_stopped.
"""

import json
import os
import queue
import shlex
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import structlog
from rich.console import Console

from hora_rl.common.console import say

log = structlog.get_logger(__name__)
LIMIT_S = 10.0
"""Seconds that a hook may take, and that the end of a run waits for undelivered alerts."""
MOST = 100
"""Most alerts that wait for a slow hook. Further alerts are dropped with a log message."""


Alert = dict[str, str | int | float]


class Alerts:
    """Delivers alerts to `hook` (telemetry.on_alert). Does nothing if `hook` is None."""

    def __init__(self, run: str, hook: str | None, run_dir: Path, console: Console) -> None:
        self._run, self._folder, self._console = run, str(run_dir), console
        self._hook, self._step = hook, 0
        self._waiting: queue.Queue[Alert | None] = queue.Queue(MOST)
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
        if self._hook:
            self._thread.start()

    def notify(self, kind: str, text: str, step: int | None = None) -> None:
        """Queue an alert. Returns at once."""
        self._step = self._step if step is None else step
        if not self._thread.is_alive():
            return
        alert: Alert = {"run": self._run, "kind": kind, "text": text, "step": self._step}
        alert |= {"time": time.time(), "folder": self._folder, "host": socket.gethostname()}
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            log.warning("alert lost: telemetry.on_alert is too slow", kind=kind)

    def ended(self, state: str, reason: str) -> None:
        """Send the end of the run, and wait up to LIMIT_S for undelivered alerts."""
        self.notify(f"run_{state}", reason or state)
        if self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=LIMIT_S)
            except queue.Full:
                return
            self._thread.join(LIMIT_S)

    def _work(self) -> None:
        """Deliver alerts. Print a failure once until the next success, without the hook's address, perhaps a
        secret."""
        hook, failed = self._hook or "", False
        while (alert := self._waiting.get()) is not None:
            try:
                deliver(hook, alert)
                failed = False
            except (OSError, ValueError) as error:
                if not failed:
                    shown = f"{type(error).__name__}: {error}".replace(hook, "…")[:300]
                    say(self._console, f"! telemetry.on_alert failed, the run continues: {shown}", "yellow")
                failed = True


def deliver(hook: str, alert: Alert) -> None:
    """Send one alert to a webhook (http or https) or a command. Raises OSError or ValueError if the hook
    fails or exceeds LIMIT_S."""
    body = json.dumps(alert, ensure_ascii=False).encode()
    if hook.startswith(("http://", "https://")):
        request = urllib.request.Request(hook, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_S):
            return
    words = {f"HORA_ALERT_{name.upper()}": str(alert[name]) for name in ("kind", "text", "run")}
    pipe = subprocess.PIPE
    # A separate session, so that Ctrl-C does not end the command that reports the stop.
    with subprocess.Popen(
        shlex.split(hook),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**os.environ, **words},
        start_new_session=True,
    ) as process:
        try:
            _, stderr = process.communicate(body, LIMIT_S)
        except subprocess.TimeoutExpired:  # its text holds the command
            os.killpg(process.pid, signal.SIGKILL)  # with what it started
            raise OSError(f"it takes over {LIMIT_S:g} s") from None
    if process.returncode:
        reason = stderr.decode(errors="replace").strip()[-200:]
        raise OSError(f"exit status {process.returncode}{': ' + reason if reason else ''}")
