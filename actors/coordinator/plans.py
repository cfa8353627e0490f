"""The plans of each shard: the counts that were found and the division of the budget, one plan per round,
kept for the run.

The first plan that is stored for a round counts. The rollouts it was made from are written with it, once.
Pre-rollouts are stored where the learner reads them after their group is complete (`common/live/queue.py`).
Rollouts of later rounds are kept only for a restarted coordinator, until the push writes all extra
rollouts in one message.
"""

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from itertools import takewhile

import structlog

from hora_rl.actors.coordinator.shard import Plan, Round, Shard
from hora_rl.common.errors import WireError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis, read_start
from hora_rl.common.records import ShardReport
from hora_rl.common.types import Group
from hora_rl.common.wire import MAX_BYTES, decode_group, encode_extra, encode_pre_rollouts

log = structlog.get_logger(__name__)
ROUND = [field.name for field in fields(Round)]

# KEYS: the plans, then for each message where it was set in the same transaction, and where it belongs.
STORE = """
local first = redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 1
for i = 2, #KEYS, 2 do
  if first then redis.call('RENAME', KEYS[i], KEYS[i + 1]) else redis.call('UNLINK', KEYS[i]) end
end
return first
"""


class Plans:
    """Plans of one run, of up to `rounds` rounds, by the name of their shard. `redis` is an asyncio client
    that returns bytes; no message of more than `max_bytes` is read."""

    def __init__(self, redis: AsyncRedis, run: str, rounds: int = 1, max_bytes: int = MAX_BYTES) -> None:
        self._redis = redis
        self._keys = Keys(run)
        self._rounds = rounds
        self._max_bytes = max_bytes

    async def remember(self, shard: str, ids: Sequence[str], plan: Plan) -> Plan:
        """Store the last round of a shard's plan. Returns the plan that counts: this one, or one stored
        before."""
        new, keys = uuid.uuid4().hex, [self._keys.plans]
        async with self._redis.pipeline(transaction=True) as pipe:
            for key, message in self._messages(plan):
                staged = f"{key}:new-{new}"
                pipe.set(staged, message)
                keys += [staged, key]
            # The script's text, as for a push.
            pipe.eval(STORE, len(keys), *keys, _field(shard, len(plan.rounds)), _facts(plan))
            first = (await pipe.execute())[-1]
        if first:
            return plan
        stored = await self.load(shard, ids)  # of all groups, also of those that the plan has lost
        assert stored is not None  # It was first, and plans stay.
        return stored

    def _messages(self, plan: Plan) -> Iterator[tuple[str, bytes]]:
        """The rollouts that the plan's last round was divided by: their key, and the message."""
        last = len(plan.rounds) - 1
        for group in plan.groups:
            if not last:
                yield self._keys.pre_rollouts(group.id), encode_pre_rollouts(group)
            elif drawn := tuple(r for r in group.rollouts if r.phase == "B" and r.round == last):
                yield self._keys.drawn(group.id, last), encode_extra(replace(group, rollouts=drawn))

    async def load(self, shard: str, ids: Sequence[str]) -> Plan | None:
        """The stored plan of the shard of `ids`, all its groups, with those that were not pushed; None
        without a plan.

        A group whose rollouts are damaged or missing is left out, and sampled again with its planned size.
        """
        names = [_field(shard, number) for number in range(1, self._rounds + 1)]
        stored = await self._redis.hmget(self._keys.plans, names)
        facts = [json.loads(text) for text in takewhile(bool, stored) if text]
        if not facts:
            return None
        plan = Plan(
            rule=facts[0]["rule"],
            priors=tuple((alpha, beta) for alpha, beta in facts[0]["priors"]),
            rounds=tuple(Round(*(tuple(f.get(name, ())) for name in ROUND)) for f in facts),
            rewards=facts[0]["rewards"],
            groups=(),
        )
        pushed = await self._redis.hmget(self._keys.pushed, ids)
        groups = [
            await self._group(shard, group, plan.rounds[:-1], index)
            for index, (group, entry) in enumerate(zip(ids, pushed, strict=True))
            if entry is None
        ]
        return replace(plan, groups=tuple(group for group in groups if group is not None))

    async def _group(self, shard: str, group: str, drawn: Sequence[Round], index: int) -> Group | None:
        """The group with its rollouts of Phase A and the `drawn` rounds; None, and logged, when they cannot
        be read."""
        rounds = [number for number, r in enumerate(drawn, 1) if r.extra[index]]
        keys = [self._keys.pre_rollouts(group), *(self._keys.drawn(group, number) for number in rounds)]
        messages = [await read_start(self._redis, key, self._max_bytes + 1) for key in keys]
        try:
            return decode_group(*messages, max_bytes=self._max_bytes)
        except WireError as error:
            # Pushed by another coordinator in the meantime, it may already be trained and dropped.
            if not await self._redis.hexists(self._keys.pushed, group):
                log.error("rollouts lost; the group is sampled again", group=group, reason=str(error))
                await self._redis.hset(self._keys.redo, group, shard.partition(":")[0])
            return None


def _field(shard: str, number: int) -> str:
    return shard if number == 1 else f"{shard}:{number}"


def _facts(plan: Plan) -> str:
    """What a plan adds to the one before. The first round's plan holds the rule and prior of all rounds."""
    last = plan.rounds[-1]
    facts: dict[str, object] = asdict(last)
    if len(plan.rounds) == 1:
        facts |= {"rule": plan.rule, "priors": plan.priors, "rewards": plan.rewards}
    return json.dumps(facts)


def report_of(shard: Shard, plan: Plan, hits: list[int | None], seconds: float) -> ShardReport:
    """The record of a shard, for audits of its budget and the paper's allocation figure."""
    return {
        "batch": shard.batch,
        "shard": shard.index,
        "groups": list(shard.ids),
        "prompts": [p.index for p in shard.prompts],
        "rule": plan.rule,
        "priors": [list(prior) for prior in plan.priors],
        "trials": shard.pre_rollouts,
        "successes": list(plan.successes),
        "extra": list(plan.extra),
        "rounds": [{"successes": list(r.successes), "extra": list(r.extra)} for r in plan.rounds],
        "rewards": plan.rewards,
        "hits": hits,
        "seconds": seconds,
    }
