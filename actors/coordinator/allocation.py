"""Where the coordinator calls the allocator: Phase B's budget of one shard, divided in rounds by what was found so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actors.coordinator.cycles import BatchAllocation
from actors.coordinator.shard import Allocation, Draw, Round
from allocator import Session, allocate
from common.config import Config

Float = NDArray[np.float64]


def rounds_of(config: Config, rule: str) -> int:
    """Rounds of a shard that is allocated by `rule`: one where no count decides anything."""
    return 1 if rule == "uniform" else config.allocation.rounds


def divide_round(
    config: Config,
    batch: BatchAllocation,
    prompts: Sequence[int],
    earlier: Sequence[Round],
    successes: Sequence[int],
) -> Allocation:
    """The next round of the shard of `prompts` (n,) of this batch, after the `earlier` ones and `successes` (n,) since."""
    prior = batch.priors_of(prompts)
    rollout, settings = config.rollout, config.allocation
    session = Session(
        prompts=len(prompts),
        budget=len(prompts) * (rollout.group_size - rollout.pre_rollouts),
        rule=batch.rule,
        prior=_shared(*prior),
        rounds=rounds_of(config, batch.rule),
        stop=settings.stop if batch.rule != "uniform" else "none",
        max_group_size=settings.max_group_size,
    )
    trials: int | tuple[int, ...] = rollout.pre_rollouts
    for done in earlier:
        session.tell(done.successes, trials)
        trials = done.extra
    session.tell(successes, trials)
    return Allocation(
        extra=session.ask(),
        rule=batch.rule,
        priors=tuple((float(a), float(b)) for a, b in zip(*prior, strict=True)),
        sizes_as_if=sizes_as_if(config, batch, prompts, successes) if not earlier else None,
    )


def sizes_as_if(
    config: Config, batch: BatchAllocation, prompts: Sequence[int], successes: Sequence[int]
) -> tuple[int, ...] | None:
    """G_i (n,) that rule `group_weight.as_if` would have given a shard with these successes of Phase A; None where none is asked."""
    if batch.as_if is None:
        return None
    rollout = config.rollout
    extra = allocate(
        successes,
        rollout.pre_rollouts,
        len(prompts) * (rollout.group_size - rollout.pre_rollouts),
        prior=_shared(*batch.priors_of(prompts)),
        rule=batch.as_if,
        max_group_size=config.allocation.max_group_size,
    )
    return tuple((rollout.pre_rollouts + extra).tolist())


def _shared(alpha: Float, beta: Float) -> tuple[ArrayLike, ArrayLike]:
    """One pair where all prompts have the same prior: such a problem is solved by a table that is kept."""
    same = alpha.min() == alpha.max() and beta.min() == beta.max()
    return (float(alpha[0]), float(beta[0])) if same else (alpha, beta)


def decided(config: Config, batch: BatchAllocation) -> list[Draw]:
    """All drawings of a shard of this batch where its rule needs no counts (`uniform`); none where Phase A decides."""
    if batch.rule != "uniform":
        return []
    rollout = config.rollout
    places = range(rollout.prompts_per_shard)
    extra = rollout.group_size - rollout.pre_rollouts
    return [
        *(Draw(place, 0, 0, rollout.pre_rollouts) for place in places),
        *(Draw(place, 1, 0, extra) for place in places),
    ]
