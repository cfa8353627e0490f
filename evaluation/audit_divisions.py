"""Audit of divisions: every round spent its share, and Δ follows from the recorded counts."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from hora_rl.allocator import Session
from hora_rl.allocator.lengths import WINDOW, Lengths, RunningLengths, ask_tokens, expected_lengths
from hora_rl.allocator.posterior import Int
from hora_rl.common.config import AllocationConfig, RolloutConfig
from hora_rl.common.records import RoundReport, ShardReport


def divisions(
    allocation: AllocationConfig,
    rollout: RolloutConfig,
    reports: Sequence[ShardReport],
) -> list[str]:
    """Violations by these shards, as sentences. Reports of older runs, without rounds, are skipped."""
    known = [report for report in reports if "rounds" in report]
    return [
        f"shard {report['batch']}:{report['shard']} {wrong}"
        for report in known
        for wrong in _of_shard(allocation, rollout, report, known)
    ]


def _of_shard(
    allocation: AllocationConfig,
    rollout: RolloutConfig,
    report: ShardReport,
    reports: Sequence[ShardReport],
) -> Iterator[str]:
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
    in_tokens = under.budget == "tokens"
    again = (
        _again_in_tokens(rollout, allocation, report, reports)
        if in_tokens
        else _again(rollout, allocation, report)
    )
    try:
        for number, (recorded, extra) in enumerate(zip(rounds, again, strict=True), 1):
            expected = extra.tolist()
            if recorded["extra"] != expected:
                spent = f"{sum(recorded['extra'])} rollouts, {sum(expected)} are its share"
                yield f"divided round {number} as {recorded['extra']} ({spent}), its counts give {expected}"
                return
    except ValueError as error:
        yield f"cannot have been divided as it says: {error}"


def _terms(allocation: AllocationConfig, report: ShardReport) -> dict[str, Any]:
    alpha, beta = zip(*report["priors"], strict=True)
    shared = len(set(alpha)) == len(set(beta)) == 1
    return {
        "rule": report["rule"],
        "prior": (alpha[0], beta[0]) if shared else (alpha, beta),
        "stop": allocation.under(report["rule"]).stop,
        "max_group_size": allocation.max_group_size,
    }


def _again(rollout: RolloutConfig, allocation: AllocationConfig, report: ShardReport) -> Iterator[Int]:
    n, rounds = len(report["groups"]), report["rounds"]
    budget = n * (rollout.group_size - rollout.pre_rollouts)
    session = Session(n, budget, rounds=len(rounds), **_terms(allocation, report))
    trials: int | list[int] = report["trials"]
    for recorded in rounds:
        session.tell(recorded["successes"], trials)
        yield session.ask()
        trials = recorded["extra"]


def _again_in_tokens(
    rollout: RolloutConfig, allocation: AllocationConfig, report: ShardReport, reports: Sequence[ShardReport]
) -> Iterator[Int]:
    rounds = report["rounds"]
    trials: int | list[int] = report["trials"]
    first = rounds[0]
    lengths = _lengths_known(rollout, report["batch"], reports) or expected_lengths(
        first["successes"], first["tokens"], report["trials"]
    )
    left, outcomes = len(report["groups"]) * rollout.group_size * lengths.mean, []
    for number, recorded in enumerate(rounds):
        outcomes.append((recorded["successes"], trials))
        left -= sum(recorded["tokens"])
        yield ask_tokens(outcomes, left / (len(rounds) - number), lengths, **_terms(allocation, report))
        trials = recorded["extra"]


def _lengths_known(rollout: RolloutConfig, batch: int, reports: Sequence[ShardReport]) -> Lengths | None:
    """Lengths of the cycles that were known when `batch` was allocated, in batch order."""
    cycles: dict[int, list[RoundReport]] = defaultdict(list)
    for report in sorted(reports, key=lambda r: (r["batch"], r["shard"])):
        cycles[report["batch"]].append(report["rounds"][0])
    running, end = RunningLengths(rollout.pre_rollouts), batch - rollout.max_staleness
    for cycle in range(max(0, end - WINDOW), end):
        successes = [c for r in cycles[cycle] for c in r["successes"]]
        running.observe(successes, [t for r in cycles[cycle] for t in r["tokens"]])
    return running.now
