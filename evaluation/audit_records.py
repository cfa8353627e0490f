"""The records of a run that an audit compares, from Redis and groups.jsonl, and the audit of its divisions:
every round spent its share, and Δ follows from the recorded counts."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from hora_rl.allocator import Session
from hora_rl.allocator.posterior import Int
from hora_rl.common.config import AllocationConfig, RolloutConfig
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import Redis
from hora_rl.common.live.state import SharedState, read_state
from hora_rl.common.records import GroupRecord, ShardReport

NEEDED = {"step", "group_id", "batch", "size", "version_min", "version_max"}
"""Fields that every check needs in a group's record."""


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of a run.

    `reports`: one per complete shard. `ledger[step]`: (group id, batch) of planned groups. `records`: one per
    trained group, as in groups.jsonl. `waiting`: ids in the queue or requested again, not yet in a step.
    `durable`: the number of steps in the checkpoint that entries were released for. `prompts`: number of
    prompts, and `rows` per source if there are several; None for older runs.
    """

    reports: Sequence[ShardReport]
    ledger: Mapping[int, Sequence[tuple[str, int]]]
    records: Sequence[GroupRecord]
    waiting: frozenset[str]
    durable: int = 0
    prompts: int | None = None
    rows: tuple[int, ...] = ()


def gather(client: Redis, run: str, read: Callable[[], Sequence[Mapping[str, object]]]) -> RunRecords:
    """The records of `run` from Redis and those of groups.jsonl, which `read` returns. A live run writes
    ledger, then records, then checkpoint: reading in reverse order finds all that earlier reads refer to.
    Raises RunError for a record without a key."""
    keys = Keys(run)
    durable = read_state(client, run).durable_step
    records = [cast(GroupRecord, record) for record in read()]
    for number, record in enumerate(records, start=1):
        if missing := NEEDED - record.keys():
            raise RunError(f"groups.jsonl:{number}: no {', '.join(sorted(missing))}: delete this line")
    with client.pipeline(transaction=True) as pipe:  # one snapshot, so a live run can be audited
        pipe.hvals(keys.shards)
        pipe.hgetall(keys.ledger)
        pipe.xrange(keys.groups)
        pipe.hkeys(keys.redo)
        pipe.hgetall(keys.state)
        reports, planned, stream, redo, state = pipe.execute()
    ledger = {
        int(step): [(row[0], int(row[2])) for row in json.loads(text)] for step, text in planned.items()
    }
    taken = {group for rows in ledger.values() for group, _ in rows}
    queued = {fields.get(b"id", b"") for _, fields in stream}
    return RunRecords(
        reports=[json.loads(text) for text in reports],
        ledger=ledger,
        records=_complete(records, ledger, durable),
        waiting=frozenset(group.decode(errors="replace") for group in {*queued, *redo}) - taken,
        durable=durable,
        prompts=used.n if (used := SharedState.parse(state).prompts) else None,
        rows=used.rows if used else (),
    )


def _complete(
    records: list[GroupRecord], ledger: dict[int, list[tuple[str, int]]], durable: int
) -> list[GroupRecord]:
    """Drop a last step with missing lines: it is being written, or will be repeated."""
    newest = max((r["step"] for r in records), default=-1)
    lines = sum(r["step"] == newest for r in records)
    if newest >= durable and lines < len(ledger.get(newest, ())):
        return [r for r in records if r["step"] != newest]
    return records


def divisions(
    allocation: AllocationConfig,
    rollout: RolloutConfig,
    reports: Sequence[ShardReport],
) -> list[str]:
    """Violations by these shards, as sentences. Reports of older runs, without rounds, are skipped."""
    return [
        f"shard {report['batch']}:{report['shard']} {wrong}"
        for report in reports
        if "rounds" in report
        for wrong in _of_shard(allocation, rollout, report)
    ]


def _of_shard(allocation: AllocationConfig, rollout: RolloutConfig, report: ShardReport) -> Iterator[str]:
    """Recompute each round from recorded counts; stop at the first difference."""
    rounds = report["rounds"]
    sums = [sum(extra) for extra in zip(*(r["extra"] for r in rounds), strict=False)]
    if report["successes"] != rounds[0]["successes"] or report["extra"] != sums:
        yield f"does not add up: its rounds give {sums}, its sum is {report['extra']}"
        return
    under = allocation.under(report["rule"])
    if len(rounds) != under.rounds:
        yield f"was divided in {len(rounds)} rounds, not {under.rounds}"
        return
    again = _again(rollout, under, report)
    try:
        for number, (recorded, extra) in enumerate(zip(rounds, again, strict=True), 1):
            expected = extra.tolist()
            if recorded["extra"] != expected:
                spent = f"{sum(recorded['extra'])} rollouts, {sum(expected)} are its share"
                yield f"divided round {number} as {recorded['extra']} ({spent}), its counts give {expected}"
                return
    except ValueError as error:
        yield f"cannot have been divided as it says: {error}"


def _again(rollout: RolloutConfig, allocation: AllocationConfig, report: ShardReport) -> Iterator[Int]:
    n, rounds = len(report["groups"]), report["rounds"]
    alpha, beta = zip(*report["priors"], strict=True)
    shared = len(set(alpha)) == len(set(beta)) == 1
    session = Session(
        n,
        n * (rollout.group_size - rollout.pre_rollouts),
        rule=report["rule"],
        prior=(alpha[0], beta[0]) if shared else (alpha, beta),
        rounds=len(rounds),
        stop=allocation.stop,
        max_group_size=allocation.max_group_size,
    )
    trials: int | list[int] = report["trials"]
    for recorded in rounds:
        session.tell(recorded["successes"], trials)
        yield session.ask()
        trials = recorded["extra"]
