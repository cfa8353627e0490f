"""Algorithm 1 of the paper for one shard of prompts. Knows neither Ray, vLLM nor Redis.

    prompts ─► Phase A: G0 samples each ─► c_i ─► allocate: Σ Δ_i = budget ─► Phase B: Δ_i more ─► groups, G_i = G0 + Δ_i

The barrier before allocation is the shard's only one: Phase B of a prompt is scored and leaves as a group as
soon as its own samples are there. What Phase A found and how the budget was divided is a `Plan`; a coordinator
that restarts goes on from the plan, so a batch always holds exactly Γ·G rollouts.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.types import Completion, Group, Phase, Plan, Prompt, Rollout, SamplingRequest, Scored, group_id

T = TypeVar("T")

Generate = Callable[[SamplingRequest], Awaitable[list[Completion]]]
Score = Callable[[Prompt, Sequence[Completion]], Awaitable[list[Scored]]]


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Δ (n,) and how it came about: the rule and each prompt's prior (α0, β0)."""

    extra: NDArray[np.int64]
    rule: str
    priors: tuple[tuple[float, float], ...]


# (prompt indices (n,), successes c (n,)) -> Allocation whose extra sums to the shard's budget
Allocate = Callable[[Sequence[int], NDArray[np.int64]], Awaitable[Allocation]]
Remember = Callable[[Plan], Awaitable[Plan]]


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Shard `index` of batch `batch`: n prompts, each with the epoch it is met in. `order` is the shard's place in the run:
    what an older shard still needs comes first, so that shards in flight end one after the other and not all at once."""

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


async def run_shard(
    shard: Shard,
    generate: Generate,
    score: Score,
    allocate: Allocate,
    plan: Plan | None = None,
    remember: Remember | None = None,
) -> AsyncIterator[Group]:
    """Yield the shard's groups in order of completion.

    `plan` continues a shard whose Phase A is done, with the groups that it still holds; `remember` stores a new plan before
    Phase B begins and returns the one that counts (another coordinator may have been first). An error of any request ends
    the shard and cancels its other requests: a lost rollout is the caller's to retry, never a wrong answer.
    """
    if plan is None:
        plan = await phase_a(shard, generate, score, allocate)
        if remember is not None:
            plan = await remember(plan)
    wanted = dict(zip(shard.ids, zip(shard.prompts, plan.extra, strict=True), strict=True))
    tasks = [
        asyncio.create_task(_phase_b(shard, group, *wanted[group.id], generate, score))
        for group in plan.groups
    ]
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        await _cancel(tasks)


async def phase_a(shard: Shard, generate: Generate, score: Score, allocate: Allocate) -> Plan:
    """G0 pre-rollouts for every prompt, then one allocation for all of them (lines 1-11)."""
    rollouts = await _all(
        _sample(shard, epoch, prompt, shard.pre_rollouts, "A", generate, score)
        for epoch, prompt in zip(shard.epochs, shard.prompts, strict=True)
    )
    successes = np.array([sum(r.success for r in rs) for rs in rollouts], dtype=np.int64)
    allocation = await allocate([p.index for p in shard.prompts], successes)
    sampling = uuid.uuid4().hex
    groups = tuple(
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
            rollouts=tuple(rs),
            sampling=sampling,
        )
        for epoch, prompt, rs, prior in zip(
            shard.epochs, shard.prompts, rollouts, allocation.priors, strict=True
        )
    )
    return Plan(
        rule=allocation.rule,
        priors=allocation.priors,
        successes=tuple(successes.tolist()),
        extra=tuple(allocation.extra.tolist()),
        rewards=_means([r.rewards for rs in rollouts for r in rs]),
        groups=groups,
    )


async def _phase_b(
    shard: Shard, group: Group, prompt: Prompt, extra: int, generate: Generate, score: Score
) -> Group:
    """Pool Δ_i additional rollouts with the pre-rollouts (lines 13-16)."""
    more = await _sample(shard, group.epoch, prompt, extra, "B", generate, score)
    return replace(group, rollouts=group.rollouts + tuple(more))


async def _sample(
    shard: Shard, epoch: int, prompt: Prompt, n: int, phase: Phase, generate: Generate, score: Score
) -> list[Rollout]:
    """`n` scored rollouts of one prompt, asked for in requests of bounded size that run side by side."""

    async def one(first: int) -> list[Rollout]:
        size = min(shard.samples_per_request, n - first)
        seed = sample_seed(shard.seed, epoch, prompt.index, phase, first)
        completions = await generate(SamplingRequest(prompt, size, seed, shard.order))
        if len(completions) != size:
            raise ValueError(f"prompt {prompt.index}: asked for {size} completions, got {len(completions)}")
        scored = await score(prompt, completions)
        return [_rollout(c, phase, s) for c, s in zip(completions, scored, strict=True)]

    parts = await _all(one(first) for first in range(0, n, shard.samples_per_request))
    return [rollout for part in parts for rollout in part]


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run side by side; when one fails, cancel the others and wait for them before raising."""
    tasks = [asyncio.create_task(w) for w in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _means(rewards: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([r[name] for r in rewards])) for name in rewards[0]}


def _rollout(completion: Completion, phase: Phase, scored: Scored) -> Rollout:
    return Rollout(
        tokens=completion.tokens,
        logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        spans=completion.spans,
        phase=phase,
        rewards=scored.rewards,
        success=scored.success,
    )


def sample_seed(seed: int, epoch: int, prompt_index: int, phase: Phase, first: int) -> int:
    """Seed of one request, pure in what it is for: a retry anywhere draws the same samples from the same weights."""
    text = f"{seed}:{epoch}:{prompt_index}:{phase}:{first}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")
