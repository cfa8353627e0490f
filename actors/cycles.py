"""What decides the allocation of a shard and what learns from it: the warm-up gate, the rule and the prior.

A generation cycle is one batch. Its shards report to Redis when they are complete; cycles are observed strictly in
batch order and once each, by whichever coordinator gets there first, so that gate and prior evolve the same way
for any number of coordinators and survive their restarts.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.shard import Allocation
from allocator import allocate
from allocator.priors import Prior
from allocator.warmup import WarmUpGate
from common.config import Config
from common.keys import Keys
from common.leases import Leases


class Cycles:
    """Gate and prior of one run, backed by Redis. `redis` is an asyncio client."""

    def __init__(self, redis: Any, config: Config, prior: Prior, owner: str) -> None:
        self._redis = redis
        self._config = config
        self._keys = Keys(config.run.name)
        self._prior = prior
        self._gate = WarmUpGate(
            threshold=config.allocation.warmup.format_reward,
            cycles=config.allocation.warmup.cycles,
            enabled=config.allocation.warmup.enabled,
        )
        self._next = 0
        self._here = asyncio.Lock()  # the lease tells processes apart, not the shards of one
        self._locks = Leases(redis, config.run.name, owner, config.coordinator.lease_s)

    @property
    def rule(self) -> str:
        """The rule in force: uniform until the format is learned, then the configured one for good."""
        return self._config.allocation.rule if self._gate.open else "uniform"

    async def allocate(self, prompts: Sequence[int], successes: NDArray[np.int64]) -> Allocation:
        """Divide one shard's Phase B budget. `prompts` (n,) rows of the data set, `successes` (n,) their c_i."""
        await self._restore()
        allocation, rollout = self._config.allocation, self._config.rollout
        alpha, beta = self._prior.predict(np.asarray(prompts, dtype=np.int64))
        budget = len(prompts) * (rollout.group_size - rollout.pre_rollouts)
        extra = allocate(
            successes,
            rollout.pre_rollouts,
            budget,
            prior=(allocation.alpha, allocation.beta) if self._prior.name == "fixed" else (alpha, beta),
            rule=self.rule,
            max_group_size=allocation.max_group_size,
        )
        priors = tuple((float(a), float(b)) for a, b in zip(alpha, beta, strict=True))
        return Allocation(extra=extra, rule=self.rule, priors=priors)

    async def complete(self, report: dict[str, Any]) -> None:
        """Record a complete shard, then observe every cycle that this completes."""
        field = f"{report['batch']}:{report['shard']}"
        await self._redis.hsetnx(self._keys.shards, field, json.dumps(report))
        async with self._here:
            while not await self._locks.acquire("cycles"):
                await asyncio.sleep(0.05)
            async with self._locks.held("cycles"):
                await self._restore()
                while reports := await self._reports(self._next):
                    self._observe(reports)
                    await self._save()

    async def _reports(self, batch: int) -> list[dict[str, Any]]:
        """All shard reports of `batch`, or nothing while one is missing."""
        fields = [f"{batch}:{shard}" for shard in range(self._config.rollout.shards)]
        found = await self._redis.hmget(self._keys.shards, fields)
        return [json.loads(f) for f in found] if all(found) else []

    def _observe(self, reports: list[dict[str, Any]]) -> None:
        self._gate.observe(float(np.mean([r["format"] for r in reports])))
        self._prior.update(
            np.concatenate([np.asarray(r["prompts"], dtype=np.int64) for r in reports]),
            np.concatenate([np.asarray(r["successes"], dtype=np.int64) for r in reports]),
            self._config.rollout.pre_rollouts,
        )
        self._next += 1

    async def _save(self) -> None:
        arrays = {
            name: {"dtype": str(a.dtype), "shape": a.shape, "data": base64.b64encode(a.tobytes()).decode()}
            for name, a in self._prior.state_dict().items()
        }
        state = {"next": self._next, "gate": self._gate.state_dict(), "prior": arrays}
        await self._redis.hset(self._keys.state, "cycles", json.dumps(state))

    async def _restore(self) -> None:
        """Take over what another coordinator, or this one before a restart, has observed."""
        text = await self._redis.hget(self._keys.state, "cycles")
        if not text:
            return
        state = json.loads(text)
        if state["next"] <= self._next:
            return
        self._next = state["next"]
        self._gate.load_state_dict(state["gate"])
        self._prior.load_state_dict(
            {
                name: np.frombuffer(base64.b64decode(a["data"]), dtype=a["dtype"]).reshape(a["shape"]).copy()
                for name, a in state["prior"].items()
            }
        )
