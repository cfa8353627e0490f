"""Audit of divisions: every round spent its share, and Δ follows from the recorded counts."""

from collections.abc import Iterator, Sequence

from hora_rl.allocator import Session
from hora_rl.allocator.posterior import Int
from hora_rl.common.config import AllocationConfig, RolloutConfig
from hora_rl.common.records import ShardReport


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
