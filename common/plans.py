"""The plan of each shard: what Phase A found and how the budget was divided, decided once and kept for the whole run.

The first plan of a shard is the one that counts, whoever else makes another. Its groups' pre-rollouts are written with it,
once: they stand where the learner reads them when their group is complete (`common/queue.py`), so that a push adds
the additional rollouts alone.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from common.errors import WireError
from common.keys import Keys
from common.types import Plan
from common.wire import decode_group, encode_pre_rollouts

# KEYS: the plans, then for each group where its pre-rollouts were set in the same transaction, and where they belong.
STORE = """
local first = redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 1
for i = 2, #KEYS, 2 do
  if first then redis.call('RENAME', KEYS[i], KEYS[i + 1]) else redis.call('UNLINK', KEYS[i]) end
end
return first
"""


class Plans:
    """Plans of one run by the name of their shard. `redis` is an asyncio client that returns bytes."""

    def __init__(self, redis: Any, run: str) -> None:
        self._redis = redis
        self._keys = Keys(run)
        self._store = redis.register_script(STORE)

    async def remember(self, shard: str, plan: Plan) -> Plan:
        """Store the plan of a shard and return the one that counts: this, or one stored before."""
        facts = json.dumps(asdict(replace(plan, groups=())))
        new, keys = uuid.uuid4().hex, [self._keys.plans]
        async with self._redis.pipeline(transaction=True) as pipe:
            for group in plan.groups:
                staged = self._keys.pre_rollouts(f"new-{new}-{group.id}")
                pipe.set(staged, encode_pre_rollouts(group))
                keys += [staged, self._keys.pre_rollouts(group.id)]
            await self._store(keys=keys, args=[shard, facts], client=pipe)
            first = (await pipe.execute())[-1]
        if first:
            return plan
        stored = await self.load(shard, [g.id for g in plan.groups])
        assert stored is not None  # It was first, and plans stay.
        return stored

    async def load(self, shard: str, ids: Sequence[str]) -> Plan | None:
        """The stored plan of the shard of these groups, with those of them that were not pushed; None when there is none.

        Raises WireError when the pre-rollouts of such a group are damaged or gone.
        """
        stored = await self._redis.hget(self._keys.plans, shard)
        if stored is None:
            return None
        facts = json.loads(stored)
        # In this order: what is pushed may be trained and let go at any moment, what is not stays.
        found = await self._redis.mget([self._keys.pre_rollouts(i) for i in ids])
        pushed = await self._redis.hmget(self._keys.pushed, ids)
        groups = []
        for group_id, message, entry in zip(ids, found, pushed, strict=True):
            if entry is None and message is None:
                raise WireError(f"group {group_id} of shard {shard} has lost its pre-rollouts in Redis")
            if entry is None:
                groups.append(decode_group(message))
        return Plan(
            rule=facts["rule"],
            priors=tuple((alpha, beta) for alpha, beta in facts["priors"]),
            successes=tuple(facts["successes"]),
            extra=tuple(facts["extra"]),
            format=facts["format"],
            accuracy=facts["accuracy"],
            groups=tuple(groups),
        )
