"""Host names that the page answers to, and security headers for browsers.

With DNS rebinding, a foreign web page can point its name to this machine and read the run. Such requests
carry that name as `Host`, so only addresses, `localhost` and configured names are answered.
"""

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def known_host(host: str, names: Sequence[str]) -> bool:
    """Whether a `Host` header names this server: an address, `localhost` or one of `names`, with any port."""
    if host.startswith("["):
        name = host[1:].partition("]")[0]
    else:
        name = host.rpartition(":")[0] if host.count(":") == 1 else host
    name = name.lower().rstrip(".")
    if name in ("localhost", *(known.lower() for known in names)):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware that refuses other hosts with 421 and adds security headers to every response."""

    def __init__(self, app: ASGIApp, names: Sequence[str] = ()) -> None:
        self._app = app
        self._names = tuple(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) == 1 and known_host(hosts[0], self._names):
            await self._app(scope, receive, with_headers)
        else:
            await _refusal(hosts)(scope, receive, send)


def _refusal(hosts: Sequence[str]) -> JSONResponse:
    detail = "the request has no Host header"
    if hosts:
        ask = "ask for it by address or as localhost, or name it in telemetry.http_names"
        detail = f"this server is not {hosts[0][:100]!r}: {ask}"
    problem = {"type": "about:blank", "title": "Misdirected Request", "status": 421, "detail": detail}
    return JSONResponse(problem, 421, {"connection": "close"}, media_type="application/problem+json")
