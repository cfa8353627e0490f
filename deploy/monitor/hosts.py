"""Who the page answers to, and what browsers may do with it.

A page in a browser can make its own name lead to this machine (DNS rebinding) and would then read the run as
if it were on it. Such a request carries that name as its `Host`: only addresses, `localhost` and the names
that are configured are answered.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SERVE_CALLBACK = ("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", f"{__package__}.request_limits:limit_requests")
"""Environment of Ray by which Serve's proxies limit requests that are half sent. Set before Ray starts."""

HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}


def known_host(host: str, names: Sequence[str]) -> bool:
    """Whether a `Host` header names this server: an address, `localhost` or one of `names`, with any port."""
    name = _without_port(host).lower().rstrip(".")
    if name == "localhost" or name in (known.lower() for known in names):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


class Guard:
    """ASGI middleware: refuses requests for other hosts with 421, and adds headers for browsers to every
    answer."""

    def __init__(self, app: ASGIApp, names: Sequence[str] = ()) -> None:
        self._app = app
        self._names = tuple(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not known_host(hosts[0], self._names):
            await _refuse(send, hosts)
            return
        await self._app(scope, receive, _with_headers(send))


class ProxyGuard(Guard):
    """`Guard` for what Serve's proxies answer themselves, as `/-/routes`. The rest has its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = super().__call__ if scope.get("path", "").startswith("/-/") else self._app
        await answer(scope, receive, send)


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return wrapped


async def _refuse(send: Send, hosts: Sequence[str]) -> None:
    detail = (
        f"this server is not {hosts[0][:100]!r}: ask for it by address or as localhost, or name it in "
        "telemetry.http_names"
        if hosts
        else "the request has no Host header"
    )
    problem = {"type": "about:blank", "title": "Misdirected Request", "status": 421, "detail": detail}
    headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 421, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(problem).encode()})
