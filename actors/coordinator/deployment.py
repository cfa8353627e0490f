"""Serve deployment `coordinator`: loads data and tokenizer, then runs `Coordination` in the background, and
appends the run's counters and levels to its history once a second, from which views compute rates.

If the data of a new run is unusable or a shard fails, the coordinator writes the reason to Redis for the
learner, the launcher and the views. After a failed shard the replica stays up and idle, because a restart
would fail the same way.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Mapping

import redis
import redis.asyncio
import structlog
from ray.serve.handle import DeploymentHandle

from hora_rl.actors.coordinator.allocation import Cycles
from hora_rl.actors.coordinator.calls import LastTexts, group_calls, policy_calls, verifier_calls
from hora_rl.actors.coordinator.prompt_features import prior_of
from hora_rl.actors.coordinator.scheduler import Coordination, Services
from hora_rl.actors.coordinator.store import Leases, mixture_of
from hora_rl.actors.data.datasets import load_dataset
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.actors.replica import Replica
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import fingerprint, load_tokenizer, make_prompt, prompt_of, refuse_unknown
from hora_rl.common.errors import HoraError, RunError, one_line
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.queue import Producer, depth_of
from hora_rl.common.live.redis import Answer, AsyncRedis, text_of
from hora_rl.common.live.state import SharedState, changed
from hora_rl.common.live.telemetry import (
    FLOWS,
    HISTORY,
    LOOKS,
    CoordinatorBeat,
    Telemetry,
    beats,
    living,
    repeat,
)
from hora_rl.common.model.model_files import vocabulary_rows
from hora_rl.common.processes import freeze_heap
from hora_rl.common.types import Prompt

log = structlog.get_logger(__name__)
ALIVE_S = 5.0  # heartbeats come once a second
LEASE_S = 30.0
"""A coordinator silent for this long loses its shards."""
SAMPLE_S = 1.0
FORGOTTEN_S = 3600.0
KEPT = ("learner/", "coordinator/")


class Coordinator(Replica):
    """`config` is a dumped `Config`. Deployment `policy` samples (`Config.policy`), `verifier` scores."""

    async def __init__(  # type: ignore[misc]
        self, config: dict[str, object], redis_url: str, policy: DeploymentHandle, verifier: DeploymentHandle
    ) -> None:
        super().__init__("coordinator", config, redis_url)
        self._keys = Keys(self._run)
        # For views while the data loads. `claim` checks then whether the run may use this data.
        await self._redis.set(self._keys.config, self._config.model_dump_json(), nx=True)
        try:
            self._coordination = await asyncio.to_thread(self._build, policy, verifier)
            await self._coordination.claim()
        except HoraError as error:
            # If another coordinator is alive, the run goes on without this one. A run with plans may continue
            # after a restart, but not with other settings or prompts (RunError).
            final = isinstance(error, RunError) or not await self._redis.exists(self._keys.plans)
            if final and not await self._others():
                await give_up(self._redis, self._keys, str(error))
            raise
        freeze_heap()
        self._work = self._begin(coordinate(self._coordination.run(), self._redis, self._keys))
        self._begin(write_history(self._redis, self._run, self._config.rollout.prompts_per_batch))
        self._beat(self._state)

    def _build(self, policy: DeploymentHandle, verifier: DeploymentHandle) -> Coordination:
        config = self._config
        tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
        prompts = render_prompts(config, tokenizer)
        rollout, rounds = config.rollout, config.allocation.rounds
        prior = prior_of(config.allocation, config.run, config.model.path, prompts)
        services = Services(
            generate_at=lambda version: policy_calls(
                policy, config, version, together=rollout.samples_per_request
            ),
            score=verifier_calls(verifier, config),
            producer=Producer(self._redis, self._run, rollout.prompts_per_batch, rounds),
            cycles=Cycles(self._redis, config, prior, mixture_of(config.data.sources, prompts)),
            leases=Leases(self._redis, config.run.name, self._name, LEASE_S),
            telemetry=Telemetry(self._redis, config.run.name),
            rank=group_calls(verifier, config, LastTexts(tokenizer, config.rollout.stop)),
        )
        return Coordination(config, prompts, fingerprint(tokenizer), self._redis, services)

    async def check_health(self) -> None:
        if self._work.cancelled():
            raise RuntimeError(f"{self._name} was cancelled")
        if not self._work.done():
            return
        if self._work.exception() is not None:
            raise RuntimeError(f"{self._name} stopped: {self._work.exception()}")
        if self._work.result() and not await self._redis.hexists(self._keys.state, "error"):
            # `hora train` removed the reason. Serve replaces this coordinator.
            raise RuntimeError(f"{self._name} gave up, and is asked to start again")

    async def _others(self) -> bool:
        """Whether another coordinator is alive."""
        coordinators = beats(await self._redis.hgetall(self._keys.parts), "coordinator")
        return any(beat["seen"] > time.time() - ALIVE_S for beat in coordinators)

    def _state(self) -> CoordinatorBeat:
        return {"state": "working", "waiting_for": self._coordination.waiting_for}


async def coordinate(work: Awaitable[None], client: AsyncRedis, keys: Keys) -> bool:
    """Wait for `work`. If it fails, write the reason to the run's state and return True. Raises RedisError
    and OSError: then the reason cannot be written, and a restart may help."""
    [error] = await asyncio.gather(work, return_exceptions=True)
    if error is None:
        return False
    if isinstance(error, redis.exceptions.RedisError | OSError):
        raise error
    # Calls were retried already, and a failing rule or prior would fail again after a restart.
    log.error("coordinator failed", exc_info=error)
    short = f"{type(error).__name__}: {one_line(error, 500)}"
    await give_up(client, keys, str(error) if isinstance(error, HoraError) else short)
    return True


async def give_up(client: AsyncRedis, keys: Keys, reason: str) -> None:
    """Write `reason` to the run's state, for the learner, the launcher and the views."""
    log.error("coordinator stopped", reason=reason)
    await client.hset(keys.state, mapping=changed(error=reason))


