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
from hora_rl.actors.coordinator import shard as phases
from hora_rl.actors.coordinator.allocation import Cycles, allocate_round, fixed_draws, sizes_as_if
from hora_rl.actors.coordinator.sampling import Generate, Sampler, Score, prefetched
from hora_rl.actors.coordinator.shard import Allocation, Plan, Rank, Round, Sample, Shard
from hora_rl.actors.coordinator.store import Leases, Plans, claim_identity, report_of
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
Lease = tuple[int, int]
"""A shard that this coordinator has leased: batch and index."""
IDLE_S = 0.2  # all batches are generated, but a group may have to be sampled again


@dataclass(frozen=True, slots=True)
class Wait:
    """No shard may start. `reason` is empty where the shards in flight are what is waited for."""

    reason: str = ""


@dataclass(slots=True)
class Services:
    """`generate_at(min_version)` returns a `generate` on weights of that version or newer."""

    generate_at: Callable[[int], Generate]
    score: Score
    producer: Producer
    cycles: Cycles
    leases: Leases
    telemetry: Telemetry
    rank: Rank = phases.unranked


class Coordination:
    """Runs the shards of one run, independent of Serve. `redis` is an asyncio client that returns bytes."""

    def __init__(
        self, config: Config, prompts: list[Prompt], tokenizer: str, redis: AsyncRedis, services: Services
    ) -> None:
        self._config = config
        self._prompts, self._tokenizer = prompts, tokenizer
        self._redis = redis
        self._keys = Keys(config.run.name)
        self._plans = Plans(redis, config.run.name, config.allocation.rounds)
        self._services = services
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: set[str] = set()
        self._requests = dict.fromkeys(("generators", "verifiers"), 0)
        self._waiting = "start"

    @property
    def waiting_for(self) -> str:
        """Why the next shard does not start, else the open requests of the shards in flight."""
        requests = ", ".join(f"{n} at {part}" for part, n in self._requests.items())
        return self._waiting or f"requests: {requests}"

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
            lease = await self._next(todo)
            if isinstance(lease, Wait):
                self._waiting = lease.reason
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(POLL_S)
                continue
            self._waiting = ""
            todo.remove(lease)
            self._tasks.add(asyncio.create_task(self._run_leased(*lease)))
        while (await self._state()).step < steps:
            await self._redo()
            self._collect()
            self._waiting = "" if self._tasks else "nothing: all batches are generated"
            await asyncio.sleep(IDLE_S)

    async def _next(self, todo: list[Lease]) -> Lease | Wait:
        if len(self._tasks) >= self._config.rollout.shards_in_flight:
            return Wait()
        state, bound = await self._state(), self._config.rollout.max_staleness
        if state.paused:
            return Wait("an operator: the run is paused")
        if todo and not may_start(todo[0][0], state.version, bound):
            # The learner waits for shards in flight, so what is waited for are their requests.
            return Wait("" if self._tasks else f"weights of version {todo[0][0] - bound}")
        if todo and await self._services.producer.depth() >= self._config.capacity:
            return Wait("room in the queue")
        for batch, shard in list(todo):
            if not may_start(batch, state.version, bound):
                break
            if not await self._known(batch):
                return Wait("" if self._tasks else f"the last shard of batch {batch - 1 - bound}")
            if await self._redis.hexists(self._keys.shards, f"{batch}:{shard}"):
                todo.remove((batch, shard))  # Another coordinator finished it.
            elif await self._services.leases.acquire(f"{batch}:{shard}"):
                return batch, shard
        return Wait("" if self._tasks else "shards that another coordinator has leased")

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
            plan = stored or await remember(await phases.phase_a(shard, sample, allocate_next))
            while len(plan.rounds) < self._config.allocation.under(plan.rule).rounds:
                plan = await remember(await phases.next_round(shard, plan, sample, allocate_next))
            await self._push(shard, plan, sample, planned=True)
        hits = [h if h is None else int(h) for h in await self._redis.hmget(self._keys.hits, shard.ids)]
        await self._services.cycles.complete(report_of(shard, plan, hits, time.monotonic() - started))
        self._services.telemetry.allocation(plan.rule, plan.successes, plan.extra)
        await self._services.telemetry.flush()

    async def _redo(self) -> None:
        """Sample groups with unusable messages again, with the sizes of their shard's plan."""
        for group_id, batch in (await self._services.producer.redo()).items():
            if group_id in self._again:
                continue
            fields = [f"{batch}:{shard}" for shard in range(self._config.rollout.shards)]
            stored = await self._redis.hmget(self._keys.shards, fields)
            report = next(
                (r for r in (json.loads(text) for text in stored if text) if group_id in r["groups"]), None
            )
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
        prompts, cap = [p.index for p in shard.prompts], self._config.allocation.max_group_size
        sizes = sizes_as_if(self._config.rollout, cap, batch, prompts, report["successes"])

        def as_before(earlier: Sequence[Round], _: Sequence[int]) -> Allocation:
            extra = np.array([rounds[len(earlier)]], dtype=np.int64)
            alpha, beta = report["priors"][row]
            return Allocation(extra, report["rule"], ((alpha, beta),), sizes and (sizes[row],))

        alone = replace(shard, epochs=(shard.epochs[row],), prompts=(shard.prompts[row],))
        sample = self._sampler(alone)
        plan = await phases.phase_a(alone, sample, as_before)
        while len(plan.rounds) < len(rounds):
            plan = await phases.next_round(alone, plan, sample, as_before)
        await self._push(alone, plan, sample, planned=False)
        self._again.discard(group_id)

    def _sampler(self, shard: Shard) -> Sampler:
        generate = self._services.generate_at(max(0, shard.batch - self._config.rollout.max_staleness))
        score = self._counted("verifiers", self._services.score)
        return Sampler(shard, self._counted("generators", generate), score)

    def _counted(self, part: str, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        async def counted(*args: P.args, **named: P.kwargs) -> T:
            self._requests[part] += 1
            try:
                return await call(*args, **named)
            finally:
                self._requests[part] -= 1

        return counted

    async def _push(self, shard: Shard, plan: Plan, sample: Sample, planned: bool) -> None:
        rank = self._counted("verifiers", self._services.rank)
        async with aclosing(phases.phase_b(shard, plan, sample, rank)) as groups:
            async for group in groups:
                if await self._services.producer.push(group, planned=planned):
                    self._services.telemetry.group_in(group)
                    await self._services.telemetry.flush()

    def _shard(self, batch: int, index: int) -> Shard:
        rollout, n = self._config.rollout, self._config.rollout.prompts_per_shard
        rows = self._services.cycles.rows(batch)[index * n : (index + 1) * n]
        return Shard(
            run=self._config.run.name,
            batch=batch,
            index=index,
            epochs=tuple(epoch for epoch, _ in rows),
            prompts=tuple(self._prompts[row] for _, row in rows),
            pre_rollouts=rollout.pre_rollouts,
            seed=self._config.run.seed,
            tokenizer=self._tokenizer,
            samples_per_request=rollout.samples_per_request,
            priority=batch * rollout.shards + index,
        )

    def _collect(self) -> None:
        for task in [t for t in self._tasks if t.done()]:
            self._tasks.discard(task)
            task.result()

    async def _state(self) -> SharedState:
        return await read_state_async(self._redis, self._config.run.name)
