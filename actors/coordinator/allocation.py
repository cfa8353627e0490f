"""Where the coordinator calls the allocator: Phase B's budget of one shard, divided in rounds by what was found so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from numpy.typing import ArrayLike

from actors.coordinator.cycles import BatchAllocation
from actors.coordinator.shard import Allocation, Draw, Found, Round
from allocator import Session
from allocator.lengths import ask_tokens, expected_lengths
from allocator.posterior import Int
from common.config import Config

Told = Sequence[
    tuple[Sequence[int], int | Sequence[int]]
]  # successes (n,) and trials of Phase A and each round since


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
    """The next round of the shard of `prompts` (n,) of this batch, after the `earlier` ones and what was found since."""
    alpha, beta = batch.priors_of(prompts)
    # One prior for all is solved by a table that is kept.
    shared = alpha.min() == alpha.max() and beta.min() == beta.max()
    terms: Terms = {
        "rule": batch.rule,
        "prior": (float(alpha[0]), float(beta[0])) if shared else (alpha, beta),
        "stop": "none" if batch.rule == "uniform" else config.allocation.stop,
        "max_group_size": config.allocation.max_group_size,
    }
    trials: list[int | Sequence[int]] = [config.rollout.pre_rollouts, *(r.extra for r in earlier)]
    told: Told = list(zip([*(r.successes for r in earlier), found.successes], trials, strict=True))
    if config.allocation.budget == "tokens" and batch.rule != "uniform":
        extra = _by_tokens(config, batch, told, [*(r.tokens for r in earlier), found.tokens], terms)
    else:
        extra = _by_rollouts(config, batch, told, terms)
    priors = tuple((float(a), float(b)) for a, b in zip(alpha, beta, strict=True))
    return Allocation(extra=extra, rule=batch.rule, priors=priors)


def _by_rollouts(config: Config, batch: BatchAllocation, told: Told, terms: Terms) -> Int:
    n, rollout = len(told[0][0]), config.rollout
    budget = n * (rollout.group_size - rollout.pre_rollouts)
    session = Session(n, budget, rounds=rounds_of(config, batch.rule), **terms)
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
