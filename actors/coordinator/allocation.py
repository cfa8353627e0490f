"""Allocates the Phase B budget of one shard, round by round, from the outcomes so far."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.actors.coordinator.cycles import BatchAllocation
from hora_rl.actors.coordinator.shard import Allocation, Draw, PhaseCounts, Round
from hora_rl.allocator import Session, allocate
from hora_rl.allocator.lengths import ask_tokens, expected_lengths
from hora_rl.allocator.posterior import Int
from hora_rl.common.config import AllocationConfig, RolloutConfig
from hora_rl.common.config.allocation import needs_counts

Float = NDArray[np.float64]
# Successes (n,) and trials of Phase A and of each round since then.
Outcomes = Sequence[tuple[Sequence[int], int | Sequence[int]]]


def allocate_round(
    rollout: RolloutConfig,
    settings: AllocationConfig,
    batch: BatchAllocation,
    prompts: Sequence[int],
    earlier: Sequence[Round],
    counts: PhaseCounts,
) -> Allocation:
    """Allocate the next round of a shard with `prompts` (n,). `counts` holds the results since the `earlier`
    rounds."""
    prior, allocation = batch.priors_of(prompts), settings.under(batch.rule)
    fixed: dict[str, Any] = {
        "rule": batch.rule,
        "prior": _shared(*prior),
        "stop": allocation.stop,
        "max_group_size": allocation.max_group_size,
    }
    trials: list[int | Sequence[int]] = [rollout.pre_rollouts, *(r.extra for r in earlier)]
    outcomes: Outcomes = list(zip([*(r.successes for r in earlier), counts.successes], trials, strict=True))
    if allocation.budget == "tokens":
        spent = [*(r.tokens for r in earlier), counts.tokens]
        extra = _by_tokens(rollout, allocation.rounds, batch, outcomes, spent, fixed)
    else:
        budget = len(prompts) * (rollout.group_size - rollout.pre_rollouts)
        session = Session(len(prompts), budget, rounds=allocation.rounds, **fixed)
        for successes, n in outcomes:
            session.tell(successes, n)
        extra = session.ask()
    return Allocation(
        extra=extra,
        rule=batch.rule,
        priors=tuple((float(a), float(b)) for a, b in zip(*prior, strict=True)),
        sizes_as_if=None
        if earlier
        else sizes_as_if(rollout, allocation.max_group_size, batch, prompts, counts.successes),
    )


def _by_tokens(
    rollout: RolloutConfig,
    rounds: int,
    batch: BatchAllocation,
    outcomes: Outcomes,
    spent: Sequence[Sequence[int]],
    fixed: dict[str, Any],
) -> Int:
    """Δ (n,) for a budget of n·G times the mean length in tokens. Before the first cycle, Phase A of this
    shard gives the mean."""
    trials = rollout.pre_rollouts
    lengths = batch.lengths or expected_lengths(outcomes[0][0], spent[0], trials)
    budget = len(outcomes[0][0]) * rollout.group_size * lengths.mean
    left = budget - sum(map(sum, spent))
    return ask_tokens(outcomes, left / (rounds - len(outcomes) + 1), lengths, **fixed)


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
