"""This rank's groups of each step, and their micro-batches. Rank 0 plans the steps."""

import math
from dataclasses import replace
from functools import partial

import redis

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import fingerprint, load_tokenizer
from hora_rl.common.live.telemetry import STEPPING, Heartbeat
from hora_rl.common.types import Group
from hora_rl.learner.feed.admission import Vocabulary
from hora_rl.learner.feed.reader import Planner, Reader
from hora_rl.learner.model.engine import Engine
from hora_rl.learner.ranks import gathered
from hora_rl.learner.records.recorder import ENOUGH
from hora_rl.learner.rows.batch import MicroBatch, measurable, micro_batches, samples_of
from hora_rl.learner.rows.estimator import estimator_of
from hora_rl.learner.rows.packing import Row, Sample, rows_of
from hora_rl.learner.weights.publisher import Publisher


class Feed:
    """`start` is the restored step. While a step waits for groups, `publisher` serves replicas."""

    def __init__(
        self,
        config: Config,
        client: redis.Redis,
        engine: Engine,
        publisher: Publisher,
        heart: Heartbeat,
        start: int,
    ) -> None:
        self._config, self._engine, self._publisher, self._heart = config, engine, publisher, heart
        self._estimator = estimator_of(config)
        self._planner = self._make_planner(client, start) if engine.rank == 0 else None
        kept = self._planner.kept if self._planner else {}
        self._reader = Reader(client, config, engine.rank, engine.world, kept)

    def groups(self, step: int) -> tuple[list[Group], float]:
        """This rank's groups of `step`, and the seconds that rank 0 waited for them."""
        waited = 0.0
        if self._planner is not None:
            waited = self._planner.plan(step, partial(self._wait, self._planner, step))
        self._heart.update(state=STEPPING, step=step)
        return self._reader.read(step, partial(self._publisher.follow_rank_0, step)), waited

    def all_groups(self, step: int) -> list[Group]:
        return self._reader.read_all(step)

    def micro_batches(self, groups: list[Group], step: int) -> tuple[list[MicroBatch], dict[str, float]]:
        """Micro-batches of this rank's `groups`, and packing sums. A collective."""
        estimator = self._estimator
        if estimator.objective.normalisation == "token":
            estimator = replace(estimator, tokens=sum(gathered(estimator.trained_tokens(groups))))
        samples = samples_of(groups, estimator, self._config.rollout.prompts_per_batch, step)
        rows = self._rows(samples)
        micro, packing = self._cut(rows)
        flops = self._engine.shape.flops(rows)
        packing |= {"packing/flops": flops, "packing/rank_flops_max": flops}
        return micro, packing | {"packing/micro_batches_max": float(len(micro))}

    def fresh(self, step: int) -> MicroBatch | None:
        """Rollouts sampled on version `step` that arrived during that step; only rank 0 has them."""
        if self._planner is None:
            return None
        self._planner.look()
        micro, _ = self._cut(self._rows(measurable(self._planner.kept.values(), step, ENOUGH)))
        return max(micro, key=lambda m: int(m.match.sum()), default=None)

    def durable(self, step: int) -> None:
        """Drop the groups of the first `step` steps, which no restart can need."""
        if self._planner is not None:
            self._planner.durable(step)

    def _rows(self, samples: list[Sample]) -> list[Row]:
        return rows_of(samples, self._config.learner.tokens_per_microbatch, self._engine.sharing)

    def _cut(self, rows: list[Row]) -> tuple[list[MicroBatch], dict[str, float]]:
        return micro_batches(rows, self._config.learner.tokens_per_microbatch, self._engine.multiple)

    def _wait(self, planner: Planner, step: int) -> None:
        missing, batch = planner.missing(step)
        self._heart.update(state="waiting", step=step, missing=missing, batch=batch)
        self._publisher.help_replicas(step)

    def _make_planner(self, client: redis.Redis, start: int) -> Planner:
        config, engine = self._config, self._engine
        tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
        size = engine.hf.config.get_text_config().vocab_size

        def cost(group: Group) -> int:
            """In millions of FLOPs, to be short in the ledger. Groups without signal cost nothing."""
            samples = samples_of([group], self._estimator, config.rollout.prompts_per_batch, start)
            return math.ceil(engine.shape.flops(self._rows(samples)) / 1e6)

        return Planner(client, config, Vocabulary(fingerprint(tokenizer), size), start, cost)
