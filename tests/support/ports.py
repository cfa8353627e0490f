"""Waiting for a server that a test started, or for what it does."""

import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any


def until(
    check: Callable[[], Any],
    why: Callable[[], str] = str,
    limit_s: float = 30.0,
    every_s: float = 0.02,
    process: subprocess.Popen[Any] | None = None,
) -> Any:
    """The first true value of `check()`, asked for every so often. Fails with `why()` after `limit_s`, and
    when `process` ends before."""
    deadline = time.monotonic() + limit_s
    while not (value := check()):
        assert process is None or process.poll() is None, f"it ended: {why()}"
        assert time.monotonic() < deadline, f"not within {limit_s} s: {why()}"
        time.sleep(every_s)
    return value


def wait_for_port(port: int, limit_s: float = 10.0) -> None:
    """Until something listens on a loopback port. Fails after `limit_s`."""

    def listens() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            return False
        return True

    until(listens, lambda: f"nothing listens on {port}", limit_s)
