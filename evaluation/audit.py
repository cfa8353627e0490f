"""Audit of a run's records: nothing missing, nothing doubled, budgets and staleness bounds kept.

Compares shard reports (the coordinator's: generated groups), the ledger (rank 0's: groups of each step),
group records (what each rank trained on, in steps that survived), and the order of prompts.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hora_rl.common.config import AllocationConfig, Config, RolloutConfig
from hora_rl.common.data.prompt_order import Mixture
from hora_rl.common.data.resting import Counts, Order
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import Redis
from hora_rl.common.live.state import SharedState, read_state
from hora_rl.common.records import GroupRecord, ShardReport
from hora_rl.common.types import group_id
from hora_rl.evaluation.audit_divisions import divisions

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


def audit(config: Config, facts: RunRecords) -> list[str]:
    """Violations, as sentences that name the group, step or batch; empty if there are none.

    An unfinished run is checked as far as it got.
    """
    return [
        *_steps(config.rollout.prompts_per_batch, facts),
        *_once(facts),
        *_none_missing(config.learner.steps, facts),
        *_batches(facts),
        *_order(config, facts),
        *_budgets(config.learner.steps, config.rollout, config.allocation, facts),
        *divisions(config.allocation, config.rollout, facts.reports),
        *_sizes(facts),
        *_staleness(config.rollout.max_staleness, facts),
    ]


def gather(client: Redis, run: str, read: Callable[[], Sequence[Mapping[str, Any]]]) -> RunRecords:
    """The records of `run` from Redis and those of groups.jsonl, which `read` returns.

    `client` blocks and returns bytes. A live run writes ledger, then records, then checkpoint. Reading in
    reverse order finds all data that earlier reads refer to. Raises RunError for a record without a key.
    """
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


def _finished(steps: int, facts: RunRecords) -> bool:
    return facts.durable >= steps or {r["step"] for r in facts.records} >= set(range(steps))


def _steps(gamma: int, facts: RunRecords) -> list[str]:
    """Planned steps have no gaps and Γ groups each; trained steps equal planned steps."""
    planned, trained = set(facts.ledger), {r["step"] for r in facts.records}
    wrong = []
    for step in sorted(set(range(max(planned | trained, default=-1) + 1)) - planned):
        wrong.append(f"step {step} is not in the ledger")
    for step in sorted(set(range(facts.durable)) - trained):
        wrong.append(f"step {step} is in a checkpoint and not in the records")
    for step, rows in sorted(facts.ledger.items()):
        if len(rows) != gamma:
            wrong.append(f"step {step} has {len(rows)} groups in the ledger, not Γ = {gamma}")
    by_step: dict[int, Counter[str]] = defaultdict(Counter)
    for record in facts.records:
        by_step[record["step"]][record["group_id"]] += 1
    for step in sorted(trained & planned):
        if by_step[step] != Counter(group for group, _ in facts.ledger[step]):
            wrong.append(f"step {step} was not trained on the groups that the ledger gives it")
    for step in range(max(trained, default=-1) + 1):
        if step in planned and step not in trained:
            wrong.append(f"step {step} was planned and passed over")
    return wrong


def _once(facts: RunRecords) -> list[str]:
    steps: dict[str, list[int]] = defaultdict(list)
    for step, rows in sorted(facts.ledger.items()):
        for group, _ in rows:
            steps[group].append(step)
    wrong = [f"group {g} is in the steps {s}: once is right" for g, s in steps.items() if len(s) > 1]
    reported = Counter(group for report in facts.reports for group in report["groups"])
    return wrong + [f"group {g} was generated by {n} shards" for g, n in reported.items() if n > 1]


def _none_missing(steps: int, facts: RunRecords) -> list[str]:
    planned = {group for rows in facts.ledger.values() for group, _ in rows}
    reported = {group for report in facts.reports for group in report["groups"]}
    wrong = [
        f"group {group} was generated and is in no step and not in the queue"
        for group in sorted(reported - planned - facts.waiting)
    ]
    if _finished(steps, facts):
        unused = sorted(reported - planned)
        wrong += [f"group {g} was generated and not trained in a finished run" for g in unused]
        wrong += [f"group {g} was trained and no shard generated it" for g in sorted(planned - reported)]
    return wrong


def _claims(facts: RunRecords) -> dict[str, set[tuple[str, int]]]:
    """(group, batch) pairs of each record."""
    return {
        "its shard's report": {(g, r["batch"]) for r in facts.reports for g in r["groups"]},
        "the ledger": {row for rows in facts.ledger.values() for row in rows},
        "the records": {(r["group_id"], r["batch"]) for r in facts.records},
    }


def _batches(facts: RunRecords) -> list[str]:
    """A group has the same batch in all records."""
    batches_of: dict[str, dict[int, str]] = defaultdict(dict)
    for where, claims in _claims(facts).items():
        for group, batch in claims:
            batches_of[group].setdefault(batch, f"batch {batch} in {where}")
    return [
        f"group {group} is of {', '.join(batches[batch] for batch in sorted(batches))}"
        for group, batches in sorted(batches_of.items())
        if len(batches) > 1
    ]


def _order(config: Config, facts: RunRecords) -> list[str]:
    """A batch holds the prompts given by the order of the data. Shards are complete and share no group, so
    none was skipped."""
    if facts.prompts is None:
        return []
    n = facts.prompts
    order = Order.of(
        config.data, config.rollout, config.run.seed, Mixture(facts.rows or (n,), config.weights_of_sources)
    )
    claims = {claim: where for where, claims in _claims(facts).items() for claim in claims}
    batches = sorted({batch for _, batch in claims})
    wrong = []
    if order.waits:
        cycles = _complete_cycles(config.rollout.shards, facts)
        for cycle in cycles:
            order.observe(Counts.of(cycle))
        known = len(cycles) + config.rollout.max_staleness + 1
        wrong = [
            f"batch {batch} was begun without all reports of batch {len(cycles)}, on which its prompts depend"
            for batch in batches
            if batch >= known
        ]
        batches = [batch for batch in batches if batch < known]
    expected = {batch: {group_id(*pair) for pair in order.rows(batch)} for batch in batches}
    return wrong + [
        f"group {group} is of batch {batch} in {where}, but not in the order of the run's {n} prompts"
        for (group, batch), where in sorted(claims.items())
        if batch in expected and group not in expected[batch]
    ]


def _complete_cycles(shards: int, facts: RunRecords) -> list[list[ShardReport]]:
    """The shard reports of the batches before the first that lacks one."""
    of = {(r["batch"], r["shard"]): r for r in facts.reports}
    cycles = []
    for batch in range(len(of)):
        cycle = [of[at] for shard in range(shards) if (at := (batch, shard)) in of]
        if len(cycle) < shards:
            break
        cycles.append(cycle)
    return cycles


def _budgets(
    steps: int, rollout: RolloutConfig, allocation: AllocationConfig, facts: RunRecords
) -> list[str]:
    """Every shard spent (Γ/shards)·G rollouts, so every complete batch Γ·G, under every rule.

    Budgets in tokens are checked by `divisions`.
    """
    wrong = []
    batches: Counter[int] = Counter()
    for report in facts.reports:
        name, n = f"shard {report['batch']}:{report['shard']}", len(report["groups"])
        spent = n * report["trials"] + sum(report["extra"])
        batches[report["batch"]] += 1
        if n != rollout.prompts_per_shard or len(report["extra"]) != n:
            wrong.append(f"{name} has {n} groups, not Γ/shards = {rollout.prompts_per_shard}")
        in_rollouts = allocation.under(report["rule"]).budget == "rollouts"
        if in_rollouts and spent != rollout.prompts_per_shard * rollout.group_size:
            product = f"{rollout.prompts_per_shard}·{rollout.group_size}"
            wrong.append(f"{name} spent {spent} rollouts, not Γ/shards·G = {product}")
    if _finished(steps, facts):
        wrong += [
            f"batch {batch} has {batches[batch]} complete shards, not {rollout.shards}"
            for batch in range(steps)
            if batches[batch] != rollout.shards
        ]
    return wrong


def _sizes(facts: RunRecords) -> list[str]:
    """Every group was trained at its planned size, G_i = G0 + Δ_i, and with its rollouts of every round."""
    sizes, rounds = dict[str, int](), dict[str, list[int]]()
    for report in facts.reports:
        for i, (group, extra) in enumerate(zip(report["groups"], report["extra"], strict=False)):
            sizes[group] = report["trials"] + extra
            if "rounds" in report:
                rounds[group] = [r["extra"][i] for r in report["rounds"]]
    wrong = []
    for r in facts.records:
        group = r["group_id"]
        if sizes.get(group, r["size"]) != r["size"]:
            wrong.append(
                f"group {group} was trained with {r['size']} rollouts, its plan gave it {sizes[group]}"
            )
        if "rounds" in r and group in rounds and _without_end(r["rounds"]) != _without_end(rounds[group]):
            wrong.append(
                f"group {group} was trained with {r['rounds']} rollouts in the rounds of Phase B, its plans "
                f"gave it {rounds[group]}"
            )
    return wrong


def _without_end(sizes: Sequence[int]) -> list[int]:
    """Drop empty rounds at the end."""
    return list(sizes[: max((i for i, n in enumerate(sizes, 1) if n), default=0)])


def _staleness(bound: int, facts: RunRecords) -> list[str]:
    """Step v has batches >= v - s and token versions <= v; batch b was sampled from versions >= b - s."""
    wrong = []
    for step, rows in sorted(facts.ledger.items()):
        wrong += [
            f"group {group} of batch {batch} is in step {step}: lag {step - batch} > max_staleness = {bound}"
            for group, batch in rows
            if step - batch > bound
        ]
    for record in facts.records:
        oldest, batch = record["version_min"], record["batch"]
        if record["version_max"] > record["step"]:
            wrong.append(
                f"group {record['group_id']} of step {record['step']} holds tokens of version "
                f"{record['version_max']}, which that step had yet to make"
            )
        if oldest < batch - bound:
            wrong.append(
                f"group {record['group_id']} of batch {batch} holds tokens of version {oldest} < batch - "
                f"max_staleness = {batch - bound}"
            )
    return wrong
