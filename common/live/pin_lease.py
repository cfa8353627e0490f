"""The lease by which an evaluation keeps one generator replica at one version of the weights.

The evaluator writes it to Redis and renews it, and every replica reads it. It expires by itself, so a dead
evaluator keeps no replica from new weights.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis
from hora_rl.common.types import Pinned

LEASE_S = 15.0
"""The lease ends so long after it was renewed last."""


async def ask(client: AsyncRedis, run: str, pinned: Pinned) -> None:
    """Keep `pinned.replica` at the first version that it holds of `pinned.version` or newer, or renew
    that."""
    await client.set(Keys(run).pin, json.dumps(asdict(pinned)), px=round(1000 * LEASE_S))


async def asked(client: AsyncRedis, run: str) -> Pinned | None:
    """The lease in force."""
    text = await client.get(Keys(run).pin)
    return Pinned(**json.loads(text)) if text else None


async def release(client: AsyncRedis, run: str) -> None:
    """End the lease: the replica takes the newest weights and serves training again."""
    await client.delete(Keys(run).pin)
