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

import structlog

from common.errors import RunError, WireError
from common.keys import Keys
from common.types import Group, Plan
from common.wire import MAX_BYTES, decode_group, encode_pre_rollouts

log = structlog.get_logger(__name__)

# KEYS: the plans, then for each group where its pre-rollouts were set in the same transaction, and where they belong.
STORE = """
local first = redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 1
for i = 2, #KEYS, 2 do
  if first then redis.call('RENAME', KEYS[i], KEYS[i + 1]) else redis.call('UNLINK', KEYS[i]) end
end
return first
"""


class Plans:
    """Plans of one run by the name of their shard. `redis` is an asyncio client that returns bytes; no message of more
    than `max_bytes` is read."""

    def __init__(self, redis: Any, run: str, max_bytes: int = MAX_BYTES) -> None:
        self._redis = redis
        self._keys = Keys(run)
        self._max_bytes = max_bytes

    async def remember(self, shard: str, plan: Plan) -> Plan:
        """Store the plan of a shard and return the one that counts: this, or one stored before."""
        facts = json.dumps(asdict(replace(plan, groups=())))
        new, keys = uuid.uuid4().hex, [self._keys.plans]
        async with self._redis.pipeline(transaction=True) as pipe:
            for group in plan.groups:
                staged = self._keys.pre_rollouts(f"new-{new}-{group.id}")
                pipe.set(staged, encode_pre_rollouts(group))
                keys += [staged, self._keys.pre_rollouts(group.id)]
            pipe.eval(STORE, len(keys), *keys, shard, facts)  # its text, as for a push
            first = (await pipe.execute())[-1]
        if first:
            return plan
        stored = await self.load(shard, [g.id for g in plan.groups])
        assert stored is not None  # It was first, and plans stay.
        return stored

    async def load(self, shard: str, ids: Sequence[str]) -> Plan | None:
        """The stored plan of the shard of these groups, with those of them that were not pushed; None when there is none.

        A group whose pre-rollouts are damaged or gone is left out, to be sampled again at its plan's size.
        """
        stored = await self._redis.hget(self._keys.plans, shard)
        if stored is None:
            return None
        facts = json.loads(stored)
        if "rewards" not in facts:
            raise RunError(
                f"the plan of shard {shard} is of an older hora and names no rewards: end this run with that version, or "
                "start anew under another run.name"
            )
        pushed = await self._redis.hmget(self._keys.pushed, ids)
        open_ids = [i for i, entry in zip(ids, pushed, strict=True) if entry is None]
        groups = [g for i in open_ids if (g := await self._pre_rollouts(shard, i)) is not None]
        return Plan(
            rule=facts["rule"],
            priors=tuple((alpha, beta) for alpha, beta in facts["priors"]),
            successes=tuple(facts["successes"]),
            extra=tuple(facts["extra"]),
            rewards=facts["rewards"],
            groups=tuple(groups),
        )

    async def _pre_rollouts(self, shard: str, group: str) -> Group | None:
        message = await self._redis.getrange(self._keys.pre_rollouts(group), 0, self._max_bytes)
        try:
            return decode_group(message, max_bytes=self._max_bytes)
        except WireError as error:
            # Pushed by another coordinator since we looked, it may be trained and let go already.
            if not await self._redis.hexists(self._keys.pushed, group):
                log.error("pre-rollouts lost; the group is sampled again", group=group, reason=str(error))
                await self._redis.hset(self._keys.redo, group, shard.partition(":")[0])
            return None
