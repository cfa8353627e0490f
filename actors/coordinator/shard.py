"""Algorithm 1 of the paper for one shard of prompts. Knows neither Ray, vLLM nor Redis.

    phase_a: G0 samples of each prompt ─► c_i ─► divide: Σ Δ_i = budget ─► Plan
    phase_b: Plan ─► Δ_i more samples of each prompt ─► groups, G_i = G0 + Δ_i

With more than one round, Phase B's budget is divided piece by piece, and what a round finds decides the next
division:

    phase_a ─► plan of round 1 ─► next_round ─► … ─► plan of round R ─► phase_b

Each division waits for the shard's last rollout before it; after the last one a group leaves as soon as its
own samples are there. A plan is stored before its samples are asked for, and a restarted coordinator
continues from the newest one, so a batch always holds exactly Γ·G rollouts.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hora_rl.actors.concurrency import all_of, cancel
from hora_rl.common.types import Group, Phase, Prompt, Rollout, group_id

Rank = Callable[[Prompt, Group], Awaitable[Group]]
"""Returns the complete group of a prompt with group rewards added. They are sent with the Phase B rollouts
(`common/wire.py`), because pre-rollouts are stored before. So success cannot depend on them."""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Shard `index` of batch `batch`: n prompts, each with its epoch. Engines serve waiting requests of the
    lowest `priority` first, so shards in flight finish one after the other, not all at once."""

    run: str
    batch: int
    index: int
    epochs: tuple[int, ...]
    prompts: tuple[Prompt, ...]
    pre_rollouts: int
    seed: int
    tokenizer: str
    samples_per_request: int = 16
    priority: int = 0

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(group_id(epoch, p.index) for epoch, p in zip(self.epochs, self.prompts, strict=True))


@dataclass(frozen=True, slots=True)
class Round:
    """One division of a shard's budget over its n prompts. `successes` (n,) are those since the division
    before (in the first round: of Phase A); `extra` (n,) is this round's Δ."""

    successes: tuple[int, ...]
    extra: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """One round's Δ (n,), and the rule and the priors (α0, β0) that gave it. `sizes_as_if` (n,) are the group
    sizes that another rule would have given, where the objective needs them."""

    extra: NDArray[np.int64]
    rule: str
    priors: tuple[tuple[float, float], ...]
    sizes_as_if: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A shard of n prompts before its next rollouts: the rounds divided so far, their rule and priors, and
    Phase A's mean rewards. `groups` are the incomplete ones, with the rollouts before the last round."""

    rule: str
    priors: tuple[tuple[float, float], ...]
    rounds: tuple[Round, ...]
    rewards: dict[str, float]
    groups: tuple[Group, ...]

    @property
    def successes(self) -> tuple[int, ...]:
        """c (n,), of Phase A."""
        return self.rounds[0].successes

    @property
    def extra(self) -> tuple[int, ...]:
        """Δ (n,) of all rounds so far."""
        return tuple(map(sum, zip(*(r.extra for r in self.rounds), strict=True)))

    def draw(self, index: int) -> Draw:
        before = sum(r.extra[index] for r in self.rounds[:-1])
        return Draw(index, len(self.rounds), before, self.rounds[-1].extra[index])


@dataclass(frozen=True, slots=True)
class Draw:
    """`n` rollouts of the prompt at `index` of the shard in round `round` of Phase B, or in Phase A (round
    0); the first of them is number `first` of its phase."""

    index: int
    round: int
    first: int
    n: int

    @property
    def phase(self) -> Phase:
        return "B" if self.round else "A"


Sample = Callable[[Draw], Coroutine[None, None, list[Rollout]]]
AllocateRound = Callable[[Sequence[Round], Sequence[int]], Allocation]
"""Earlier rounds and the successes (n,) since -> the next one."""


async def unranked(prompt: Prompt, group: Group) -> Group:
    """The group unchanged: no group rewards are configured."""
    return group


async def phase_a(shard: Shard, sample: Sample, allocate_next: AllocateRound) -> Plan:
    """G0 pre-rollouts for every prompt, then the first division (lines 1-11)."""
    drawn = await all_of(sample(Draw(index, 0, 0, shard.pre_rollouts)) for index in range(len(shard.prompts)))
    successes = _successes(drawn)
    allocation = allocate_next((), successes)
    return Plan(
        rule=allocation.rule,
        priors=allocation.priors,
        rounds=(Round(successes, tuple(allocation.extra.tolist())),),
        rewards=_means([r.rewards for rollouts in drawn for r in rollouts]),
        groups=_groups(shard, allocation, drawn),
    )


async def next_round(shard: Shard, plan: Plan, sample: Sample, allocate_next: AllocateRound) -> Plan:
    """Draw the plan's last round, then divide the next: the plan with one more round. A prompt whose group
    was lost is drawn too: the budget is divided by the counts of all."""
    drawn = await all_of(_sample_some(sample, plan.draw(index)) for index in range(len(shard.prompts)))
    successes = _successes(drawn)
    allocation = allocate_next(plan.rounds, successes)
    more = dict(zip(shard.ids, drawn, strict=True))
    return replace(
        plan,
        rounds=(*plan.rounds, Round(successes, tuple(allocation.extra.tolist()))),
        groups=tuple(replace(g, rollouts=(*g.rollouts, *more[g.id])) for g in plan.groups),
    )


async def phase_b(
    shard: Shard, plan: Plan, sample: Sample, rank: Rank = unranked
) -> AsyncGenerator[Group, None]:
    """Draw the plan's last round and yield its groups, ranked, in order of completion (lines 13-16). An error
    of any drawing ends the shard and cancels its other drawings."""
    index_of = {group: i for i, group in enumerate(shard.ids)}

    async def complete(group: Group) -> Group:
        index = index_of[group.id]
        more = await _sample_some(sample, plan.draw(index))
        return await rank(shard.prompts[index], replace(group, rollouts=(*group.rollouts, *more)))

    tasks = [asyncio.create_task(complete(group)) for group in plan.groups]
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        await cancel(tasks)


async def _sample_some(sample: Sample, draw: Draw) -> list[Rollout]:
    return await sample(draw) if draw.n else []


def _successes(drawn: Sequence[Sequence[Rollout]]) -> tuple[int, ...]:
    return tuple(sum(r.success for r in rollouts) for rollouts in drawn)


def _means(rewards: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for r in rewards for name in r)  # sources may have different ones
    return {name: float(np.mean([r[name] for r in rewards if name in r])) for name in names}


def _groups(
    shard: Shard, allocation: Allocation, pre_rollouts: Sequence[Sequence[Rollout]]
) -> tuple[Group, ...]:
    sampling = uuid.uuid4().hex
    sizes_as_if = allocation.sizes_as_if or (0,) * len(shard.prompts)
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
            size_as_if=size_as_if,
            source=prompt.source,
        )
        for epoch, prompt, rollouts, prior, size_as_if in zip(
            shard.epochs, shard.prompts, pre_rollouts, allocation.priors, sizes_as_if, strict=True
        )
    )
