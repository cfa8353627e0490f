"""The lease by which an evaluation pins one generator replica at one weight version.

The evaluator writes and renews it in Redis; all replicas read it. It expires, so a dead evaluator blocks no
replica."""

import json
from dataclasses import asdict

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis
from hora_rl.common.types import Pinned

LEASE_S = 15.0
"""Seconds after the last renewal at which the lease ends."""


async def ask(client: AsyncRedis, run: str, pinned: Pinned) -> None:
    """Take or renew the lease: `pinned.replica` stays at its first version >= `pinned.version`."""
    await client.set(Keys(run).pin, json.dumps(asdict(pinned)), px=round(1000 * LEASE_S))


async def asked(client: AsyncRedis, run: str) -> Pinned | None:
    """The current lease."""
    text = await client.get(Keys(run).pin)
    return Pinned(**json.loads(text)) if text else None


async def release(client: AsyncRedis, run: str) -> None:
    """End the lease: the replica loads the newest weights and serves training again."""
    await client.delete(Keys(run).pin)
