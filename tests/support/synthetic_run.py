"""A run without models, for the views: made-up groups through the real queue, ledger and telemetry."""

import asyncio
import json
import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hora_rl.actors.coordinator.deployment import write_sample
from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.queue import Consumer, Ledger, Producer, Row
from hora_rl.common.live.redis import connect, connect_async
from hora_rl.common.live.telemetry import Telemetry, count_now, heartbeat_now, record_evaluation, record_step
from hora_rl.common.types import Group, Phase
from hora_rl.deploy.machine.record import RunFile, State, write_config
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import RunState
from tests.support.groups import group, rollout

REPLICAS = ("a1b2c3", "d4e5f6")
VERIFIER = "verifier/b0b1e5"


def config_of(run: str, **sections: Any) -> Config:
    base: dict[str, Any] = {
        "run": {"name": run},
        "model": {"path": "deploy/demo/model", "dtype": "float32"},
        "data": {"path": "arithmetic"},
        "rollout": {"prompts_per_batch": 8, "group_size": 16, "pre_rollouts": 8, "shards": 2},
        "learner": {"steps": 40, "tokens_per_microbatch": 8192},
    }
    return Config.model_validate({k: {**base.get(k, {}), **sections.get(k, {})} for k in base | sections})


class SyntheticRun:
    """Walks `config`'s run batch by batch. Everything it writes goes through the modules the real parts
    use. The first `warm_up` batches are divided uniformly; `groups` are those pushed so far."""

    def __init__(self, url: str, config: Config, warm_up: int = 0) -> None:
        self.config, self.keys, self._warm_up = config, Keys(config.run.name), warm_up
        self.groups: list[Group] = []
        self.name = config.run.name
        self.redis: Any = connect(url)
        self._url, self._length = url, 24
        self._random = np.random.default_rng(0)
        self.redis.set(self.keys.config, config.model_dump_json())
        self.redis.hset(self.keys.state, mapping={"version": 0, "step": 0})
        self._consumer = Consumer(self.redis, config.run.name)
        self._ledger = Ledger(self.redis, config.run.name)
        self.pushed, self.started = 0, time.time()

    def read(self, later_s: float = 0.0) -> RunState:
        """The snapshot that views show, `later_s` seconds from now."""
        return read_run(self.redis, self.name, time.time() + later_s)

    def says(self, part: str, **state: Any) -> None:
        """One heartbeat of `part`."""
        heartbeat_now(self.redis, self.name, part, state)

    async def generate(self, batch: int) -> None:
        """Push one batch, shard by shard, with its reports and counters."""
        client = connect_async(self._url)
        try:
            producer = Producer(client, self.config.run.name, self.config.rollout.prompts_per_batch)
            telemetry = Telemetry(client, self.name)
            for shard in range(self.config.rollout.shards):
                groups = self._shard(batch, shard)
                for group in groups:
                    if await producer.push(group):
                        telemetry.group_in(group)
                        self.pushed += 1
                        self.groups.append(group)
                    await telemetry.flush()
                successes, extra = [g.successes for g in groups], [g.extra for g in groups]
                rule = groups[0].rule
                report = {"batch": batch, "shard": shard, "rule": rule}
                report |= {"successes": successes, "extra": extra}
                await client.hset(self.keys.shards, f"{batch}:{shard}", json.dumps(report))
                telemetry.allocation(rule, successes, extra)
                await telemetry.flush()
        finally:
            await client.aclose()

    def train(self, step: int) -> None:
        """Take a batch from the queue as step `step`: ledger, metrics, version, checkpoint."""
        size = self.config.rollout.prompts_per_batch
        self._consumer.claim(0.01)
        taken = {row.entry for rows in self._ledger.steps().values() for row in rows}
        free = [e for e in self._consumer.pending() if e.id not in taken][:size]
        self._ledger.record(step, [Row(e.group, e.id, e.batch, cost=0) for e in free])
        rollouts = size * self.config.rollout.group_size
        tokens = rollouts * self._length
        amounts = {"groups_out": size, "rollouts_out": rollouts, "tokens_out": tokens}
        count_now(self.redis, self.name, amounts)
        record_step(self.redis, self.name, self._metrics(step))
        self.redis.hset(self.keys.state, mapping={"version": step + 1, "step": step + 1})
        if (step + 1) % self.config.learner.checkpoint_every == 0:
            steps = self._ledger.steps()
            done = int(self.redis.hget(self.keys.state, "durable_step") or 0)
            groups = {row.entry: row.group for s in range(done, step + 1) for row in steps[s]}
            self._consumer.acknowledge(groups, step + 1)

    def beat(
        self, version: int, running: int = 5, learner: str = "training", answers: int = 0, **lacking: int
    ) -> None:
        """One heartbeat of every part; `answers` wait at the verifier, which judges 40 a second; the learner
        is `lacking` so many groups (`missing`) since `batch`."""
        for i, replica in enumerate(REPLICAS):
            work = {"running": running + (i if running else 0), "waiting": i, "cache": 0.25 + 0.2 * i}
            self.says(f"generator/{replica}", version=version, pause_s=0.04, state="serving", **work)
        judged = {"answers_per_s": 40.0, "waiting": answers, "scored": 40 * version, "killed": 1}
        self.says(VERIFIER, processes=1, pid=4711, state="serving", **judged)
        self.says("coordinator/c0ffee", state="working", waiting_for=f"weights of version {version + 1}")
        self.says("learner/rank-0", state=learner, step=version, started=self.started, **lacking)
        self.sample()

    def sample(self) -> None:
        """Append to the history, as the coordinator does once a second."""

        async def write() -> None:
            client = connect_async(self._url)
            try:
                await write_sample(client, self.name, self.config.rollout.prompts_per_batch, time.time())
            finally:
                await client.aclose()

        asyncio.run(write())

    def evaluate(self, version: int) -> None:
        share = 1 - math.exp(-(version + 10) / 40)
        values = {"pass@1": 0.6 * share, "pass@8": 0.8 * share, "pass@64": 0.95 * share}
        versions = {"version/min": float(version), "version/max": version + 1.0}
        record_evaluation(self.redis, self.name, version, values | versions)

    def _metrics(self, step: int) -> dict[str, float]:
        noise = float(self._random.normal(0, 0.02))
        learnt = 1 - math.exp(-step / 15)
        return {
            "step": step,
            "loss": -0.01 + noise / 10,
            "grad_norm": 0.8 + noise,
            "learning_rate": 3e-4 * (1 - step / self.config.learner.steps),
            "reward": 0.35 + 0.4 * learnt + noise,
            "reward/format": 0.6 + 0.35 * learnt + noise / 2,
            "reward/accuracy": 0.15 + 0.45 * learnt + noise,
            "success": 0.15 + 0.45 * learnt + noise,
            "groups/hit": 0.5 + 0.4 * learnt,
            "groups/zero_signal": 0.2,
            "length/cut": 0.01,
            "entropy": 0.9 - 0.5 * learnt + noise,
            "length/mean": self._length * (1 + 0.3 * learnt),
            "length/max": self._length * 2,
            "lag/mean": 0.6,
            "lag/max": 1,
            "time/step": 2.1,
            "time/wait": 0.3,
            "time/forward_backward": 1.5,
            "time/gather": 0.1,
            "time/transfer": 0.15,
            "time/load": 0.05,
        } | {
            f"source/{source}/{what}": share * value
            for source, share in (("easy", 0.75), ("hard", 0.25))
            for what, value in (("groups", self.config.rollout.prompts_per_batch), ("success", learnt))
        }

    def _shard(self, batch: int, shard: int) -> list[Group]:
        """Groups whose counts are U-shaped, and whose extra goes to hard ones, more with every batch."""
        rollout = self.config.rollout
        n, trials = rollout.prompts_per_shard, rollout.pre_rollouts
        counts = self._random.binomial(trials, self._random.beta(0.4, 0.3, n))
        power = 0.0 if batch < self._warm_up else min(2.0, (batch + 1) / 8)
        weight = (trials + 1 - counts).astype(float) ** power
        share = np.floor(rollout.shard_budget * weight / weight.sum()).astype(int)
        share[: rollout.shard_budget - int(share.sum())] += 1
        first = batch * rollout.prompts_per_batch + shard * n
        sizes = zip(counts.tolist(), (trials + share).tolist(), strict=True)
        return [self._group(batch, shard, first + i, *size) for i, size in enumerate(sizes)]

    def _group(self, batch: int, shard: int, prompt: int, correct: int, size: int) -> Group:
        trials, length = self.config.rollout.pre_rollouts, self._length
        phases: list[Phase] = ["A" if j < trials else "B" for j in range(size)]
        sampled = partial(rollout, np.arange(length), logprobs=-0.5, version=max(0, batch - 1))
        rollouts = [sampled(phase=phase, success=j < correct) for j, phase in enumerate(phases)]
        rule = "uniform" if batch < self._warm_up else "hit_utility"
        place = {"run": self.name, "batch": batch, "shard": shard, "rule": rule, "tokenizer": "none"}
        return group(prompt, rollouts, pre_rollouts=trials, prompt=np.arange(8), **place)


def play(run: SyntheticRun, batches: int, begin: int = 0) -> None:
    """Whole cycles `begin` to `batches` at once: generated, trained, evaluated every ten."""
    for batch in range(begin, batches):
        asyncio.run(run.generate(batch))
        if batch % 10 == 0:
            run.evaluate(batch)
        run.train(batch)
    run.beat(batches)


def write_ended(run: Path, state: State = "finished", steps: int = 3, reason: str = "") -> None:
    """The folder of a run of three steps that ended after `steps`, its Redis with it."""
    config = config_of(run.name, learner={"steps": 3})
    with RedisServer(run / "redis") as server:
        play(SyntheticRun(server.url, config), steps)
    write_config(run, config)
    RunFile(run).start(run.name, os.getpid(), resume=f"hora run {run.name} --resume")
    RunFile(run).end(state, reason)
