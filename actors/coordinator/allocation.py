"""What decides the allocation of a batch and what learns from it: the warm-up gate, the rule and the prior.

A generation cycle is one batch. Its shards report to Redis when they are complete, and every coordinator observes the
complete cycles strictly in batch order, once each. So gate and prior follow from the reports alone: they are the same
in every coordinator, and in one that starts anew, which reads the reports again.

The allocation of batch b knows the cycles up to b - 1 - max_staleness, no fewer and no more, whoever divides which of
its shards at what moment. With max_staleness 0 these are all batches before it: the paper's synchronous algorithm.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.coordinator.shard import Allocation
from allocator import allocate
from allocator.priors import Prior
from allocator.warmup import WarmUpGate
from common.config import Config
from common.keys import Keys
from common.order import batch_rows


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What the shards of one batch are divided by: the rule, and α0 (Γ,) and β0 (Γ,) of its prompts (Γ,)."""

    rule: str
    prompts: NDArray[np.int64]
    alpha: NDArray[np.float64]
    beta: NDArray[np.float64]


class Cycles:
    """Gate and prior of one run over `n` prompts. `redis` is an asyncio client."""

    def __init__(self, redis: Any, config: Config, prior: Prior, n: int) -> None:
        self._redis = redis
        self._config = config
        self._keys = Keys(config.run.name)
        self._prior = prior
        self._n = n
        self._gate = WarmUpGate(
            threshold=config.allocation.warmup.format_reward,
            cycles=config.allocation.warmup.cycles,
            enabled=config.gate is not None,
        )
        self._observed = 0
        self._here = asyncio.Lock()  # several shards of this process may complete at once
        self._terms: dict[int, Terms] = {}  # kept for the whole run: 24 bytes a prompt

    async def known(self, batch: int) -> bool:
        """Whether all is observed that the allocation of `batch` must know; a shard of it may start only then.

        Waiting here, before the start, holds no place among the shards in flight: the shard that everyone waits for, of a
        coordinator that died, may need it.
        """
        if batch not in self._terms:
            await self._observe_complete()
        return batch in self._terms or self._settled

    async def allocate(self, batch: int, prompts: Sequence[int], successes: NDArray[np.int64]) -> Allocation:
        """Divide one shard's Phase B budget. `batch` is known, `prompts` (n,) are its rows of the data set, `successes`
        (n,) their c_i."""
        terms = self._terms.get(batch) or self._terms_now(batch)
        place = {row: i for i, row in enumerate(terms.prompts.tolist())}
        here = [place[row] for row in prompts]
        alpha, beta = terms.alpha[here], terms.beta[here]
        allocation, rollout = self._config.allocation, self._config.rollout
        extra = allocate(
            successes,
            rollout.pre_rollouts,
            budget=len(prompts) * (rollout.group_size - rollout.pre_rollouts),
            prior=(allocation.alpha, allocation.beta) if self._prior.name == "fixed" else (alpha, beta),
            rule=terms.rule,
            max_group_size=allocation.max_group_size,
        )
        priors = tuple((float(a), float(b)) for a, b in zip(alpha, beta, strict=True))
        return Allocation(extra=extra, rule=terms.rule, priors=priors)

    async def complete(self, report: dict[str, Any]) -> None:
        """Record a complete shard, then observe every cycle that this completes."""
        field = f"{report['batch']}:{report['shard']}"
        await self._redis.hsetnx(self._keys.shards, field, json.dumps(report))
        await self._observe_complete()

    @property
    def _settled(self) -> bool:
        """No cycle can change the allocation any more: every batch is known."""
        return self._gate.open and not self._prior.learns

    async def _observe_complete(self) -> None:
        async with self._here:
            if not self._terms:  # the batches that know no cycle
                self._terms = {b: self._terms_now(b) for b in range(self._config.rollout.max_staleness + 1)}
            before = self._observed
            while not self._settled and (reports := await self._reports(self._observed)):
                self._observe(reports)
            if self._observed > before:  # for those who show the run
                state = json.dumps({"gate": {"open": self._gate.open}})
                await self._redis.hset(self._keys.state, "cycles", state)

    async def _reports(self, batch: int) -> list[dict[str, Any]]:
        """All shard reports of `batch`, or nothing while one is missing."""
        fields = [f"{batch}:{shard}" for shard in range(self._config.rollout.shards)]
        found = await self._redis.hmget(self._keys.shards, fields)
        return [json.loads(f) for f in found] if all(found) else []

    def _observe(self, reports: list[dict[str, Any]]) -> None:
        """Learn from one cycle; then the terms of the batch that knows it and no later one can be told."""
        if self._config.gate is not None:
            self._gate.observe(float(np.mean([r["rewards"][self._config.gate] for r in reports])))
        self._prior.update(
            np.concatenate([np.asarray(r["prompts"], dtype=np.int64) for r in reports]),
            np.concatenate([np.asarray(r["successes"], dtype=np.int64) for r in reports]),
            self._config.rollout.pre_rollouts,
        )
        self._observed += 1
        batch = self._observed + self._config.rollout.max_staleness
        self._terms[batch] = self._terms_now(batch)

    def _terms_now(self, batch: int) -> Terms:
        rows = batch_rows(
            batch,
            self._config.rollout.prompts_per_batch,
            self._n,
            self._config.run.seed,
            self._config.data.shuffle,
        )
        prompts = np.array([row for _, row in rows], dtype=np.int64)
        rule = self._config.allocation.rule if self._gate.open else "uniform"
        return Terms(rule, prompts, *self._prior.predict(prompts))
