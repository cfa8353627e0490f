"""Whether rounds are large enough to keep the engines full."""

from __future__ import annotations

from collections.abc import Iterator

from hora_rl.deploy.checks.findings import Finding, Target, ok

ENOUGH = 2
"""Rollouts asked for at once for each place, below which the remark is made."""


def rounds(target: Target) -> Iterator[Finding]:
    """How many rollouts the rounds of all shards in flight ask for at once, against the engines' places.
    Places stay empty while a round ends, so it takes more (docs/performance.md, Two phases)."""
    config, rollout = target.config, target.config.rollout
    if not target.trains or config.allocation.under(config.allocation.rule).rounds == 1:
        return
    shards = min(
        rollout.shards_in_flight * config.coordinator.replicas, rollout.shards * (1 + rollout.max_staleness)
    )
    at_once = shards * (rollout.shard_budget // config.allocation.rounds)
    places = config.generator.replicas * config.generator.max_sequences
    says = (
        f"{config.allocation.rounds} rounds of Phase B; those of {shards} shards in flight ask for at most "
        f"{at_once:,} rollouts at once, and the engines have {places:,} places"
    )
    if at_once < ENOUGH * places:
        says += ": larger or more shards, or fewer rounds, would keep these full"
    yield ok("rounds", says)
