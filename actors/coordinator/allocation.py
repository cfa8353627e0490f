"""The allocation of a batch: its rule and prior from the generation cycles so far, and the Phase B budget of
a shard, round by round.

A generation cycle is one batch. Complete shards report to Redis, and every coordinator observes complete
cycles once each, in batch order. Warm-up gate, prior and rests (`common/data/prompt_order.py`) are functions
of these reports, so all coordinators agree, even after a restart. Batch b uses exactly the cycles up to
b - 1 - max_staleness. With max_staleness 0 these are all earlier ones: the paper's synchronous algorithm."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.actors.coordinator.shard import Allocation, Draw, Round
from hora_rl.allocator import Session, allocate
from hora_rl.allocator.priors.base import Prior
from hora_rl.common.config import AllocationConfig, Config, RolloutConfig
from hora_rl.common.config.allocation import UNIFORM, needs_counts
from hora_rl.common.data.prompt_order import Counts, Mixture, Order
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import AsyncRedis
from hora_rl.common.live.state import Value, changed
from hora_rl.common.records import ShardReport

Float = NDArray[np.float64]
ROUNDING = 1e-9  # far below the effect of one rollout on a mean


class WarmUpGate:
    """Opens for good after `cycles` consecutive cycles with a mean reward of at least `threshold`; from the
    start if not `enabled`. The paper uses the format reward."""

    def __init__(self, threshold: float = 0.85, cycles: int = 3, enabled: bool = True) -> None:
        self._threshold = threshold
        self._cycles = cycles
        self._run = 0
        self._open = not enabled

    @property
    def open(self) -> bool:
        """True: allocate with HORA. False: allocate uniformly."""
        return self._open

    def observe(self, mean: float) -> None:
        """Record one generation cycle's mean reward. Raises ValueError if it is not finite."""
        if not math.isfinite(mean):
            raise ValueError(f"mean must be finite, not {mean}")
        self._run = self._run + 1 if mean >= self._threshold - ROUNDING else 0
        self._open = self._open or self._run >= self._cycles


