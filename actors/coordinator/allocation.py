"""Allocates the Phase B budget of one shard, round by round, from the outcomes so far."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.actors.coordinator.cycles import BatchAllocation
from hora_rl.actors.coordinator.shard import Allocation, Draw, Round
from hora_rl.allocator import Session, allocate
from hora_rl.common.config import AllocationConfig, RolloutConfig
from hora_rl.common.config.allocation import needs_counts

Float = NDArray[np.float64]


def allocate_round(
    rollout: RolloutConfig,
    settings: AllocationConfig,
    batch: BatchAllocation,
    prompts: Sequence[int],
    earlier: Sequence[Round],
    successes: Sequence[int],
) -> Allocation:
    """Allocate the next round of a shard with `prompts` (n,). `successes` (n,) are those since the `earlier`
    rounds."""
    prior, allocation = batch.priors_of(prompts), settings.under(batch.rule)
    session = Session(
        len(prompts),
        len(prompts) * (rollout.group_size - rollout.pre_rollouts),
        rule=batch.rule,
        prior=_shared(*prior),
        rounds=allocation.rounds,
        stop=allocation.stop,
        max_group_size=allocation.max_group_size,
    )
    trials: list[int | Sequence[int]] = [rollout.pre_rollouts, *(r.extra for r in earlier)]
    for hits, n in zip([*(r.successes for r in earlier), successes], trials, strict=True):
        session.tell(hits, n)
    return Allocation(
        extra=session.ask(),
        rule=batch.rule,
        priors=tuple((float(a), float(b)) for a, b in zip(*prior, strict=True)),
        sizes_as_if=None
        if earlier
        else sizes_as_if(rollout, allocation.max_group_size, batch, prompts, successes),
    )


def sizes_as_if(
    rollout: RolloutConfig,
    cap: int | None,
    batch: BatchAllocation,
    prompts: Sequence[int],
    successes: Sequence[int],
) -> tuple[int, ...] | None:
    """G_i (n,), at most `cap`, under rule `group_weight.as_if`, given the successes (n,) of Phase A. None
    without such a rule."""
    if batch.as_if is None:
        return None
    trials = rollout.pre_rollouts
    extra = allocate(
        successes,
        trials,
        len(prompts) * (rollout.group_size - trials),
        prior=_shared(*batch.priors_of(prompts)),
        rule=batch.as_if,
        max_group_size=cap,
    )
    return tuple((trials + extra).tolist())


def _shared(alpha: Float, beta: Float) -> tuple[ArrayLike, ArrayLike]:
    """One pair if all prompts have the same prior: the allocator has a cached table for that case."""
    same = alpha.min() == alpha.max() and beta.min() == beta.max()
    return (float(alpha[0]), float(beta[0])) if same else (alpha, beta)


def fixed_draws(rollout: RolloutConfig, batch: BatchAllocation) -> list[Draw]:
    """All draws of a shard if its rule needs no counts (`uniform`); otherwise empty."""
    if needs_counts(batch.rule):
        return []
    indices = range(rollout.prompts_per_shard)
    extra = rollout.group_size - rollout.pre_rollouts
    return [
        *(Draw(i, 0, 0, rollout.pre_rollouts) for i in indices),
        *(Draw(i, 1, 0, extra) for i in indices),
    ]
