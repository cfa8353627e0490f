"""The queue of complete groups: a Redis stream with a consumer group. No group is lost or duplicated.

    Producer.push ─► stream ─► Consumer.claim ─► ledger: step ↔ entries ─► train
        ─► durable checkpoint ─► acknowledge

Pushing is idempotent by group id for the life of the run. An entry stays in the stream until a durable
checkpoint contains its step. An unusable entry becomes a dead letter and its id goes to `redo`, so the group
is sampled again. An entry belongs to its group only while `pushed` says so. `claim` and `pending` remove all
other entries as foreign and count them in one dead letter.

A stream entry only names a group. The rollouts are in two keys, changed in the same transactions: the
pre-rollouts, written with the shard's plan (`actors/coordinator/store.py`), and the extra ones. Redis stores
a long value without a copy; a stream and a script each copy it twice."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from hora_rl.common.errors import WireError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis, text_of
from hora_rl.common.live.staleness import Entry
from hora_rl.common.live.state import changed
from hora_rl.common.types import Group
from hora_rl.common.wire import MAX_BYTES, encode_extra, encode_pre_rollouts

GROUP, CONSUMER = "learner", "rank-0"
DEAD_LETTERS = 10_000  # the newest are kept
DEAD_BYTES = 2**19  # bytes kept of either message of a dead letter
# Longer than any group id or batch, which are numbers of at most 63 bits.
LONGEST_ID, LONGEST_BATCH = 64, 18
AT_ONCE = 256  # entries read together

# KEYS[4] holds the extra rollouts, KEYS[5] the pre-rollouts without a plan, set in the same transaction.
PUSH = """
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then
  redis.call('UNLINK', unpack(KEYS, 4))
  redis.call('HDEL', KEYS[3], ARGV[1])
  return false
end
local entry = redis.call('XADD', KEYS[1], '*', 'id', ARGV[1], 'batch', ARGV[2])
redis.call('RENAME', KEYS[4], ARGV[3] .. entry)
if KEYS[5] then redis.call('RENAME', KEYS[5], ARGV[4]) end
redis.call('HSET', KEYS[2], ARGV[1], entry)
redis.call('HDEL', KEYS[3], ARGV[1])
return entry
"""


# Takes effect once per entry, also if repeated after a lost reply. The group is sampled again only if this is
# still its entry. The pre-rollouts stay: a coordinator that continues the shard needs them.
BURY = """
if redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then return end
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[4], '*', 'id', ARGV[2], 'reason', ARGV[3],
  'pre_rollouts', ARGV[7], 'additional', ARGV[5])
redis.call('UNLINK', KEYS[6])
redis.call('XACK', KEYS[1], ARGV[6], ARGV[1])
redis.call('HINCRBY', KEYS[5], 'dead_letters', 1)
if redis.call('HGET', KEYS[2], ARGV[2]) == ARGV[1] then
  redis.call('HDEL', KEYS[2], ARGV[2])
  if ARGV[8] ~= '' then redis.call('HSET', KEYS[3], ARGV[2], ARGV[8]) end
