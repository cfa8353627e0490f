"""Who the page answers to, and how long it waits for a request, through uvicorn."""

import contextlib
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from hora_rl.deploy.monitor import request_limits
from hora_rl.deploy.monitor.hosts import Guard, known_host
from tests.support.ports import until
from tests.support.served import served

OURS = "localhost localhost:80 LOCALHOST. 127.0.0.1:80 127.0.0.1 [::1]:80 ::1 10.0.0.9:80 page.internal:80"
OTHERS = (
    "evil.example evil:8 xlocalhost 127.0.0.1.evil.example localhost.evil.example 2130706433. [evil] a:b:c"
)


def test_addresses_localhost_and_configured_names_are_this_server_and_no_other_name_is() -> None:
    assert [host for host in OURS.split() if not known_host(host, ["Page.internal"])] == []
    assert [host for host in ("", *OTHERS.split()) if known_host(host, ["page.internal"])] == []


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"kept")]})
    if scope["path"] == "/long":
        await send({"type": "http.response.body", "body": b"a" * 2**26})
        return
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(request_limits, "REQUEST_S", 0.5)
    monkeypatch.setattr(request_limits, "WRITE_S", 0.5)
    monkeypatch.setattr(request_limits, "CONNECTIONS", 20)
    app = Guard(application, ["page.internal"])
    with served(app, http=request_limits.LimitedProtocol, lifespan="off") as port:
        yield port


def test_a_foreign_name_is_refused_with_the_key_and_other_headers_are_kept(port: int) -> None:
    url = f"http://127.0.0.1:{port}/"
    answer = httpx.get(url, headers={"Host": "page.internal"})
    assert (answer.status_code, answer.text, answer.headers["x-own"]) == (200, "hello", "kept")
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    refused = httpx.get(url, headers={"Host": "evil.example"})
    assert refused.status_code == 421
    assert refused.headers["content-type"] == "application/problem+json"
    assert "telemetry.http_names" in refused.json()["detail"]
    assert exchange(port, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421")


def exchange(port: int, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """What the server sends until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        found = b""
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                client.sendall(piece)
                time.sleep(pause_s)
            while data := client.recv(65536):
                found += data
        return found


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (b"GET / HT",),
        (HEAD,),
        tuple(HEAD[i : i + 1] for i in range(len(HEAD))),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf",),
        (HEAD + b"\r\n", HEAD[:9]),
    ],
    ids=["nothing", "half a line", "half a head", "a byte at a time", "half a body", "half of the second"],
)
def test_a_request_that_is_not_whole_in_time_loses_its_connection(
    port: int, pieces: tuple[bytes, ...]
) -> None:
    started = time.monotonic()
    exchange(port, *pieces, pause_s=0.1)
    assert time.monotonic() - started < 3.0


def test_a_whole_request_is_answered_however_many_follow_on_its_connection(port: int) -> None:
    with httpx.Client() as client:
        for _ in range(4):
            assert client.get(f"http://127.0.0.1:{port}/").text == "hello"
            time.sleep(0.3)


def send_without_end(client: socket.socket) -> None:
    for _ in range(64):
        client.sendall(b"X-Long: " + b"a" * 65536)
        time.sleep(0.01)


def test_a_request_without_end_is_cut_by_its_size(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "REQUEST_S", 60.0)
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(HEAD)
        with pytest.raises(ConnectionError):
            send_without_end(client)
    assert time.monotonic() - started < 10.0


def test_clients_that_hold_connections_open_do_not_keep_others_out(port: int) -> None:
    def answered() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/").text == "hello"
        return False

    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(60)]
        for client in held:
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET / HTTP/1.1\r\n")
        until(answered, limit_s=5.0)


def test_an_answer_that_is_not_read_loses_its_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(1.5)
        found = 0
        with contextlib.suppress(ConnectionError):
            while data := client.recv(2**20):
                found += len(data)
    assert 0 < found < 2**26


def test_an_answer_that_is_read_slowly_is_whole(port: int) -> None:
    found = 0
    with httpx.stream("GET", f"http://127.0.0.1:{port}/long") as answer:
        for data in answer.iter_bytes(2**22):
            found += len(data)
            time.sleep(0.1)
    assert found == 2**26
