"""What a step was: its sums over the ranks, its metrics, its groups, in every record of the run.

Drift is the mean |difference| of generator and learner log-probs of the same tokens under the same weights. A
wrong engine or model causes a large drift at once and stops the run; later drift only raises an alarm."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import redis
import structlog

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.errors import RunError
from hora_rl.common.files import replace_text
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.state import changed
from hora_rl.common.records import moved
from hora_rl.common.types import Group
from hora_rl.learner.model.engine import Engine, Update
from hora_rl.learner.model.flops import peak_flops
from hora_rl.learner.ranks import gathered, sums_over_ranks
from hora_rl.learner.records.metrics import step_metrics
from hora_rl.learner.records.rollout_writer import RolloutFiles
from hora_rl.learner.records.step_records import Records, group_record

log = structlog.get_logger(__name__)
FIRST = 5  # measurements after each start of the learner
ENOUGH = 200
"""Tokens per measurement. Single tokens differ with a long tail, above all in 16 bits: a mean of twenty is
noise."""


class Drift:
    """Accumulates tokens over steps until `ENOUGH` make a measurement, then starts again. `limit` is
    `weights.drift_limit`, applied to the first measurements."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._left = FIRST
        self._sum = self._tokens = 0.0

    def add(self, step: int, sums: dict[str, float]) -> dict[str, float]:
        """Return `sums` of step `step` over all ranks, with the drift of a measurement that ends at this
        step, else with zeros. The same on every rank. Raises RunError if one of the first measurements
        exceeds the limit."""
        self._sum += sums.get("drift", 0.0)
        self._tokens += sums.get("drift_tokens", 0.0)
        if self._tokens < ENOUGH:
            return sums | {"drift": 0.0, "drift_tokens": 0.0}
        measured = {"drift": self._sum, "drift_tokens": self._tokens}
        drift, tokens = self._sum / self._tokens, self._tokens
        self._sum = self._tokens = 0.0
        self._left -= 1
        if self._limit is not None and self._left >= 0 and drift > self._limit:
            raise RunError(
                f"step {step}: on the same weights the log-probs of generators and learner differ by "
                f"{drift:.3g} in the mean over {tokens:.0f} tokens, and weights.drift_limit is "
                f"{self._limit:g}: what is sampled is not from the policy that is trained. Make both alike "
                "(model.path, model.dtype, the engine's options), or raise "
                "weights.drift_limit"
            )
        return sums | measured


class Recorder:
    """Its methods with a step are collectives; rank 0 writes. Lines from `start` on are removed first."""

    def __init__(
        self, config: Config, client: redis.Redis, engine: Engine, run_dir: Path, start: int
    ) -> None:
        self._config, self._engine = config, engine
        self._drift = Drift(config.weights.drift_limit)
        self._records: Records | None = None
        if engine.rank == 0:
            tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
            rollouts = RolloutFiles(config, tokenizer, run_dir, start)
            device = engine.device_name
            replace_text(run_dir / "learner.json", json.dumps({"device": device, "ranks": engine.world}))
            client.hset(Keys(config.run.name).state, mapping=changed(step=start, device=device))
            self._records = Records(config, client, run_dir, start, rollouts)

    def over_ranks(self, step: int, sums: dict[str, float]) -> dict[str, float]:
        """The sums over all ranks, with drift where a measurement of it ends (`Drift.add`)."""
        return self._drift.add(step, sums_over_ranks(sums))

    def record(
        self,
        step: int,
        groups: Sequence[Group],
        all_groups: Callable[[int], list[Group]],
        update: Update,
        sums: dict[str, float],
        times: dict[str, float],
    ) -> None:
        """Write the step to every record. `sums` are over all ranks, `groups` this rank's; `all_groups` reads
        those of all ranks."""
        of_ranks = gathered([group_record(step, group, self._config) for group in groups])
        if self._records is None:
            return
        engine, config = self._engine, self._config
        every = list(groups) if engine.world == 1 else all_groups(step)
        norm, rate = update.grad_norm, update.learning_rate
        metrics = step_metrics(
            step, every, sums, config, ranks=engine.world, grad_norm=norm, learning_rate=rate
        )
        metrics |= times | {"time/forward_backward": update.seconds, "applied": float(update.applied)}
        seconds, flops = max(1e-9, update.seconds), sums["packing/flops"]
        flops *= config.learner.objective.updates_per_batch
        peak = peak_flops(engine.device_name, config.model.dtype)
        metrics |= {
            "tokens_per_second": metrics["tokens"] / seconds,
            "flops": flops,
            "micro_batches": sums["packing/micro_batches_max"],
            "mfu": flops / (seconds * peak * engine.world) if peak else math.nan,
        }
        metrics |= self._records.idle()
        known = {name: value for name, value in metrics.items() if not math.isnan(value)}
        if known.get("drift", 0.0) > config.weights.drift_alarm:
            drift = {"drift": known["drift"], "tokens": known["drift/tokens"]}
            log.error("generator and learner disagree on the same weights", step=step, **drift)
        if warning := moved(self._records.newest, known):
            log.warning(warning)
        self._records.step(step, [record for records in of_ranks for record in records], known, every)

    def sync(self) -> None:
        """Bring what was written to the disk, before a checkpoint that contains the steps."""
        if self._records is not None:
            self._records.sync()

    def close(self) -> None:
        if self._records is not None:
            self._records.close()