@dataclass(frozen=True, slots=True, eq=False)
class BatchAllocation:
    """Rule and prior of one batch: α0 (Γ,) and β0 (Γ,) of its prompts (Γ,). `as_if`: the rule that weights
    groups by its sizes (`learner.objective.group_weight.as_if`), `uniform` while the gate is shut."""

    rule: str
    prompts: NDArray[np.int64]
    alpha: NDArray[np.float64]
    beta: NDArray[np.float64]
    as_if: str | None = None

    def priors_of(self, prompts: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """α0 (n,) and β0 (n,) of `prompts` (n,), which belong to this batch."""
        index_of = {prompt: i for i, prompt in enumerate(self.prompts.tolist())}
        here = [index_of[prompt] for prompt in prompts]
        return self.alpha[here], self.beta[here]


class Cycles:
    """Gate and prior of one run over the prompts of `mixture`. `redis` is an asyncio client."""

    def __init__(self, redis: AsyncRedis, config: Config, prior: Prior, mixture: Mixture) -> None:
        self._redis = redis
        self._config = config
        self._keys = Keys(config.run.name)
        self._prior = prior
        self._order = Order.of(config.data, config.rollout, config.run.seed, mixture)
        self._gate = WarmUpGate(
            threshold=config.allocation.warmup.format_reward,
            cycles=config.allocation.warmup.cycles,
            enabled=config.gate is not None,
        )
        self._gate_mean: float | None = None
        self._observed = 0
        self._here = asyncio.Lock()  # several shards of this process may complete at once
        self._batches: dict[int, BatchAllocation] = {}  # never dropped: 24 bytes per prompt

    def rows(self, batch: int) -> list[tuple[int, int]]:
        """(epoch, prompt) of each of the Γ prompts of `batch`, which is known, in order."""
        return self._order.rows(batch)

    def known(self, batch: int) -> bool:
        """Whether all cycles that `batch` needs were observed. Its shards wait for that before they start: in
        flight they would take the place that a shard of such a cycle needs if its coordinator died."""
        return batch in self._batches or self._settled

    def of(self, batch: int) -> BatchAllocation:
        return self._batches.get(batch) or self._now(batch)

    async def complete(self, report: ShardReport) -> None:
        """Record a complete shard, then observe every cycle that is complete now."""
        field = f"{report['batch']}:{report['shard']}"
        await self._redis.hsetnx(self._keys.shards, field, json.dumps(report))
        await self.observe()

    async def observe(self) -> None:
        """Observe the cycles completed since the last call, in batch order."""
        async with self._here:
            if not self._batches:  # batches that depend on no cycle
                first = min(self._config.rollout.max_staleness + 1, self._config.learner.steps)
                self._batches = {b: self._now(b) for b in range(first)}
            before = self._observed
            while not self._settled and (reports := await self._reports(self._observed)):
                self._observe(reports)
            if self._observed > before and (seen := self._seen()):
                await self._redis.hset(self._keys.state, mapping=seen)

    def _seen(self) -> dict[Value, Value]:
        seen: dict[Value, Value] = {}
        if self._gate_mean is not None:
            seen |= changed(gate_open=self._gate.open, gate_seen=self._observed, gate_mean=self._gate_mean)
        return seen | changed(resting=self._order.resting) if self._order.waits else seen

    @property
    def _settled(self) -> bool:
        """Whether no further cycle can change the allocation. Then every batch may start."""
        return self._gate.open and not self._prior.learns and not self._order.waits

    async def _reports(self, batch: int) -> list[ShardReport]:
        """All shard reports of `batch`; an empty list while one is missing."""
        fields = [f"{batch}:{shard}" for shard in range(self._config.rollout.shards)]
        stored = await self._redis.hmget(self._keys.shards, fields)
        return [json.loads(f) for f in stored if f] if all(stored) else []

    def _observe(self, reports: list[ShardReport]) -> None:
        """Learn from one cycle. This fixes the allocation of the first batch that needed the cycle."""
        if self._config.gate is not None:
            self._gate_mean = float(np.mean([r["rewards"][self._config.gate] for r in reports]))
            self._gate.observe(self._gate_mean)
        self._prior.update(
            np.array([prompt for r in reports for prompt in r["prompts"]], dtype=np.int64),
            np.array([c for r in reports for c in r["successes"]], dtype=np.int64),
            self._config.rollout.pre_rollouts,
        )
        if self._order.waits:
            self._order.observe(Counts.of(reports))
        self._observed += 1
        batch = self._observed + self._config.rollout.max_staleness
        self._batches[batch] = self._now(batch)

    def _now(self, batch: int) -> BatchAllocation:
        prompts = np.array([row for _, row in self.rows(batch)], dtype=np.int64)
        rule, as_if = self._config.allocation.rule, self._config.learner.objective.group_weight.as_if
        if not self._gate.open:
            rule, as_if = UNIFORM, as_if and UNIFORM
        return BatchAllocation(rule, prompts, *self._prior.predict(prompts), as_if)


def allocate_round(
    rollout: RolloutConfig,
    settings: AllocationConfig,
    batch: BatchAllocation,
    prompts: Sequence[int],
    earlier: Sequence[Round],
    successes: Sequence[int],
) -> Allocation:
    """The next round of a shard with `prompts` (n,). `successes` (n,): those since the `earlier` rounds."""
    prior, allocation = batch.priors_of(prompts), settings.under(batch.rule)
    session = Session(
        len(prompts),
        len(prompts) * (rollout.group_size - rollout.pre_rollouts),
        rule=batch.rule,
        prior=_shared(*prior),
        rounds=allocation.rounds,
        stop=allocation.stop,
        max_group_size=allocation.max_group_size,
    )
    trials: list[int | Sequence[int]] = [rollout.pre_rollouts, *(r.extra for r in earlier)]
    for hits, n in zip([*(r.successes for r in earlier), successes], trials, strict=True):
        session.tell(hits, n)
    return Allocation(
        extra=session.ask(),
        rule=batch.rule,
        priors=tuple((float(a), float(b)) for a, b in zip(*prior, strict=True)),
        sizes_as_if=None
        if earlier
        else sizes_as_if(rollout, allocation.max_group_size, batch, prompts, successes),
    )


def sizes_as_if(
    rollout: RolloutConfig,
    cap: int | None,
    batch: BatchAllocation,
    prompts: Sequence[int],
    successes: Sequence[int],
) -> tuple[int, ...] | None:
    """G_i (n,) under rule `group_weight.as_if`, given Phase A's successes (n,); None without that rule."""
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
    """One pair if all prompts have the same prior: the allocator then takes equal prompts as one."""
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
