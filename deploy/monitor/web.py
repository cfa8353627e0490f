"""HTTP interface of a run: page, status, live events, history, pause and resume. Runs under Serve or uvicorn.

Everyone who reaches the address may read (loopback unless telemetry.http_host differs). Changes need the
run's token: HORA_TOKEN of the server, or the token whose SHA-256 the launcher stored in Redis.

With DNS rebinding, a foreign web page can point its name to this machine and read the run. Such requests
carry that name as `Host`, so only addresses, `localhost` and configured names are answered.
"""

import hashlib
import hmac
import ipaddress
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from hora_rl.common.errors import HoraError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import Redis
from hora_rl.common.live.state import changed, read_state
from hora_rl.deploy.monitor.feed import Feed, Observer, Read
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import RunState

STREAMS = 200
"""Most concurrent event streams. Other connections stay free for the page and for requests."""
PAGE = Path(__file__).with_name("page.html")
# The page loads no resources from other servers.
POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'; connect-src "
    "'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
STATIC = Path(__file__).with_name("static")
"""The page's style sheet, and unmodified files of uPlot's npm package, which draws the charts, with its MIT
licence."""
PROBLEMS: dict[int | str, dict[str, object]] = {
    code: {"content": {"application/problem+json": {}}} for code in (401, 403, 503)
}


def create_app(
    redis_url: str,
    run: str,
    observer: Observer | None = None,
    names: Sequence[str] = (),
    read: Read = read_run,
) -> FastAPI:
    """The web application of one run. `observer` is called with every state (Prometheus). `names` are
    accepted host names in addition to addresses and localhost."""
    feed = Feed(redis_url, run, observer, read)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        feed.start()
        yield
        await feed.stop()

    # Swagger and ReDoc would load scripts from other servers.
    app = FastAPI(title=f"HORA run {run}", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    _add_guard(app, names)
    _add_reading(app, feed)
    _add_controls(app, feed)
    _add_problems(app)
    return app


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


def _add_guard(app: FastAPI, names: Sequence[str]) -> None:
    """Refuse other hosts with 421, and add security headers to every response."""

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not known_host(hosts[0], names):
            host = ", ".join(hosts)
            ask = "ask for it by address or as localhost, or name it in telemetry.http_names"
            return _problem(421, f"this server is not {host[:100]!r}: {ask}", {"connection": "close"})
        response = await answer(request)
        response.headers.update(HEADERS)
        return response


def _add_reading(app: FastAPI, feed: Feed) -> None:
    page = PAGE.read_bytes()
    version = hashlib.sha256(page).hexdigest()[:12]

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return Response(
            page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": POLICY}
        )

    app.mount("/static", StaticFiles(directory=STATIC))

    @app.get("/healthz", responses={503: PROBLEMS[503]})
    async def healthz() -> dict[str, str]:
        """Whether this server can read the run now."""
        _current(feed)
        return {"status": "ok"}

    @app.get("/status", response_model=RunState, responses={503: PROBLEMS[503]})
    async def status() -> Response:
        """The current state of the run; at most a second old."""
        return JSONResponse(_current(feed).to_dict())

    @app.get("/history", responses={200: {"description": "Columns for charts, at most 400 points each."}})
    async def history() -> Response:
        return Response(await feed.history(), media_type="application/json")

    @app.get("/events", responses={200: {"content": {"text/event-stream": {}}}, 503: PROBLEMS[503]})
    async def events() -> StreamingResponse:
        """A snapshot every second, as server-sent events: {"state": RunState | null, "problem": sentence |
        null}. At most STREAMS clients at a time."""
        return Events(feed, version)


class Events(StreamingResponse):
    """The event stream for one client. Refused if STREAMS clients are connected."""

    def __init__(self, feed: Feed, page: str) -> None:
        headers = {"X-Accel-Buffering": "no"}
        super().__init__(_stream(feed, page), media_type="text/event-stream", headers=headers)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._feed.streams >= STREAMS:
            raise HTTPException(
                503, f"{STREAMS} clients watch already; GET /status still answers", {"Connection": "close"}
            )
        self._feed.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.streams -= 1


async def _stream(feed: Feed, page: str) -> AsyncIterator[str]:
    # A page of an older server reloads itself when this value changes.
    yield f"retry: 1000\nevent: page\ndata: {page}\n\n"
    number = -1
    while True:
        number = (await feed.after(number)).number
        yield f"data: {feed.text}\n\n"


def _add_controls(app: FastAPI, feed: Feed) -> None:
    async def turn(paused: bool, authorization: str | None) -> dict[str, bool]:
        def work(client: Redis) -> None:
            _check_token(authorization, read_state(client, feed.run).token_sha256)
            now = changed(paused=True) if paused else changed(paused=False, unpaused=time.time())
            client.hset(Keys(feed.run).state, mapping=now)

        await feed.call(work)
        return {"paused": paused}

    @app.post("/pause", responses=PROBLEMS)
    async def pause(authorization: Annotated[str | None, Header()] = None) -> dict[str, bool]:
        """Start no new shards until /resume. Shards in flight are completed and trained."""
        return await turn(True, authorization)

    @app.post("/resume", responses=PROBLEMS)
    async def resume(authorization: Annotated[str | None, Header()] = None) -> dict[str, bool]:
        return await turn(False, authorization)


def _check_token(authorization: str | None, stored: str | None) -> None:
    """Raise HTTPException unless `authorization` carries HORA_TOKEN, or without it the token whose SHA-256
    (hex) is `stored`. Always raises without a token."""
    required = os.environ.get("HORA_TOKEN")
    digest = _digest(required) if required else stored
    if not digest:
        raise HTTPException(403, "controls are off: no token is set; start the server with HORA_TOKEN")
    scheme, _, token = (authorization or "").partition(" ")
    if not token or scheme.lower() != "bearer" or not hmac.compare_digest(_digest(token), digest):
        raise HTTPException(
            401, "send the run's token as `Authorization: Bearer ...`", {"WWW-Authenticate": "Bearer"}
        )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def _current(feed: Feed) -> RunState:
    event = feed.event
    if event.state is None:
        raise HTTPException(503, event.problem)
    return event.state


def _problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error as problem JSON (RFC 9457)."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def _add_problems(app: FastAPI) -> None:

    @app.exception_handler(StarletteHTTPException)
    async def http(_request: Request, error: StarletteHTTPException) -> JSONResponse:
        return _problem(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        lines = [f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors()]
        return _problem(422, "; ".join(lines))

    @app.exception_handler(HoraError)
    async def away(_request: Request, error: HoraError) -> JSONResponse:
        return _problem(503, str(error))
