"""Where the coordinator calls the allocator: Phase B's budget of one shard, divided in rounds by what was
found so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actors.coordinator.cycles import BatchAllocation
from actors.coordinator.shard import Allocation, Draw, Found, Round
from allocator import Session, allocate
from allocator.lengths import ask_tokens, expected_lengths
from allocator.posterior import Int
from common.config import Config

Float = NDArray[np.float64]
# Successes (n,) and trials of Phase A and of each round since.
Told = Sequence[tuple[Sequence[int], int | Sequence[int]]]


class Terms(TypedDict):
    """What stays the same from round to round, as the allocator takes it."""

    rule: str
    prior: tuple[ArrayLike, ArrayLike]
    stop: str
    max_group_size: int | None


def rounds_of(config: Config, rule: str) -> int:
    """Rounds of a shard that is allocated by `rule`: one where no count decides anything."""
    return 1 if rule == "uniform" else config.allocation.rounds


def divide_round(
    config: Config,
    batch: BatchAllocation,
    prompts: Sequence[int],
    earlier: Sequence[Round],
    found: Found,
) -> Allocation:
    """The next round of the shard of `prompts` (n,) of this batch, after the `earlier` ones and what was
    found since."""
    prior = batch.priors_of(prompts)
    terms: Terms = {
        "rule": batch.rule,
        "prior": _shared(*prior),
        "stop": "none" if batch.rule == "uniform" else config.allocation.stop,
        "max_group_size": config.allocation.max_group_size,
    }
    trials: list[int | Sequence[int]] = [config.rollout.pre_rollouts, *(r.extra for r in earlier)]
    told: Told = list(zip([*(r.successes for r in earlier), found.successes], trials, strict=True))
    if config.allocation.budget == "tokens" and batch.rule != "uniform":
        extra = _by_tokens(config, batch, told, [*(r.tokens for r in earlier), found.tokens], terms)
    else:
        extra = _by_rollouts(config, batch, told, terms)
    return Allocation(
        extra=extra,
        rule=batch.rule,
        priors=tuple((float(a), float(b)) for a, b in zip(*prior, strict=True)),
        sizes_as_if=sizes_as_if(config, batch, prompts, found.successes) if not earlier else None,
    )


def _by_rollouts(config: Config, batch: BatchAllocation, told: Told, terms: Terms) -> Int:
    n, rollout = len(told[0][0]), config.rollout
    budget = n * (rollout.group_size - rollout.pre_rollouts)
    least = config.least_extra(batch.rule)
    session = Session(n, budget, rounds=rounds_of(config, batch.rule), least_extra=least, **terms)
    for successes, trials in told:
        session.tell(successes, trials)
    return session.ask()


def _by_tokens(
    config: Config,
    batch: BatchAllocation,
    told: Told,
    spent: Sequence[Sequence[int]],
    terms: Terms,
) -> Int:
    """The shard has n·G times the mean length to spend; before the first cycle, that of its own Phase A."""
    trials = config.rollout.pre_rollouts
    lengths = batch.lengths or expected_lengths(told[0][0], spent[0], trials)
    budget = len(told[0][0]) * config.rollout.group_size * lengths.mean
    left = budget - sum(map(sum, spent))
    return ask_tokens(told, left / (config.allocation.rounds - len(told) + 1), lengths, **terms)


def sizes_as_if(
    config: Config, batch: BatchAllocation, prompts: Sequence[int], successes: Sequence[int]
) -> tuple[int, ...] | None:
    """G_i (n,) that rule `group_weight.as_if` would have given a shard with these successes of Phase A; None
    where none is asked."""
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
    """All drawings of a shard of this batch where its rule needs no counts (`uniform`); none where Phase A
    decides."""
    if batch.rule != "uniform":
        return []
    rollout = config.rollout
    places = range(rollout.prompts_per_shard)
    extra = rollout.group_size - rollout.pre_rollouts
    return [
        *(Draw(place, 0, 0, rollout.pre_rollouts) for place in places),
        *(Draw(place, 1, 0, extra) for place in places),
    ]
