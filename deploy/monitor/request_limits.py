"""How long an HTTP server waits for a request that has begun and for a client that does not read, and how
much of a request it takes.

uvicorn waits for ever for the rest of a request: a few hundred clients that send a byte a minute use up its
sockets. Its protocol class is exchanged for one with limits: by `hora monitor --page` for its own server,
and in the proxies of Serve through Serve's callback,
`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=hora_rl.deploy.monitor.request_limits:limit_requests`.
"""

from __future__ import annotations

import asyncio

import uvicorn.config
from starlette.middleware import Middleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hora_rl.deploy.monitor.hosts import ProxyGuard

REQUEST_S = 10.0
"""From the start of a connection, or of a request on it, to its last byte."""

WRITE_S = 20.0
"""Within which a client has to read something of an answer that fills its buffer."""

REQUEST_BYTES = 2**20
"""Most bytes of one request, its headers and its body."""

CONNECTIONS = 1000
"""Most connections at a time. One more is closed at once."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol that closes a connection whose request is late or too long, or whose answer is not
    read. Answers may last for ever."""

    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self._late = self.loop.call_later(REQUEST_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        super().data_received(data)
        if self._bytes > REQUEST_BYTES and self._late is not None:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._bytes = 0
        if self._late is None:  # the next request of a connection that is kept
            self._late = self.loop.call_later(REQUEST_S, self.transport.abort)
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._on_time()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def _await_reading(self) -> None:
        self._unread = self.loop.call_later(WRITE_S, self._check, self.transport.get_write_buffer_size())

    def _check(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._await_reading()
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        self._read()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_time()
        self._read()
        super().connection_lost(exc)

    def _on_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def limit_requests() -> list[Middleware]:
    """Serve's callback, called in each proxy before its server starts: further middlewares."""
    uvicorn.config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{LimitedProtocol.__name__}"
    return [Middleware(ProxyGuard)]
