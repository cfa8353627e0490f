"""Where the coordinator calls the allocator: the budget of one shard's Phase B, divided by what Phase A found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from actors.coordinator.cycles import BatchAllocation
from actors.coordinator.shard import Allocation, Draw
from allocator import allocate
from common.config import Config


def divide(
    config: Config, batch: BatchAllocation, prompts: Sequence[int], successes: NDArray[np.int64]
) -> Allocation:
    """Δ of the shard of `prompts` (n,) of this batch, with `successes` (n,) in their G0 pre-rollouts."""
    alpha, beta = batch.priors_of(prompts)
    # One prior for all is solved by a table that is kept.
    shared = alpha.min() == alpha.max() and beta.min() == beta.max()
    extra = allocate(
        successes,
        config.rollout.pre_rollouts,
        budget=len(prompts) * (config.rollout.group_size - config.rollout.pre_rollouts),
        prior=(float(alpha[0]), float(beta[0])) if shared else (alpha, beta),
        rule=batch.rule,
        max_group_size=config.allocation.max_group_size,
    )
    priors = tuple((float(a), float(b)) for a, b in zip(alpha, beta, strict=True))
    return Allocation(extra=extra, rule=batch.rule, priors=priors)


def decided(config: Config, batch: BatchAllocation) -> list[Draw]:
    """All drawings of a shard of this batch where its rule needs no counts (`uniform`); none where Phase A decides."""
    if batch.rule != "uniform":
        return []
    rollout = config.rollout
    places = range(rollout.prompts_per_shard)
    extra = rollout.group_size - rollout.pre_rollouts
    return [
        *(Draw(place, "A", 0, rollout.pre_rollouts) for place in places),
        *(Draw(place, "B", 0, extra) for place in places),
    ]
