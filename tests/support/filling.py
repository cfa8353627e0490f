"""Groups put into a run's real queue, as a coordinator puts them there."""

import asyncio
from collections.abc import Iterable

from hora_rl.common.config import Config
from hora_rl.common.live.queue import Producer
from hora_rl.common.live.redis import connect_async
from hora_rl.common.types import Group
from hora_rl.deploy.machine.redis_server import RedisServer


def fill(config: Config, server: RedisServer, groups: Iterable[Group]) -> None:
    async def push() -> None:
        client = connect_async(server.url)
        for group in groups:
            await Producer(client, config.run.name, config.rollout.prompts_per_batch).push(group)
        await client.aclose()

    asyncio.run(push())
