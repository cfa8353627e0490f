"""Limits of time and size for HTTP requests and responses.

uvicorn waits for ever for the rest of a request, so a few hundred slow clients can exhaust its sockets. This
protocol class adds limits. `hora monitor --page` uses the class directly, Serve's proxies through Serve's
callback `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=hora_rl.deploy.monitor.request_limits:limit_requests`.
"""

import asyncio

import uvicorn.config
from starlette.middleware import Middleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hora_rl.deploy.monitor.hosts import ProxyGuard

REQUEST_S = 10.0
"""Seconds from the start of a connection or request to the request's last byte."""

WRITE_S = 20.0
"""Seconds within which a client must read some of a response that fills the buffer."""

REQUEST_BYTES = 2**20
"""Most bytes of one request, headers and body."""

CONNECTIONS = 1000
"""Most concurrent connections. Further connections are closed at once."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits: closes connections with late or too long requests, or unread responses.
    Responses may last for ever."""

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
        if self._late is None:  # the next request of a kept-alive connection
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
    """Serve's callback: each proxy calls it before its server starts. Returns additional middlewares."""
    uvicorn.config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{LimitedProtocol.__name__}"
    return [Middleware(ProxyGuard)]
