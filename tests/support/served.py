"""An ASGI application through uvicorn, as `serve_page` runs it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.support.ports import until


@contextmanager
def served(app: Any, **settings: Any) -> Iterator[int]:
    """The port on which `app` is served while the block runs."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", **settings))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = server.force_exit = True
    thread.join(10)
