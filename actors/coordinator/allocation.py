"""Where the coordinator calls the allocator: Phase B's budget of one shard, divided in rounds by what was found so far."""

from __future__ import annotations

from collections.abc import Sequence

from actors.coordinator.cycles import BatchAllocation
from actors.coordinator.shard import Allocation, Draw, Round
from allocator import Session
from common.config import Config


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
    alpha, beta = batch.priors_of(prompts)
    # One prior for all is solved by a table that is kept.
    shared = alpha.min() == alpha.max() and beta.min() == beta.max()
    rollout, settings = config.rollout, config.allocation
    session = Session(
        prompts=len(prompts),
        budget=len(prompts) * (rollout.group_size - rollout.pre_rollouts),
        rule=batch.rule,
        prior=(float(alpha[0]), float(beta[0])) if shared else (alpha, beta),
        rounds=rounds_of(config, batch.rule),
        stop=settings.stop if batch.rule != "uniform" else "none",
        max_group_size=settings.max_group_size,
    )
    trials: int | tuple[int, ...] = rollout.pre_rollouts
    for done in earlier:
        session.tell(done.successes, trials)
        trials = done.extra
    session.tell(successes, trials)
    priors = tuple((float(a), float(b)) for a, b in zip(alpha, beta, strict=True))
    return Allocation(extra=session.ask(), rule=batch.rule, priors=priors)


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
