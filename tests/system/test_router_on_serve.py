"""The router as Serve runs it: samples fill a replica up to its reserved places, and calls to all replicas go
through."""

import asyncio
import time

import pytest
from ray import serve
from ray.serve.config import RequestRouterConfig

from actors.calls import retry
from actors.generator.router import RESERVED
from common.errors import NoRoom
from deploy.app import ROUTER
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