end
"""

# KEYS from the 4th are the foreign entries' messages, ARGV from the 4th their ids. Safe to repeat.
SET_ASIDE = """
local gone = redis.call('XDEL', KEYS[1], unpack(ARGV, 4))
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 4))
redis.call('UNLINK', unpack(KEYS, 4))
if gone == 0 then return end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'reason', ARGV[3])
redis.call('HINCRBY', KEYS[3], 'dead_letters', gone)
"""


def depth_of(length: int, steps: int, durable_step: int, per_step: int) -> int:
    """Groups that no step has taken, of `length` entries: ledgered steps after `durable_step` have theirs."""
    return max(0, length - (steps - durable_step) * per_step)


class Producer:
    """The coordinator's side: a step takes `per_step` groups, of up to `rounds` rounds. `redis` is
    asynchronous."""

    def __init__(self, redis: AsyncRedis, run: str, per_step: int, rounds: int = 1) -> None:
        self._redis = redis
        self._keys = Keys(run)
        self._per_step = per_step
        self._rounds_before_last = range(1, rounds)

    async def push(self, group: Group, *, planned: bool = False) -> bool:
        """Add a complete group; False if its id was pushed before. `planned`: the plan stored Phase A."""
        new = f"new-{uuid.uuid4().hex}"
        keys = [self._keys.groups, self._keys.pushed, self._keys.redo, self._keys.additional(new)]
        args = [group.id, str(group.batch), self._keys.additional(""), self._keys.pre_rollouts(group.id)]
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(self._keys.additional(new), encode_extra(group))
            if not planned:
                keys.append(self._keys.pre_rollouts(new))
                pipe.set(keys[-1], encode_pre_rollouts(group))
            pipe.hsetnx(self._keys.hits, group.id, group.hits)  # the first push's, like `pushed`
            # Send the script's text, not its digest: a restarted Redis may have lost the script.
            pipe.eval(PUSH, len(keys), *keys, *args)
            if drawn := [self._keys.drawn(group.id, number) for number in self._rounds_before_last]:
                pipe.unlink(*drawn)  # included in the extra rollouts
            return (await pipe.execute())[-2 if drawn else -1] is not None

    async def depth(self) -> int:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.xlen(self._keys.groups)
            pipe.hlen(self._keys.ledger)
            pipe.hget(self._keys.state, "durable_step")
            length, steps, durable = await pipe.execute()
        return depth_of(length, steps, int(durable or 0), self._per_step)

    async def redo(self) -> dict[str, int]:
        """Groups to sample again, with their batch. Pushing a group removes it."""
        groups = await self._redis.hgetall(self._keys.redo)
        return {text_of(group): int(batch) for group, batch in sorted(groups.items())}


class Consumer:
    """The learner's side, on rank 0; `read` on every rank. `client` is blocking and returns bytes."""

    def __init__(self, client: redis.Redis, run: str, max_bytes: int = MAX_BYTES) -> None:
        self._redis: Any = client  # redis-py has one return type for all stream commands
        self._keys = Keys(run)
        self._max_bytes = max_bytes
        self._bury, self._set_aside = client.register_script(BURY), client.register_script(SET_ASIDE)
        try:
            self._redis.xgroup_create(self._keys.groups, GROUP, id="0", mkstream=True)
        except redis.exceptions.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def claim(self, block_s: float, count: int = AT_ONCE) -> list[Entry]:
        """Unclaimed entries of this run, waiting up to `block_s` seconds for the first."""
        block = max(1, int(block_s * 1000))
        streams = self._redis.xreadgroup(GROUP, CONSUMER, {self._keys.groups: ">"}, count=count, block=block)
        return self._own([_entry(i, fields) for _, entries in streams or [] for i, fields in entries])

    def claimed(self) -> int:
        return int(self._redis.xpending(self._keys.groups, GROUP)["pending"])

    def pending(self) -> list[Entry]:
        """Claimed entries of this run without acknowledgement, oldest first: a restart begins here."""
        entries, last = list[Entry](), "0"
        while True:
            [[_, page]] = self._redis.xreadgroup(GROUP, CONSUMER, {self._keys.groups: last}, count=AT_ONCE)
            if not page:
                return entries
            entries += self._own([_entry(i, fields) for i, fields in page if fields])
            last = page[-1][0].decode()

    def _own(self, entries: list[Entry]) -> list[Entry]:
        """The entries that this run pushed; foreign ones are removed and counted."""
        if not entries:
            return []
        pushed = self._redis.hmget(self._keys.pushed, [e.group for e in entries])
        foreign = [e for e, mine in zip(entries, pushed, strict=True) if mine != e.id.encode()]
        if not foreign:
            return entries
        reason = (
            f"{len(foreign)} foreign: this run pushed no such entry to {self._keys.groups}; the first is "
            f"{foreign[0].id}, as group {foreign[0].group!r:.40}"
        )
        keys = [self._keys.groups, self._keys.dead, self._keys.counters]
        self._set_aside(
            keys=[*keys, *(self._keys.additional(e.id) for e in foreign)],
            args=[GROUP, DEAD_LETTERS, reason, *(e.id for e in foreign)],
        )
        return [e for e in entries if e not in foreign]

    def read(self, entry: str, group: str) -> tuple[bytes, bytes]:
        """The encoded pre-rollouts and extra rollouts of this entry's group, each at most one byte longer
        than the decoder accepts. Raises WireError if they are missing or the group has another entry."""
        pre_rollouts, additional = self._keys.pre_rollouts(group), self._keys.additional(entry)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hget(self._keys.pushed, group)
            for key in (pre_rollouts, additional):
                pipe.getrange(key, 0, self._max_bytes)
            pushed, *messages = pipe.execute()
        if pushed != entry.encode():
            raise WireError(
                f"entry {entry} of {self._keys.groups} was not pushed as group {group!r:.40}: foreign"
            )
        for key, value in zip((pre_rollouts, additional), messages, strict=True):
            if not value:
                raise WireError(f"entry {entry} of {self._keys.groups} has no {key}: acknowledged or removed")
        return messages[0], messages[1]

    def acknowledge(self, groups: Mapping[str, str], durable_step: int) -> None:
        """Acknowledge the groups, by entry, in the durable checkpoint of `durable_step`; all or none."""
        with self._redis.pipeline(transaction=True) as pipe:
            if groups:
                pipe.xack(self._keys.groups, GROUP, *groups)
                pipe.xdel(self._keys.groups, *groups)
                pipe.unlink(*map(self._keys.additional, groups))
                pipe.unlink(*map(self._keys.pre_rollouts, groups.values()))
            pipe.hset(self._keys.state, mapping=changed(durable_step=durable_step))
            pipe.execute()

    def dead_letter(self, entry: Entry, reason: str, *, again: bool = True) -> None:
        """Move an unusable entry to the dead letters with its reason. `again`: sample its group again."""
        additional = self._keys.additional(entry.id)
        keys = self._keys
        with self._redis.pipeline(transaction=False) as pipe:
            for key in (keys.pre_rollouts(entry.group), additional):
                pipe.getrange(key, 0, DEAD_BYTES - 1)
            pre_rollouts_start, additional_start = pipe.execute()
        args: list[str | int | bytes] = [entry.id, entry.group, reason[:1000], DEAD_LETTERS]
        args += [additional_start, GROUP, pre_rollouts_start, entry.batch if again else ""]
        self._bury([keys.groups, keys.pushed, keys.redo, keys.dead, keys.counters, additional], args)


