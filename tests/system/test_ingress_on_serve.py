"""The ingress as Serve runs it: the endpoints at the application's root, and the metrics that Ray really
exports."""

import asyncio
import re
import resource
import socket
import time
import urllib.request
from contextlib import suppress

import httpx
import pytest
from ray import serve

from hora_rl.deploy.machine.ports import free_port
from hora_rl.deploy.monitor.hosts import SERVE_CALLBACK
from hora_rl.deploy.monitor.ingress import Ingress
from hora_rl.deploy.monitor.prometheus import EXPORTED
from hora_rl.deploy.monitor.request_limits import REQUEST_S
from tests.support.local_serve import local_serve
from tests.support.ports import until
from tests.support.synthetic_run import SyntheticRun, config_of, play

pytestmark = pytest.mark.system
CLIENTS = 20


@pytest.fixture(scope="module")
def stage(redis_url):
    """(run, base URL, metrics URL) of an application that holds the ingress alone."""
    metrics = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*SERVE_CALLBACK)
        run = SyntheticRun(redis_url, config_of("served"))
        play(run, 3)
        with local_serve(_metrics_export_port=metrics) as url:
            options = {"ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": 1000}
            application = serve.deployment(Ingress, name="ingress", **options).bind(
                run.config.model_dump(mode="json"), redis_url
            )
            serve.run(application, name="hora", route_prefix="/")
            yield run, url, f"http://127.0.0.1:{metrics}/metrics"


def test_page_status_and_problems_are_at_the_application_s_root(stage):
    _run, url, _metrics = stage
    until(lambda: httpx.get(f"{url}/healthz").status_code == 200, limit_s=20)
    assert httpx.get(f"{url}/status").json()["step"] == 3
    assert "EventSource" in httpx.get(url).text
    refused = httpx.post(f"{url}/pause")
    assert refused.status_code == 403
    assert refused.headers["content-type"] == "application/problem+json"


def test_a_foreign_name_is_refused_and_a_half_sent_request_loses_its_connection(stage):
    _run, url, _metrics = stage
    for path in ("/status", "/-/routes", "/-/healthz"):
        assert httpx.get(url + path, headers={"Host": "rebound.example"}).status_code == 421
        assert httpx.get(url + path).status_code == 200
    address = httpx.URL(url)
    started = time.monotonic()
    with socket.create_connection((address.host, address.port), timeout=60) as client:
        client.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\nX-Never: ")
        with suppress(ConnectionError):
            assert client.recv(1000) == b""
    assert REQUEST_S - 1 < time.monotonic() - started < REQUEST_S + 20


def test_twenty_clients_watch_at_once_and_the_page_still_answers(stage):
    _run, url, _metrics = stage

    async def watch(client: httpx.AsyncClient) -> int:
        seen = 0
        async with client.stream("GET", f"{url}/events") as stream:
            async for line in stream.aiter_lines():
                seen += line.startswith("data: {")
                if seen == 3:
                    return seen
        return seen

    async def all_of_them() -> list[int]:
        limits = httpx.Limits(max_connections=CLIENTS + 1)
        async with httpx.AsyncClient(timeout=20, limits=limits) as client:
            watching = [asyncio.create_task(watch(client)) for _ in range(CLIENTS)]
            await asyncio.sleep(1)
            assert (await client.get(f"{url}/healthz")).status_code == 200
            return await asyncio.gather(*watching)

    assert asyncio.run(all_of_them()) == [3] * CLIENTS


def test_a_thousand_clients_that_never_read_their_events_do_not_keep_others_out(stage):
    """They are more than a proxy's connections."""
    _run, url, _metrics = stage
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    address, held = httpx.URL(url), []
    try:
        for _ in range(1010):
            held.append(socket.create_connection((address.host, address.port), timeout=20))
            held[-1].sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for path in ("/", "/status", "/healthz"):
            until(lambda path=path: answers(url + path))
    finally:
        for client in held:
            client.close()


def answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(url, timeout=10).status_code == 200
    return False


def test_ray_exports_every_metric_under_the_name_that_dashboards_use(stage):
    run, _url, metrics = stage

    def exported() -> set[str]:
        with urllib.request.urlopen(metrics) as answer:
            return set(re.findall(r"^(ray_hora_\w+)\{", answer.read().decode(), re.MULTILINE))

    batch = 3

    def complete() -> bool:
        nonlocal batch
        asyncio.run(run.generate(batch))
        run.train(batch)
        run.beat(batch + 1)
        batch += 1
        return exported() >= EXPORTED

    until(complete, limit_s=60)
    assert exported() == EXPORTED
