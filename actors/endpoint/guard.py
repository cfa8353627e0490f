"""ASGI middleware of the endpoint: checks key, rate and size of a request before it is parsed."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hora_rl.common.access import carries

HELD_S = 1.0
"""Delay of a 429 response in seconds, so that impatient clients cost no more than patient ones."""
Digest = Callable[[], Awaitable[str]]
"""SHA-256 of the run's token. If empty, all requests are refused."""


class Rate:
    """A token bucket: at most `per_minute` requests a minute, with bursts of a tenth of that."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._size = per_minute / 60.0, max(1.0, per_minute / 10.0)
        self._clock, self._level, self._at = clock, max(1.0, per_minute / 10.0), clock()

    def wait_s(self) -> float:
        """Count a request and return 0.0, or return the seconds until the next one is allowed."""
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self._rate


class Guard:
    """Refuses requests with 401, 429 or 413. Reads a body completely, up to its limit, before the app sees
    the request."""

    def __init__(self, app: ASGIApp, digest: Digest, rate: Rate, max_bytes: int) -> None:
        self._app, self._digest, self._rate, self._max_bytes = app, digest, rate, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        if not carries(authorization, await self._digest()):
            challenge = {"www-authenticate": "Bearer"}
            refused = refusal(401, "send the run's token as `Authorization: Bearer ...`", headers=challenge)
            await refused(scope, receive, send)
        elif wait_s := self._rate.wait_s():
            await asyncio.sleep(HELD_S)
            refused = refusal(429, "too many requests", headers={"retry-after": str(int(wait_s) + 1)})
            await refused(scope, receive, send)
        elif (body := await self._body(headers, receive)) is None:
            refused = refusal(413, f"the request is larger than {self._max_bytes} bytes")
            await refused(scope, receive, send)
        else:
            await self._app(scope, _again(body, receive), send)

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The request's body; None if it is too large, whatever its Content-Length."""
        said = headers.get(b"content-length", b"0")
        if not said.isdigit() or int(said[:20]) > self._max_bytes:
            return None
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return bytes(body)
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                return None
            if not message.get("more_body"):
                return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body first."""
    given = False

    async def give() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give


def refusal(
    status: int, reason: str, field: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error in OpenAI's format. Lone surrogates, which JSON allows and UTF-8 does not, are replaced."""
    reason = reason.encode(errors="replace").decode()
    field = field and field.encode(errors="replace").decode()
    kinds = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
    kind = kinds.get(status, "invalid_request_error")
    error = {"message": reason, "type": kind, "param": field, "code": status}
    return JSONResponse({"error": error}, status, headers)
