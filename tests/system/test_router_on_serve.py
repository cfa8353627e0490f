"""The router as Serve runs it: samples fill a replica up to its reserved places, calls to all replicas go
through, and the turns of an episode stay on one replica."""

import asyncio
import time
from collections import defaultdict

import pytest
from ray import serve
from ray.serve.config import RequestRouterConfig

from hora_rl.actors.coordinator.calls import retry
from hora_rl.actors.generator.pin import PINNED, only_on
from hora_rl.actors.generator.router import RESERVED
from hora_rl.common.errors import NoRoom
from hora_rl.deploy.app import ROUTER, ROUTING_S
from tests.support.local_serve import local_serve

pytestmark = pytest.mark.system
PLACES, SECONDS = 2, 3.0


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

    async def answer_roll_call(self) -> int:
        return self.now


@pytest.fixture(scope="module")
def cluster():
    with local_serve():
        yield


def test_a_call_to_all_replicas_does_not_wait_for_samples(cluster: None) -> None:
    application = serve.deployment(
        Slow,
        name="generator",
        num_replicas=2,
        max_ongoing_requests=PLACES + RESERVED,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        ray_actor_options={"num_cpus": 0},
    ).bind()
    handle = serve.run(application, name="routed", route_prefix=None)

    async def run() -> None:
        async def ask(before: int) -> int:
            return await handle.generate.remote()

        asked = [
            asyncio.create_task(retry(ask, "sampling", attempts=1, limit_s=60)) for _ in range(PLACES * 8)
        ]
        await asyncio.sleep(SECONDS / 2)  # all places are taken, the rest waits
        began = time.monotonic()
        running = await asyncio.to_thread(lambda: handle.broadcast("answer_roll_call").results(timeout_s=10))
        assert running == [PLACES, PLACES]
        assert time.monotonic() - began < SECONDS / 3
        await asyncio.gather(*asked[: PLACES * 4])
        for task in asked:
            task.cancel()

    asyncio.run(run())
    serve.delete("routed")


class Pinnable:
    """A generator that may be pinned, and says which one it is. It refuses nothing."""

    def __init__(self) -> None:
        self.pinned, self.name = False, serve.get_replica_context().replica_id.unique_id

    async def generate(self) -> str:
        return self.name

    async def pin(self, name: str) -> None:
        self.pinned = self.name == name

    async def record_routing_stats(self) -> dict[str, bool]:
        return {PINNED: self.pinned}


def test_a_pinned_replica_gets_its_own_requests_and_no_others(cluster: None) -> None:
    application = serve.deployment(
        Pinnable,
        name="generator",
        num_replicas=2,
        max_ongoing_requests=12 + RESERVED,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER, request_routing_stats_period_s=ROUTING_S
        ),
        ray_actor_options={"num_cpus": 0},
    ).bind()
    handle = serve.run(application, name="pinned", route_prefix=None)

    async def ask(session: str = "", times: int = 24) -> set[str]:
        options = handle.options(session_id=session) if session else handle
        return {await options.generate.remote() for _ in range(times)}

    async def until(session: str, names: set[str]) -> None:
        deadline = time.monotonic() + 30
        while await ask(session) != names:
            assert time.monotonic() < deadline, (session, names)

    async def pin(name: str) -> None:
        await asyncio.to_thread(lambda: handle.broadcast("pin", name).results(timeout_s=10))

    async def run() -> None:
        await until("", names := await ask("", 60))
        stays, other = sorted(names)
        await pin(stays)
        await until("", {other})
        sessions = await asyncio.gather(*(ask(str(i), 2) for i in range(12)))
        assert set.union(*sessions) == {other}, "its home is another one meanwhile"
        assert await ask(only_on(stays)) == {stays}
        assert await ask(only_on("gone")) == {other}, "which refuses it"
        await pin("")
        await until("", names)

    asyncio.run(run())
    serve.delete("pinned")


class Named:
    """A generator that says which replica it is."""

    async def generate(self) -> str:
        await asyncio.sleep(0.05)
        return serve.get_replica_context().replica_id.unique_id


def test_a_session_has_a_home_and_goes_elsewhere_while_it_is_full(cluster: None) -> None:
    application = serve.deployment(
        Named,
        name="generator",
        num_replicas=3,
        max_ongoing_requests=12 + RESERVED,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        ray_actor_options={"num_cpus": 0},
    ).bind()
    handle = serve.run(application, name="homes", route_prefix=None)

    async def turns(session: str, n: int) -> list[str]:
        return [await handle.options(session_id=session).generate.remote() for _ in range(n)]

    async def run() -> None:
        await asyncio.gather(*(turns("", 5) for _ in range(6)))  # loads of all replicas are known
        # So few at a time that home has room for all, in bursts that Serve would hand out first come, first
        # served.
        homes = defaultdict(set)
        for start in range(0, 24, 4):
            sessions = [str(i) for i in range(start, start + 4)]
            for name, seen in zip(
                sessions, await asyncio.gather(*(turns(s, 6) for s in sessions)), strict=True
            ):
                homes[name] |= set(seen)
        assert all(len(seen) == 1 for seen in homes.values()), homes
        assert len(set.union(*homes.values())) == 3, "sessions are spread over the replicas"
        crowd = await asyncio.gather(*(turns("crowd", 1) for _ in range(40)))
        assert len({seen for one in crowd for seen in one}) > 1, "a full home keeps nobody waiting"

    asyncio.run(run())
    serve.delete("homes")
