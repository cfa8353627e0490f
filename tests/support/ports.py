"""Waiting for a server that a test started."""

from __future__ import annotations

import socket
import time


def wait_for_port(port: int, limit_s: float = 10.0) -> None:
    """Until something listens on a loopback port. Fails after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens on {port}"
            time.sleep(0.05)