def render_prompts(config: Config, tokenizer: object = None) -> list[Prompt]:
    """The usable rows of all sources as prompts. Prompt i has index i throughout the run. Logs and skips
    prompts longer than rollout.max_prompt_tokens and rows that the rewards cannot use. Raises ConfigError for
    a token that the model has no row for. By default the `tokenizer` is the model's."""
    tokenizer = tokenizer or load_tokenizer(config.model.path, config.model.trust_remote_code)
    prompts: list[Prompt] = []
    rows = vocabulary_rows(config.model)
    for source in config.source_names:
        settings = config.of(source)
        dataset = load_dataset(settings.data, gold_test(settings.reward))
        for rejected in dataset.rejected:
            log.warning("row left out", place=rejected.location, reason=rejected.reason)
        for row in dataset.rows:
            prompt = make_prompt(tokenizer, len(prompts), row, settings.data, source, settings.reads_rows)
            length, limit = len(prompt.tokens), config.rollout.max_prompt_tokens
            if length > limit:
                log.warning("prompt left out", place=row.location, tokens=length, limit=limit)
                continue
            refuse_unknown(tokenizer, prompt.tokens, rows, prompt_of(row))
            prompts.append(prompt)
    return prompts


async def write_history(client: redis.asyncio.Redis, run: str, per_step: int) -> None:
    """Append a sample every second until cancelled. `per_step` is the number of groups of a step."""
    await repeat(SAMPLE_S, lambda: write_sample(client, run, per_step, time.time()), "no history sample")


async def write_sample(client: redis.asyncio.Redis, run: str, per_step: int, now: float) -> None:
    """Append a sample at `now`, in seconds since the epoch, unless another coordinator just did."""
    keys = Keys(run)
    if not await client.set(f"{keys.history}:lock", "1", nx=True, px=int(SAMPLE_S * 900)):
        return
    async with client.pipeline(transaction=False) as pipe:
        pipe.hmget(keys.counters, FLOWS)
        pipe.hgetall(keys.state)
        pipe.xlen(keys.groups)
        pipe.hlen(keys.ledger)
        pipe.hgetall(keys.parts)
        totals, raw, length, steps, parts = await pipe.execute()
    state = SharedState.parse(raw)
    sample = {
        "time": now,
        "depth": depth_of(length, steps, state.durable_step, per_step),
        "version": state.version,
        "oldest_replica": oldest_replica(parts, now),
        **{flow: int(total or 0) for flow, total in zip(FLOWS, totals, strict=True)},
    }
    async with client.pipeline(transaction=True) as pipe:
        pipe.xadd(keys.history, {"sample": json.dumps(sample)}, maxlen=HISTORY, approximate=True)
        # A paused run does not count as idle.
        load = [b.get("running", 0) + b.get("waiting", 0) for b in living(parts, "generator", now)]
        looks = (0, 0) if state.paused else (len(load), load.count(0))  # generators, and those that idle
        for counter, n in zip(LOOKS, looks, strict=True):
            pipe.hincrby(keys.counters, counter, n)
        await pipe.execute()
    if gone := long_gone(parts, now):
        await client.hdel(keys.parts, *gone)


def long_gone(parts: Mapping[Answer, Answer], now: float) -> list[Answer]:
    """Replicas without a heartbeat for an hour. Views always show learner and coordinator."""
    replicas = ((name, text) for name, text in parts.items() if not text_of(name).startswith(KEPT))
    return [name for name, text in replicas if now - json.loads(text)["seen"] > FORGOTTEN_S]


def oldest_replica(parts: Mapping[Answer, Answer], now: float) -> int | None:
    """The oldest weight version of the living generators. None without one."""
    return min((beat.get("version", 0) for beat in living(parts, "generator", now)), default=None)
