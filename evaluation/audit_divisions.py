"""Proof that every round of Phase B spent its share, and that its Δ follows from the counts that the run recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from allocator import Session
from common.config import Config


def divisions(config: Config, reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong with the divisions of these shards, in sentences. Reports of older runs, without rounds, are passed over."""
    return [
        f"shard {report['batch']}:{report['shard']} {wrong}"
        for report in reports
        if "rounds" in report
        for wrong in _of_shard(config, report)
    ]


def _of_shard(config: Config, report: Mapping[str, Any]) -> Iterator[str]:
    rounds, sums = (
        report["rounds"],
        [sum(given) for given in zip(*(r["extra"] for r in report["rounds"]), strict=False)],
    )
    if report["successes"] != rounds[0]["successes"] or report["extra"] != sums:
        yield f"does not add up: its rounds give {sums}, its sum is {report['extra']}"
        return
    due = 1 if report["rule"] == "uniform" else config.allocation.rounds
    if len(rounds) != due:
        yield f"was divided in {len(rounds)} rounds, not {due}"
        return
    try:
        yield from _repeated(config, report, due)
    except ValueError as error:
        yield f"cannot have been divided as it says: {error}"


def _repeated(config: Config, report: Mapping[str, Any], due: int) -> Iterator[str]:
    """Divide again by the recorded counts alone; stops at the first round that differs."""
    session = _session(config, report, due)
    trials: int | list[int] = report["trials"]
    for number, recorded in enumerate(report["rounds"], 1):
        session.tell(recorded["successes"], trials)
        expected = session.ask().tolist()
        if recorded["extra"] != expected:
            spent = f"{sum(recorded['extra'])} rollouts, {sum(expected)} are its share"
            yield f"divided round {number} of {due} as {recorded['extra']} ({spent}), its counts give {expected}"
            return
        trials = recorded["extra"]


def _session(config: Config, report: Mapping[str, Any], due: int) -> Session:
    alpha, beta = zip(*report["priors"], strict=True)
    shared = len(set(alpha)) == len(set(beta)) == 1
    n, rollout = len(report["groups"]), config.rollout
    return Session(
        prompts=n,
        budget=n * (rollout.group_size - rollout.pre_rollouts),
        rule=report["rule"],
        prior=(alpha[0], beta[0]) if shared else (alpha, beta),
        rounds=due,
        stop="none" if report["rule"] == "uniform" else config.allocation.stop,
        max_group_size=config.allocation.max_group_size,
    )
