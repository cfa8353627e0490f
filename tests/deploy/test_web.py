"""The HTTP endpoints on a real Redis, through uvicorn as `serve_page` runs them: what they say, who the page
answers to, and how long it waits for a request."""

import hashlib
import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.deploy.monitor.run_state import RunState
from hora_rl.deploy.monitor.web import create_app, known_host
from tests.support.ports import until
from tests.support.synthetic_run import SyntheticRun, config_of, play

Serve = Callable[[str, str], httpx.Client]


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


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A function that serves a run's page and returns a client; all of it ends with the test."""
    with ExitStack() as stack:

        def start(url: str, run: str) -> httpx.Client:
            port = stack.enter_context(served(create_app(url, run)))
            client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10))
            until(lambda: "first snapshot" not in client.get("/healthz").text)
            return client

        yield start


def events(client: httpx.Client, count: int) -> list[dict]:
    found = []
    with client.stream("GET", "/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == count:
                return found
    raise AssertionError("the stream ended")


def test_status_is_the_reading_and_openapi_documents_every_field_of_it(redis_url, serve, run):
    client = serve(redis_url, run.name)
    status = client.get("/status").json()
    assert status["step"] == 5
    api = client.get("/openapi.json").json()
    documented = api["components"]["schemas"]["RunState"]["properties"].keys()
    assert set(status) == set(documented) == set(RunState.__dataclass_fields__)
    assert {"/status", "/healthz", "/events", "/history", "/pause", "/resume"} <= set(api["paths"])


@pytest.mark.system
def test_all_clients_share_one_reading_a_second(redis_url, serve, run):
    client = serve(redis_url, run.name)
    before, began = run.redis.info("commandstats")["cmdstat_xlen"]["calls"], time.monotonic()
    results: list[list[dict]] = []
    threads = [threading.Thread(target=lambda: results.append(events(client, 4))) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    seconds = time.monotonic() - began
    reads = run.redis.info("commandstats")["cmdstat_xlen"]["calls"] - before
    assert len(results) == 10
    assert all(e["state"]["run"] == run.name for r in results for e in r)
    assert reads <= seconds + 2


def test_clients_that_never_read_their_events_do_not_keep_others_out(redis_url, serve, run, monkeypatch):
    monkeypatch.setattr("hora_rl.deploy.monitor.web.STREAMS", 5)
    client = serve(redis_url, run.name)
    address = (client.base_url.host, client.base_url.port)
    held = [socket.create_connection(address) for _ in range(20)]

    def asked() -> httpx.Response:
        with client.stream("GET", "/events") as stream:  # one that is served does not end
            return stream

    try:
        for each in held:
            each.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: len(select.select(held, [], [], 0)[0]) == len(held))  # all have their answer
        refused = until(lambda: (answer := asked()).status_code == 503 and answer)
        assert refused.headers["connection"] == "close"
        assert "EventSource" in client.get("/").text
        assert client.get("/status").json()["run"] == run.name
        closed = [each for each in held if each.recv(100).startswith(b"HTTP/1.1 503")]
        assert len(closed) == 15
    finally:
        for each in held:
            each.close()

    until(lambda: asked().status_code == 200)


def test_history_is_bounded(redis_url, serve):
    run = SyntheticRun(redis_url, config_of("long", learner={"steps": 2000}))
    play(run, 2)
    with run.redis.pipeline(transaction=False) as pipe:
        for step in range(2, 1500):
            pipe.xadd(run.keys.steps, {"metrics": json.dumps({"step": step, "reward": step / 1500})})
        pipe.execute()
    client = serve(redis_url, "long")
    history = until(lambda: (h := client.get("/history").json()).get("steps", {}).get("step") and h)
    assert len(history["steps"]["step"]) <= 400
    assert history["steps"]["reward"][-1] == pytest.approx(0.998, abs=0.01)


def test_a_value_that_is_no_number_does_not_break_the_json(redis_url, serve):
    run = SyntheticRun(redis_url, config_of("nan"))
    run.redis.xadd(run.keys.steps, {"metrics": '{"step": 0, "loss": NaN, "reward": Infinity}'})
    client = serve(redis_url, "nan")
    assert "NaN" not in client.get("/status").text
    assert client.get("/status").json()["learner"] == {"step": 0, "loss": None, "reward": None}


def test_pause_and_resume_take_the_run_s_token_and_nothing_less(redis_url, serve, run, monkeypatch):
    monkeypatch.setattr("hora_rl.deploy.monitor.feed.PERIOD_S", 0.05)
    monkeypatch.delenv("HORA_TOKEN", raising=False)
    client = serve(redis_url, run.name)

    def post(path: str, token: str | None = None) -> httpx.Response:
        return client.post(path, headers={"Authorization": f"Bearer {token}"} if token else {})

    def shown(controls: bool) -> None:
        """The page shows the button only where it can work."""
        until(lambda: events(client, 1)[0]["state"]["controls"] is controls)

    shown(controls=False)
    refused = post("/pause", "anything")
    assert refused.status_code == 403
    assert "HORA_TOKEN" in refused.json()["detail"]
    run.redis.hset(run.keys.state, "token_sha256", hashlib.sha256(b"right").hexdigest())
    shown(controls=True)
    for wrong in (None, "wrong", ""):
        answer = post("/pause", wrong)
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert run.redis.hget(run.keys.state, "paused") is None
    assert post("/pause", "right").json() == {"paused": True}
    assert run.redis.hget(run.keys.state, "paused") == b"1"
    assert until(lambda: client.get("/status").json()["status"] == "paused")
    assert post("/resume", "right").json() == {"paused": False}
    assert run.redis.hget(run.keys.state, "paused") == b"0"
    assert abs(float(run.redis.hget(run.keys.state, "unpaused")) - time.time()) < 10
    run.redis.hdel(run.keys.state, "token_sha256")
    shown(controls=False)
    monkeypatch.setenv("HORA_TOKEN", "of the server")
    shown(controls=True)


PROBLEMS = {"wrong password": "refuses the password", "missing": "knows no run 'missing'"}
PROBLEMS |= {"older": "is served by another version of hora"}


@pytest.mark.parametrize(("what", "sentence"), PROBLEMS.items())
def test_what_cannot_be_read_is_a_sentence_on_every_channel(redis_url, serve, tmp_path, what, sentence):
    url = redis_url
    connect(redis_url).set(Keys("older").config, '{"model": {"path": "m"}, "colour": 3}')
    if what == "wrong password":
        (tmp_path / "wrong").write_text("wrong")
        url = f"{redis_url.partition('?')[0]}?password_file={tmp_path / 'wrong'}"
    client = serve(url, what)
    for path in ("/status", "/healthz"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert sentence in answer.json()["detail"]
        assert "\n" not in answer.json()["detail"]
    (event,) = events(client, 1)
    assert event["state"] is None
    assert sentence in event["problem"]
    assert client.get("/nowhere").json()["status"] == 404
    assert client.get("/").status_code == 200


@pytest.mark.system
def test_the_views_come_back_when_redis_does(tmp_path, serve):
    server = RedisServer(tmp_path / "r")
    server.start()
    try:
        run = SyntheticRun(server.url, config_of("comeback"))
        play(run, 2)
        client = serve(server.url, "comeback")
        assert client.get("/healthz").status_code == 200
        server.stop()
        until(lambda: client.get("/healthz").status_code == 503)
        detail = client.get("/status").json()["detail"]
        assert "redis.sock" in detail
        assert (tmp_path / "r" / "password").read_text() not in detail
        server.start()
        until(lambda: client.get("/healthz").status_code == 200, limit_s=20)
        assert client.get("/status").json()["step"] == 2
    finally:
        server.stop()


def test_the_page_is_self_contained_in_no_frame_and_of_our_names_alone(redis_url, serve):
    SyntheticRun(redis_url, config_of("page"))
    client, foreign = serve(redis_url, "page"), {"Host": "rebound.example"}
    for path in ("/", "/status", "/events", "/openapi.json"):
        assert client.get(path, headers=foreign).status_code == 421, path
    refused = client.post("/pause", headers=foreign)
    assert (refused.status_code, refused.headers["content-type"]) == (421, "application/problem+json")
    assert "telemetry.http_names" in refused.json()["detail"]
    answer = client.get("/")
    assert len(answer.content) < 1_000_000
    for rule in ("default-src 'none'", "frame-ancestors 'none'"):
        assert rule in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    text = answer.text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|innerHTML", text)
    loaded = re.findall(r'(?:src|href)="([^"]+\.(?:js|css))"', text)
    names = ["style.css", "uplot-1.6.32.min.css", "uplot-1.6.32.min.js"]
    assert loaded == [f"static/{name}" for name in names], "from its own server"
    assert all(client.get(f"/{name}").status_code == 200 for name in loaded)
    assert "uPlot=function" in client.get("/static/uplot-1.6.32.min.js").text


OURS = "localhost localhost:80 LOCALHOST. 127.0.0.1:80 127.0.0.1 [::1]:80 ::1 10.0.0.9:80 page.internal:80"
OTHERS = "evil.example evil:8 xlocalhost 127.0.0.1.evil.example localhost.evil.example 2130706433. [evil]"


def test_addresses_localhost_and_configured_names_are_this_server_and_no_other_name_is() -> None:
    assert [host for host in OURS.split() if not known_host(host, ["Page.internal"])] == []
    assert [host for host in ("", "a:b:c", *OTHERS.split()) if known_host(host, ["page.internal"])] == []


def test_a_request_names_one_host() -> None:
    client = TestClient(create_app("redis://localhost:1", "page"))
    found = {
        len(hosts): client.get("/openapi.json", headers=[("Host", host) for host in hosts]).status_code
        for hosts in (["localhost:80"], ["localhost:80", "rebound.example"])
    }
    assert found == {1: 200, 2: 421}
