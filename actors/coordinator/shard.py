"""Algorithm 1 of the paper for one shard of prompts. Knows neither Ray, vLLM nor Redis.

    phase_a: G0 samples of each prompt ─► c_i ─► divide: Σ Δ_i = budget ─► Plan
    phase_b: Plan ─► Δ_i more samples of each prompt ─► groups, G_i = G0 + Δ_i

The barrier before the division is the shard's only one: in Phase B a group leaves as soon as its own samples are there. A plan
is stored before Phase B begins, and a restarted coordinator continues from it, so a batch always holds exactly Γ·G rollouts.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from actors.coordinator.concurrency import all_of, cancel
from common.types import Group, Phase, Plan, Prompt, Rollout, group_id


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Δ (n,), and by which rule and prior (α0, β0) of each prompt it was chosen."""

    extra: NDArray[np.int64]
    rule: str
    priors: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Shard `index` of batch `batch`: n prompts, each with the epoch it is met in. `order` is the shard's place in the run:
    requests of the oldest shard are served first, so that shards in flight end one after the other and not all at once."""

    run: str
    batch: int
    index: int
    epochs: tuple[int, ...]
    prompts: tuple[Prompt, ...]
    pre_rollouts: int
    seed: int
    tokenizer: str
    samples_per_request: int = 16
    order: int = 0

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its groups."""
        return tuple(group_id(epoch, p.index) for epoch, p in zip(self.epochs, self.prompts, strict=True))


@dataclass(frozen=True, slots=True)
class Draw:
    """`n` rollouts of the prompt at `place` of the shard, the first of them number `first` of its phase."""

    place: int
    phase: Phase
    first: int
    n: int


Sample = Callable[[Draw], Coroutine[None, None, list[Rollout]]]
Divide = Callable[[NDArray[np.int64]], Allocation]  # successes c (n,) -> Δ that sums to the shard's budget


async def phase_a(shard: Shard, sample: Sample, divide: Divide) -> Plan:
    """G0 pre-rollouts for every prompt, then one allocation for all of them (lines 1-11)."""
    pre_rollouts = await all_of(
        sample(Draw(place, "A", 0, shard.pre_rollouts)) for place in range(len(shard.prompts))
    )
    allocation = divide(np.array([_successes(rollouts) for rollouts in pre_rollouts], dtype=np.int64))
    return Plan(
        rule=allocation.rule,
        priors=allocation.priors,
        successes=tuple(_successes(rollouts) for rollouts in pre_rollouts),
        extra=tuple(allocation.extra.tolist()),
        rewards=_means([r.rewards for rollouts in pre_rollouts for r in rollouts]),
        groups=_begun_groups(shard, allocation, pre_rollouts),
    )


async def phase_b(shard: Shard, plan: Plan, sample: Sample) -> AsyncGenerator[Group, None]:
    """Yield the plan's groups in order of completion, each with its Δ_i additional rollouts (lines 13-16).

    An error of any drawing ends the shard and cancels its other drawings.
    """
    place = {group: i for i, group in enumerate(shard.ids)}

    async def complete(group: Group) -> Group:
        at = place[group.id]
        more = await sample(Draw(at, "B", 0, plan.extra[at])) if plan.extra[at] else []
        return replace(group, rollouts=group.rollouts + tuple(more))

    tasks = [asyncio.create_task(complete(group)) for group in plan.groups]
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        await cancel(tasks)


def _successes(rollouts: Sequence[Rollout]) -> int:
    return sum(r.success for r in rollouts)


def _means(rewards: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([r[name] for r in rewards])) for name in rewards[0]}


def _begun_groups(
    shard: Shard, allocation: Allocation, pre_rollouts: Sequence[Sequence[Rollout]]
) -> tuple[Group, ...]:
    sampling = uuid.uuid4().hex
    return tuple(
        Group(
            run=shard.run,
            epoch=epoch,
            prompt_index=prompt.index,
            batch=shard.batch,
            shard=shard.index,
            rule=allocation.rule,
            prior=prior,
            tokenizer=shard.tokenizer,
            pre_rollouts=shard.pre_rollouts,
            prompt_tokens=prompt.tokens,
            rollouts=tuple(rollouts),
            sampling=sampling,
        )
        for epoch, prompt, rollouts, prior in zip(
            shard.epochs, shard.prompts, pre_rollouts, allocation.priors, strict=True
        )
    )
