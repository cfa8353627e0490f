"""Whether an allocation's largest group fits into a message, and whether its rounds keep the engines full."""

from __future__ import annotations

from collections.abc import Iterator

from hora_rl.common.config import Allocation, Rollout
from hora_rl.deploy.checks.findings import Finding, Target, ok, should

TOKEN_BYTES = 8
"""A token and its log-prob."""
ENOUGH = 2
"""Rollouts requested at once per place in the engines, below which `rounds` adds a remark."""


def group_size(target: Target) -> Iterator[Finding]:
    """Warn if one prompt can get a group larger than `queue.max_group_bytes`. Such a group is refused each
    time it is sampled."""
    if not target.trains:
        return
    config, limit = target.config, target.config.queue.max_group_bytes
    rollouts = largest_group(config.rollout, config.allocation)
    each = TOKEN_BYTES * (config.longest - config.rollout.max_prompt_tokens)
    says = f"{rollouts:,} rollouts of one prompt, at most {rollouts * each / 2**20:,.0f} MiB"
    yield should(
        rollouts * each <= limit,
        "largest group",
        f"{says}; a message may have {limit / 2**20:,.0f} (queue.max_group_bytes)",
        "a larger one is refused whenever it comes: set allocation.max_group_size to at most "
        f"{limit // each:,}, or use more rollout.shards",
    )


def largest_group(rollout: Rollout, allocation: Allocation) -> int:
    """The most rollouts of one prompt: G0 and all of its shard's Phase B, up to `max_group_size`."""
    if not allocation.needs_counts:
        return rollout.group_size
    whole = rollout.pre_rollouts + rollout.shard_budget
    return min(whole, allocation.max_group_size or whole)


def rounds(target: Target) -> Iterator[Finding]:
    """Compare the rollouts that all shards in flight request at once with the engines' places. Places are
    idle at the end of a round, so more requests are needed (docs/performance.md, Two phases)."""
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