@dataclass(frozen=True, slots=True)
class Row:
    """One group of a ledgered step: its id, stream entry, batch, and training cost."""

    group: str
    entry: str
    batch: int
    cost: int


class Ledger:
    """The groups of each step, written before the step trains and never changed."""

    def __init__(self, client: redis.Redis, run: str) -> None:
        self._redis: Any = client  # redis-py has one return type for all stream commands
        self._key = Keys(run).ledger

    def record(self, step: int, rows: Sequence[Row]) -> None:
        """Fix the groups of step `step`. Raises ValueError if the ledger has different ones."""
        text = json.dumps([[r.group, r.entry, r.batch, r.cost] for r in rows])
        new = self._redis.hsetnx(self._key, str(step), text)
        if not new and self._redis.hget(self._key, str(step)) != text.encode():
            raise ValueError(f"step {step} is in the ledger with other groups")

    def step(self, step: int) -> list[Row] | None:
        """The groups of one step; None if not planned."""
        text = self._redis.hget(self._key, str(step))
        return [Row(*row) for row in json.loads(text)] if text else None

    def steps(self) -> dict[int, list[Row]]:
        raw = self._redis.hgetall(self._key)
        return {int(s): [Row(*row) for row in json.loads(raw[s])] for s in sorted(raw, key=int)}


def _entry(entry: bytes, fields: dict[bytes, bytes]) -> Entry:
    """Missing fields of foreign entries become empty values, which the decoder rejects with a reason.

    A long id is truncated, so foreign text of any length is never repeated. No group has such an id."""
    batch = fields.get(b"batch", b"")
    return Entry(
        id=entry.decode(),
        group=fields.get(b"id", b"")[:LONGEST_ID].decode(errors="replace"),
        batch=int(batch) if batch.isdigit() and len(batch) <= LONGEST_BATCH else -1,
    )
