"""Groups put into a run's real queue, as a coordinator puts them there."""

import asyncio
from collections.abc import Iterable

from common.config import Config
from common.queue import Producer
from common.redis import connect_async
from common.types import Group
from deploy.launch.redis_server import RedisServer


def fill(config: Config, server: RedisServer, groups: Iterable[Group]) -> None:
    async def push() -> None:
        client = connect_async(server.url)
        for group in groups:
            await Producer(client, config).push(group)
        await client.aclose()

    asyncio.run(push())
