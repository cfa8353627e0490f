"""Samples the rollouts of a shard: requests of bounded size, each scored when its completions arrive."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from hora_rl.actors.concurrency import all_of, cancel
from hora_rl.actors.coordinator.shard import Draw, Sample, Shard
from hora_rl.common.types import Completion, Phase, Prompt, Rollout, SamplingRequest, Scored

Generate = Callable[[SamplingRequest], Awaitable[list[Completion]]]
Score = Callable[[Prompt, Sequence[Completion]], Awaitable[list[Scored]]]


@dataclass(frozen=True, slots=True, eq=False)
class Sampler:
    """Draws scored rollouts of one shard's prompts. Passed as `sample` to its phases."""

    shard: Shard
    generate: Generate
    score: Score

    async def __call__(self, draw: Draw) -> list[Rollout]:
        """The rollouts of one draw, in order. If a request fails, raise its error and cancel the rest."""
        size = self.shard.samples_per_request
        parts = await all_of(
            self._request(draw, draw.first + done, min(size, draw.n - done))
            for done in range(0, draw.n, size)
        )
        return [rollout for part in parts for rollout in part]

    async def _request(self, draw: Draw, first: int, n: int) -> list[Rollout]:
        shard, prompt = self.shard, self.shard.prompts[draw.index]
        seed = sample_seed(shard.seed, shard.epochs[draw.index], prompt.index, draw.phase, first)
        completions = await self.generate(SamplingRequest(prompt, n, seed, shard.priority))
        if len(completions) != n:
            raise ValueError(f"prompt {prompt.index}: asked for {n} completions, got {len(completions)}")
        scored = await self.score(prompt, completions)
        now = time.time()
        return [_rollout(c, draw, s, now) for c, s in zip(completions, scored, strict=True)]


@asynccontextmanager
async def prefetched(sample: Sample, draws: Iterable[Draw]) -> AsyncIterator[Sample]:
    """Start these draws now. The returned `sample` awaits a draw that was started, and starts any other.
    Unused draws are cancelled at the end of the block and their errors dropped."""
    tasks = {draw: asyncio.create_task(sample(draw)) for draw in draws}

    async def result(draw: Draw) -> list[Rollout]:
        task = tasks.pop(draw, None)
        return await (sample(draw) if task is None else task)

    try:
        yield result
    finally:
        await cancel(tasks.values())


def _rollout(completion: Completion, draw: Draw, scored: Scored, now: float) -> Rollout:
    origin = completion.origin
    return Rollout(
        tokens=completion.tokens,
        logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        spans=completion.spans,
        phase=draw.phase,
        rewards=scored.rewards,
        success=scored.success,
        round=draw.round,
        turns=completion.turns,
        origin=replace(origin, scored=now) if origin else None,
    )


def sample_seed(seed: int, epoch: int, prompt_index: int, phase: Phase, first: int) -> int:
    """Seed of one request, a pure function of its identity: a retry on any replica draws the same."""
    text = f"{seed}:{epoch}:{prompt_index}:{phase}:{first}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")
