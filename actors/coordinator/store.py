"""What coordinators keep in Redis: the identity of the run, the leases and the plans of its shards.

Identity: the prompts, and the configuration except keys that may change; fixed once a plan exists. A
coordinator with other settings or data would confuse half-done batches and silently skip prompts.

Plans: the counts that were found and the division of the budget, one a round, kept for the run. The first
that is stored for a round counts, with the rollouts it was made from. Pre-rollouts are stored where the
learner reads them after their group is complete (`common/live/queue.py`). Rollouts of later rounds are kept
only for a restarted coordinator, until the push writes all extra rollouts in one message."""

import asyncio
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, fields, replace
from itertools import takewhile

import structlog
from redis.asyncio.lock import Lock
from redis.exceptions import LockError

from hora_rl.actors.concurrency import cancel
from hora_rl.actors.coordinator.shard import Plan, Round, Shard
from hora_rl.common.config import Config, SourceConfig
from hora_rl.common.config.base import Scope
from hora_rl.common.data.prompt_order import Mixture
from hora_rl.common.errors import ConfigError, RunError, WireError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis, read_start
from hora_rl.common.live.state import read_config
from hora_rl.common.load import differences
from hora_rl.common.records import ShardReport
from hora_rl.common.types import Group, Prompt
from hora_rl.common.wire import MAX_BYTES, SCHEMA, decode_group, encode_extra, encode_pre_rollouts

# The first coordinator stores the run's prompts. They may be replaced together with the configuration while
# nothing was sampled under it.
CLAIM = """
if redis.call('EXISTS', KEYS[2]) == 0 and redis.call('GET', KEYS[1]) ~= ARGV[1] then
  redis.call('HDEL', KEYS[3], 'prompts')
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('HSETNX', KEYS[3], 'prompts', ARGV[2])
return redis.call('HGET', KEYS[3], 'prompts')
"""
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


async def claim_identity(redis: AsyncRedis, config: Config, prompts: Sequence[Prompt]) -> None:
    """Store the configuration and the identity of the prompts, which may change while the run has no plan.
    Raises RunError if the run has begun with other settings, which the error names, or other prompts."""
    name, keys = config.run.name, Keys(config.run.name)
    stored = await redis.get(keys.config)
    if stored is not None and await redis.exists(keys.plans):
        changed = differences(read_config(stored, name), config, below=Scope.START)
        if changed:
            raise RunError(
                f"run {name!r} has begun with other settings: {'; '.join(changed)} (the run's value first): "
                "deploy it with the run's settings, or start again under another run.name"
            )
    here: dict[str, object] = {"n": len(prompts), "fingerprint": fingerprint(prompts), "schema": SCHEMA}
    if config.data.sources:  # for the audit
        here["rows"] = list(mixture_of(config.data.sources, prompts).rows)
    args = [config.model_dump_json(), json.dumps(here)]
    begun = json.loads(await redis.eval(CLAIM, 3, keys.config, keys.plans, keys.state, *args))
    if begun.get("schema") != SCHEMA:
        raise RunError(
            f"run {name!r} was begun by another version of hora, whose groups do not have schema {SCHEMA}: "
            "finish it with that version, or start again under another run.name"
        )
    if begun != here:
        paths = ", ".join(config.of(source).data.path for source in config.source_names)
        raise RunError(
            f"run {name!r} has begun with {begun['n']} prompts (fingerprint {begun['fingerprint']}), but the "
            f"data here gives {here['n']} others ({here['fingerprint']}): restore the run's data ({paths}) "
            f"and tokenizer ({config.model.path}), or start again under another run.name"
        )


def mixture_of(sources: Mapping[str, SourceConfig], prompts: Sequence[Prompt]) -> Mixture:
    """Prompts and weight of each source. Raises ConfigError for a source without prompts."""
    counts = Counter(p.source for p in prompts)
    if not sources:
        return Mixture((len(prompts),))
    empty = [name for name in sources if not counts[name]]
    if empty:
        raise ConfigError(f"data.sources.{empty[0]}: none of its rows can be used")
    return Mixture(tuple(counts[name] for name in sources), tuple(s.weight for s in sources.values()))


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """16 hex digits that identify a list of prompts: texts, tokens, and answers or tests, in order."""
    digest = hashlib.blake2b(digest_size=8)
    for p in prompts:
        digest.update(json.dumps([p.text, p.judged_by, p.tokens.tolist()], default=str).encode())
    return digest.hexdigest()


class Leases:
    """One coordinator, `owner`, works on a shard at a time, for `seconds` unless the lease is renewed."""

    def __init__(self, redis: AsyncRedis, run: str, owner: str, seconds: float) -> None:
        self._redis, self._owner, self._seconds = redis, owner, seconds
        self._prefix = Keys(run).leases
        self._locks: dict[str, Lock] = {}

    async def acquire(self, name: str) -> bool:
        """Take a free lease. Returns False if the lease is taken."""
        lock = self._redis.lock(f"{self._prefix}:{name}", timeout=self._seconds, thread_local=False)
        if not await lock.acquire(blocking=False, token=self._owner):
            return False
        self._locks[name] = lock
        return True

    async def release(self, name: str) -> None:
        """End an acquired lease, unless another owner has it by now."""
        with suppress(LockError):
            await self._locks.pop(name).release()

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        """Renew an acquired lease while the block runs, then release it. Losing one, after a long stall, is
        harmless: of two owners of a shard the first plan and the first push of each group count."""
        over = asyncio.Event()
        renewal = asyncio.create_task(self._keep(self._locks[name], over))
        try:
            yield
        finally:
            over.set()  # A cancellation that arrives while redis-py reads a reply can be lost in redis-py.
            await cancel([renewal])
            await self.release(name)

    async def _keep(self, lock: Lock, over: asyncio.Event) -> None:
        while not over.is_set():
            await asyncio.sleep(self._seconds / 3)
            with suppress(LockError):  # lost
                await lock.reacquire()


class Plans:
    """Plans of one run, of up to `rounds` rounds, by the name of their shard. `redis` is an asyncio client
    that returns bytes; no message of more than `max_bytes` is read."""

    def __init__(self, redis: AsyncRedis, run: str, rounds: int = 1, max_bytes: int = MAX_BYTES) -> None:
        self._redis = redis
        self._keys = Keys(run)
        self._rounds = rounds
        self._max_bytes = max_bytes

    async def remember(self, shard: str, ids: Sequence[str], plan: Plan) -> Plan:
        """Store the plan's last round. Returns the plan that counts: this one, or one stored before."""
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
        """The stored plan of the shard of `ids`, with its groups that were not pushed; None without a plan. A
        group with damaged or missing rollouts is left out, and sampled again with its planned size."""
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
        """The group with its rollouts of Phase A and the `drawn` rounds; None, and logged, if unreadable."""
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
