"""Deployments as Serve runs them, on one Serve: the ingress at the application's root with the metrics that
Ray exports, the router of the generators, and a coordinator whose data cannot be used.

Samples fill a replica up to its reserved places, calls to all replicas go through, and the turns of an
episode stay on one replica.
"""

import asyncio
import json
import re
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from hora_rl.actors.coordinator.calls import retry
from hora_rl.actors.coordinator.deployment import Coordinator
from hora_rl.actors.generator.router import RESERVED
from hora_rl.common.errors import NoRoom
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.deploy.app import ROUTER, Ingress
from hora_rl.deploy.machine.ray_start import free_port
from hora_rl.deploy.monitor.prometheus import EXPORTED
from tests.support.ports import until
from tests.support.synthetic_run import SyntheticRun, config_of, play

pytestmark = pytest.mark.system
PLACES, SECONDS = 2, 3.0
ANYWHERE: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}}


@pytest.fixture(scope="module")
def local_serve() -> Iterator[tuple[str, str]]:
    """(Serve's URL, that of Ray's metrics) on free ports of this machine."""
    port, metrics = free_port(), free_port()
    quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    memory = {"object_store_memory": 100 * 2**20}
    ray.init(address="local", num_cpus=2, _metrics_export_port=metrics, **quiet, **memory)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics"
        serve.shutdown()
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def stage(redis_url: str, local_serve: tuple[str, str]) -> tuple[SyntheticRun, str]:
    """(run, base URL) of an application that holds the ingress alone."""
    run = SyntheticRun(redis_url, config_of("served"))
    play(run, 3)
    application = serve.deployment(Ingress, name="ingress", max_ongoing_requests=1000, **ANYWHERE).bind(
        run.config.model_dump(mode="json"), redis_url
    )
    serve.run(application, name="hora", route_prefix="/")
    return run, local_serve[0]


def test_page_status_events_and_problems_are_at_the_application_s_root(
    stage: tuple[SyntheticRun, str],
) -> None:
    _, url = stage
    assert httpx.get(f"{url}/status").json()["step"] == 3
    assert "EventSource" in httpx.get(url).text
    with httpx.stream("GET", f"{url}/events", timeout=20) as stream:
        readings = (line for line in stream.iter_lines() if line.startswith("data: {"))
        assert len(list(islice(readings, 3))) == 3
    refused = httpx.post(f"{url}/pause")
    assert refused.status_code == 403
    assert refused.headers["content-type"] == "application/problem+json"


def test_ray_exports_every_metric_under_the_name_that_dashboards_use(
    stage: tuple[SyntheticRun, str], local_serve: tuple[str, str]
) -> None:
    run, metrics = stage[0], local_serve[1]

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


class Slow:
    """A generator but for its engine."""

    def __init__(self) -> None:
        self.now = 0

    async def generate(self) -> int:
        if self.now >= PLACES:
            raise NoRoom("full")
        self.now += 1
        await asyncio.sleep(SECONDS)
        self.now -= 1
        return self.now

    async def roll_call(self) -> int:
        return self.now


@contextmanager
def generators(kind: type, replicas: int, places: int, **routing: Any) -> Iterator[Any]:
    """The handle of an application of `replicas` such generators behind the router."""
    router = RequestRouterConfig(request_router_class=ROUTER, **routing)
    options = {"max_ongoing_requests": places + RESERVED, "graceful_shutdown_wait_loop_s": 0.1, **ANYWHERE}
    options |= {"name": "generator", "num_replicas": replicas, "request_router_config": router}
    yield serve.run(serve.deployment(kind, **options).bind(), name="routed", route_prefix=None)
    serve.delete("routed")


def test_a_call_to_all_replicas_does_not_wait_for_samples(local_serve: tuple[str, str]) -> None:
    async def run() -> None:
        async def ask(before: int) -> int:
            return await handle.generate.remote()

        asked = [
            asyncio.create_task(retry(ask, "sampling", attempts=1, limit_s=60)) for _ in range(PLACES * 4)
        ]
        await asyncio.sleep(SECONDS / 2)  # all places are taken, the rest waits
        began = time.monotonic()
        running = await asyncio.to_thread(lambda: handle.broadcast("roll_call").results(timeout_s=10))
        assert running == [PLACES, PLACES]
        assert time.monotonic() - began < SECONDS / 3
        await asyncio.gather(*asked)

    with generators(Slow, 2, PLACES) as handle:
        asyncio.run(run())


class Named:
    """A generator that says which replica it is."""

    async def generate(self) -> str:
        await asyncio.sleep(0.05)
        return serve.get_replica_context().replica_id.unique_id


def test_a_session_has_a_home_and_goes_elsewhere_while_it_is_full(local_serve: tuple[str, str]) -> None:
    async def turns(session: str, n: int) -> list[str]:
        return [await handle.options(session_id=session).generate.remote() for _ in range(n)]

    async def run() -> None:
        await asyncio.gather(*(turns("", 5) for _ in range(6)))  # loads of all replicas are known
        # So few at a time that home has room for all, in bursts that Serve would hand out first come, first
        # served.
        homes = defaultdict(set)
        for start in range(0, 24, 4):
            sessions = [str(i) for i in range(start, start + 4)]
            met = await asyncio.gather(*(turns(s, 6) for s in sessions))
            for name, seen in zip(sessions, met, strict=True):
                homes[name] |= set(seen)
        assert all(len(seen) == 1 for seen in homes.values()), homes
        assert len(set.union(*homes.values())) == 3, "sessions are spread over the replicas"
        crowd = await asyncio.gather(*(turns("crowd", 1) for _ in range(40)))
        assert len({seen for one in crowd for seen in one}) > 1, "a full home keeps nobody waiting"

    with generators(Named, 3, 12) as handle:
        asyncio.run(run())


def test_the_reason_why_a_run_does_not_begin_is_left_and_one_that_has_begun_is_not_ended(
    local_serve: tuple[str, str], redis_url: str, tmp_path: Path
) -> None:
    """A learner elsewhere learns why, instead of waiting for a plan."""
    other_part = serve.deployment(Named, name="other", **ANYWHERE).bind()
    client, old = connect(redis_url), b"what the one before gave up for"
    gone = {"data": {"path": str(tmp_path / "gone.jsonl")}}
    colder = {"rollout": {"temperature": 0.5}}
    for name, changed, begun, other, reason in (
        ("no-data", gone, False, False, b"gone.jsonl"),
        ("begun", gone, True, False, old),  # a restart may help
        ("other-settings", colder, True, False, b"other settings: rollout.temperature: 0.7 != 0.5"),
        ("of-another", colder, True, True, old),
    ):
        keys, config = Keys(name), config_of(name, **changed)
        if begun:
            client.set(keys.config, config_of(name).model_dump_json())
            client.hset(keys.plans, "0:0", "a plan")
        if other:
            client.hset(keys.parts, "coordinator/other", json.dumps({"seen": time.time() + 60}))
        client.hset(keys.state, "error", old)
        application = serve.deployment(
            Coordinator, name="coordinator", max_constructor_retry_count=1, **ANYWHERE
        ).bind(config.model_dump(mode="json"), redis_url, other_part, other_part)
        with pytest.raises(RuntimeError):
            serve.run(application, name=name, route_prefix=None)
        assert reason in client.hget(keys.state, "error")
