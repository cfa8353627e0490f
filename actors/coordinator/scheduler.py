"""The coordinator's main loop: lease shards in order, run Algorithm 1 on each, push its groups to the queue.

Before a shard starts, the loop waits for weights (the staleness bound), for the cycles that the allocation
depends on, for room in the queue, and for the end of a pause. `waiting_for` names the reason. All progress is
in Redis: a complete shard has a report, a half-done one has a plan. So a restarted coordinator continues
where the last one stopped.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import ParamSpec, TypeVar

import numpy as np
import structlog

from hora_rl.actors.concurrency import cancel
from hora_rl.actors.coordinator.allocation import allocate_round, fixed_draws, sizes_as_if
from hora_rl.actors.coordinator.cycles import Cycles
from hora_rl.actors.coordinator.group_rewards import Rank, unranked
from hora_rl.actors.coordinator.identity import claim_identity
from hora_rl.actors.coordinator.leases import Leases
from hora_rl.actors.coordinator.plans import Plans
from hora_rl.actors.coordinator.sampling import Generate, Sampler, Score, prefetched
from hora_rl.actors.coordinator.shard import (
    Allocation,
    PhaseCounts,
    Plan,
    Round,
    Sample,
    Shard,
    next_round,
    phase_a,
    phase_b,
)
from hora_rl.common import logs
from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.queue import Producer
from hora_rl.common.live.redis import AsyncRedis, text_of
from hora_rl.common.live.staleness import may_start
from hora_rl.common.live.state import SharedState, read_state_async
from hora_rl.common.live.telemetry import Telemetry
from hora_rl.common.records import ShardReport
from hora_rl.common.types import Prompt

log = structlog.get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
POLL_S = 0.05
IDLE_S = 0.2  # all batches are generated, but a group may have to be sampled again


@dataclass(slots=True)
class Services:
    """Services that a coordinator uses. `generate_at(min_version)` returns a `generate` on weights of that
    version or newer."""

    generate_at: Callable[[int], Generate]
    score: Score
    producer: Producer
    cycles: Cycles
    leases: Leases
    telemetry: Telemetry
    rank: Rank = unranked


class Coordination:
    """Runs the shards of one run, independent of Serve. `redis` is an asyncio client that returns bytes."""

    def __init__(
        self, config: Config, prompts: list[Prompt], tokenizer: str, redis: AsyncRedis, services: Services
    ) -> None:
        self._config = config
        self._prompts, self._tokenizer = prompts, tokenizer
        self._redis = redis
        self._keys = Keys(config.run.name)
        self._plans = Plans(redis, config.run.name, config.allocation.rounds, config.queue.max_group_bytes)
        self._services = services
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: set[str] = set()
        self._asked = dict.fromkeys(("generators", "verifiers"), 0)
        self._blocked = "start"

    @property
    def waiting_for(self) -> str:
        """Why the next shard does not start, else the open requests of the shards in flight."""
        asked = ", ".join(f"{n} at {part}" for part, n in self._asked.items())
        return self._blocked or f"requests: {asked}"

    async def claim(self) -> None:
        """Raises RunError if the run has begun with other settings or prompts."""
        await claim_identity(self._redis, self._config, self._prompts)

    async def run(self) -> None:
        """After `claim`: work until every shard is complete. Raises the first error of any shard."""
        await self._redis.hdel(self._keys.state, "error")  # written by a coordinator that gave up
        await self._redis.delete(self._keys.blocked)
        try:
            await self._run()
        finally:
            await cancel(self._tasks)

    async def _run(self) -> None:
        rollout, steps = self._config.rollout, self._config.learner.steps
        done = set(map(text_of, await self._redis.hkeys(self._keys.shards)))
        todo = [(b, s) for b in range(steps) for s in range(rollout.shards) if f"{b}:{s}" not in done]
        while todo or self._tasks:
            await self._redo()
            self._collect()
            taken = await self._next(todo)
            if taken is None:
                await self._pause()
                continue
            todo.remove(taken)
            self._tasks.add(asyncio.create_task(self._run_leased(*taken)))
        while (await self._state()).step < steps:
            await self._redo()
            self._collect()
            self._blocked = "" if self._tasks else "nothing: all batches are generated"
            await asyncio.sleep(IDLE_S)

    async def _next(self, todo: list[tuple[int, int]]) -> tuple[int, int] | None:
        """Lease the oldest shard that may start; None if none may. Sets `waiting_for`."""
        if len(self._tasks) >= self._config.rollout.shards_in_flight:
            self._blocked = ""
            return None
        state = await self._state()
        version = state.version
        if state.paused:
            self._blocked = "an operator: the run is paused"
            return None
        if todo and not may_start(todo[0][0], version, self._config.rollout.max_staleness):
            # With shards in flight, the learner waits for them, so `waiting_for` reports their requests.
            wanted = todo[0][0] - self._config.rollout.max_staleness
            self._blocked = "" if self._tasks else f"weights of version {wanted}"
            return None
        if todo and await self._services.producer.depth() >= self._config.capacity:
            self._blocked = "room in the queue"
            return None
        for batch, shard in list(todo):
            if not may_start(batch, version, self._config.rollout.max_staleness):
                break
            if not await self._known(batch):
                needed = batch - 1 - self._config.rollout.max_staleness
                self._blocked = "" if self._tasks else f"the last shard of batch {needed}"
                return None
            if await self._redis.hexists(self._keys.shards, f"{batch}:{shard}"):
                todo.remove((batch, shard))  # Another coordinator finished it.
            elif await self._services.leases.acquire(f"{batch}:{shard}"):
                self._blocked = ""
                return batch, shard
        self._blocked = "" if self._tasks else "shards that another coordinator has leased"
        return None

    async def _known(self, batch: int) -> bool:
        cycles = self._services.cycles
        if not cycles.known(batch):
            await cycles.observe()
        return cycles.known(batch)

    async def _run_leased(self, batch: int, index: int) -> None:
        name = f"{batch}:{index}"
        with logs.bound(shard=name):
            async with self._services.leases.held(name):
                # Another coordinator may have finished the shard before it released this lease.
                if not await self._redis.hexists(self._keys.shards, name):
                    await self._run_shard(self._shard(batch, index))

    async def _run_shard(self, shard: Shard) -> None:
        """Run Phase A and the rounds of Phase B, push the groups, then store the shard's report."""
        started, name = time.monotonic(), f"{shard.batch}:{shard.index}"
        stored = await self._plans.load(name, shard.ids)
        batch = self._services.cycles.of(shard.batch)
        ahead = fixed_draws(self._config.rollout, batch) if stored is None else []
        async with prefetched(self._sampler(shard), ahead) as sample:
            settings, places = self._config, [p.index for p in shard.prompts]
            allocate_next = partial(allocate_round, settings.rollout, settings.allocation, batch, places)
            remember = partial(self._plans.remember, name, shard.ids)
            plan = stored or await remember(await phase_a(shard, sample, allocate_next))
            while len(plan.rounds) < self._config.allocation.under(plan.rule).rounds:
                plan = await remember(await next_round(shard, plan, sample, allocate_next))
            await self._push(shard, plan, sample, planned=True)
        hits = [h if h is None else int(h) for h in await self._redis.hmget(self._keys.hits, shard.ids)]
        await self._services.cycles.complete(_report(shard, plan, hits, time.monotonic() - started))
        self._services.telemetry.allocation(plan.rule, plan.successes, plan.extra)
        await self._services.telemetry.flush()

    async def _redo(self) -> None:
        """Sample groups with unusable messages again, with the sizes of their shard's plan."""
        for group_id, batch in (await self._services.producer.redo()).items():
            if group_id in self._again:
                continue
            fields = [f"{batch}:{shard}" for shard in range(self._config.rollout.shards)]
            found = await self._redis.hmget(self._keys.shards, fields)
            report = next((r for r in (json.loads(f) for f in found if f) if group_id in r["groups"]), None)
            # Without a report the shard is still running, and will push the group.
            if report is not None:
                self._again.add(group_id)
                self._tasks.add(asyncio.create_task(self._run_again(group_id, report)))

    async def _run_again(self, group_id: str, report: ShardReport) -> None:
        row = report["groups"].index(group_id)
        rounds = [r["extra"][row] for r in report["rounds"]]

        await self._known(report["batch"])  # observes the reports if this coordinator has not
        shard = self._shard(report["batch"], report["shard"])
        batch = self._services.cycles.of(report["batch"])
        places, cap = [p.index for p in shard.prompts], self._config.allocation.max_group_size
        sizes = sizes_as_if(self._config.rollout, cap, batch, places, report["successes"])

        def as_before(earlier: Sequence[Round], found: PhaseCounts) -> Allocation:
            extra = np.array([rounds[len(earlier)]], dtype=np.int64)
            alpha, beta = report["priors"][row]
            return Allocation(extra, report["rule"], ((alpha, beta),), sizes and (sizes[row],))

        one = replace(shard, epochs=(shard.epochs[row],), prompts=(shard.prompts[row],))
        sample = self._sampler(one)
        plan = await phase_a(one, sample, as_before)
        while len(plan.rounds) < len(rounds):
            plan = await next_round(one, plan, sample, as_before)
        await self._push(one, plan, sample, planned=False)
        self._again.discard(group_id)

    def _sampler(self, shard: Shard) -> Sampler:
        """Draws rollouts of the shard and counts open requests."""
        generate = self._services.generate_at(max(0, shard.batch - self._config.rollout.max_staleness))
        score = self._counted("verifiers", self._services.score)
        return Sampler(shard, self._counted("generators", generate), score)

    def _counted(self, part: str, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """`call`, counted as an open request at `part`."""

        async def counted(*args: P.args, **named: P.kwargs) -> T:
            self._asked[part] += 1
            try:
                return await call(*args, **named)
            finally:
                self._asked[part] -= 1

        return counted

    async def _push(self, shard: Shard, plan: Plan, sample: Sample, planned: bool) -> None:
        """Run Phase B and push each group when it is complete."""
        rank = self._counted("verifiers", self._services.rank)
        async with aclosing(phase_b(shard, plan, sample, rank)) as groups:
            async for group in groups:
                if await self._services.producer.push(group, planned=planned):
                    self._services.telemetry.group_in(group)
                    await self._services.telemetry.flush()

    def _shard(self, batch: int, index: int) -> Shard:
        rollout, n = self._config.rollout, self._config.rollout.prompts_per_shard
        places = self._services.cycles.rows(batch)[index * n : (index + 1) * n]
        return Shard(
            run=self._config.run.name,
            batch=batch,
            index=index,
            epochs=tuple(epoch for epoch, _ in places),
            prompts=tuple(self._prompts[row] for _, row in places),
            pre_rollouts=rollout.pre_rollouts,
            seed=self._config.run.seed,
            tokenizer=self._tokenizer,
            samples_per_request=rollout.samples_per_request,
            priority=batch * rollout.shards + index,
        )

    def _collect(self) -> None:
        """Drop finished shards; raise the error of a failed one."""
        for task in [t for t in self._tasks if t.done()]:
            self._tasks.discard(task)
            task.result()

    async def _pause(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(POLL_S)

    async def _state(self) -> SharedState:
        return await read_state_async(self._redis, self._config.run.name)


def _report(shard: Shard, plan: Plan, hits: list[int | None], seconds: float) -> ShardReport:
    """The record of a shard, for audits of its budget and the paper's allocation figure."""
    return {
        "batch": shard.batch,
        "shard": shard.index,
        "groups": list(shard.ids),
        "prompts": [p.index for p in shard.prompts],
        "rule": plan.rule,
        "priors": [list(prior) for prior in plan.priors],
        "trials": shard.pre_rollouts,
        "successes": list(plan.successes),
        "extra": list(plan.extra),
        "rounds": [
            {"successes": list(r.successes), "tokens": list(r.tokens), "extra": list(r.extra)}
            for r in plan.rounds
        ],
        "rewards": plan.rewards,
        "hits": hits,
        "seconds": seconds,
    }
