"""What a step was: its sums over the ranks, its metrics (every view uses these names), its groups, in every
record of the run.

Drift is the mean |difference| of generator and learner log-probs of the same tokens under the same weights. A
wrong engine or model causes a large drift at once and stops the run; later drift only raises an alarm."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import redis
import structlog

from hora_rl.common.config import Config, RewardConfig
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.data.rewards import total
from hora_rl.common.errors import RunError
from hora_rl.common.files import replace_text
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.state import changed
from hora_rl.common.records import moved
from hora_rl.common.types import Group
from hora_rl.learner.model.flops import peak_flops
from hora_rl.learner.ranks import gathered, sums_over_ranks
from hora_rl.learner.records.rollout_writer import RolloutFiles
from hora_rl.learner.records.step_records import Records, group_record

if TYPE_CHECKING:
    from hora_rl.learner.model.engine import Engine, Update

log = structlog.get_logger(__name__)
FIRST = 5  # measurements after each start of the learner
ENOUGH = 200
"""Tokens per measurement. Single tokens differ with a long tail, above all in 16 bits: a mean of twenty is
noise."""


def step_metrics(
    step: int,
    groups: Sequence[Group],
    sums: Mapping[str, float],
    config: Config,
    *,
    ranks: int,
    grad_norm: float,
    learning_rate: float,
) -> dict[str, float]:
    """Metrics of step `step`. `groups` are all Γ groups, `sums` the objective's sums over ranks.

    Rewards are means over prompts of each group's mean, weighted as in the objective: HORA samples hard
    prompts more often, so a mean over rollouts would depend on the allocation rule. Objective statistics are
    means over trained tokens; NaN without any."""
    rollouts = [r for g in groups for r in g.rollouts]
    sources = {name: config.of(name).reward for name in config.source_names}
    rewards = [_totals(g, sources) for g in groups]
    names = dict.fromkeys(name for g in groups for name in g.rollouts[0].rewards)  # sources may differ
    lengths = np.array([len(r.tokens) for r in rollouts])
    turns = (
        {}
        if config.environment.path is None
        else {
            "turns/mean": mean(len(r.turns) or 1 for r in rollouts),
            "turns/given_tokens": mean(r.context_tokens for r in rollouts),
        }
    )
    lags, of = np.array([(step - s.version, s.end - s.start) for r in rollouts for s in r.spans]).T
    return {
        "step": step,
        "grad_norm": grad_norm,
        "learning_rate": learning_rate,
        "reward": mean(r.mean() for r in rewards),
        **{f"reward/{name}": _over_prompts(groups, name) for name in names},
        **(_by_source(groups, sources) if config.data.sources else {}),
        **_objective(sums),
        # An estimate from all sampled tokens. The exact mean over trained ones leaves out groups without a
        # signal, whose tokens are the surest, and rules differ in how many they leave.
        "entropy": -float(np.mean(np.concatenate([r.logprobs for r in rollouts]))),
        "length/mean": float(lengths.mean()),
        "length/max": float(lengths.max()),
        **turns,
        "length/cut": mean(r.finish_reason == "length" for r in rollouts),
        "rollouts": len(rollouts),
        "tokens": int(lengths.sum()),
        "tokens_trained": sums.get("tokens_trained", 0.0),
        "lag/mean": float(np.average(lags, weights=of)),
        "lag/max": float(lags.max()),
        "groups/zero_signal": mean(np.ptp(r) == 0.0 for r in rewards),
        "groups/size_one": mean(len(r) == 1 for r in rewards),
        "groups/mixed_phases": mean(g.mixed_phases for g in groups),
        **_successes(groups, sources),
        **_packing(sums, ranks),
    }


def mean(values: Iterable[float | np.floating[Any]]) -> float:
    return float(np.mean([*values]))


def _objective(sums: Mapping[str, float]) -> dict[str, float]:
    """Statistics of the objective, means over trained tokens; drift over the tokens that count for it."""
    matched = sums.get("drift_tokens", 0.0) or math.nan

    def per_token(name: str) -> float:
        return sums.get(name, math.nan) / (sums.get("tokens_trained", 0.0) or math.nan)

    return {
        "loss": sums.get("loss", math.nan),
        "advantage/mean": per_token("advantage"),
        "advantage/rms": math.sqrt(per_token("advantage_square")),
        "clip/share": per_token("clip"),
        "bounded/share": per_token("bounded"),
        "importance/mean": per_token("importance"),
        "importance/rms": math.sqrt(per_token("importance_square")),
        "importance/capped": per_token("importance_capped"),
        "importance/max": sums.get("importance_max", math.nan),
        "kl/generator": per_token("kl_generator"),
        "entropy/trained": per_token("entropy"),
        "drift": sums.get("drift", math.nan) / matched,
        "drift/tokens": matched,
    }


def _packing(sums: Mapping[str, float], ranks: int) -> dict[str, float]:
    """Share of padding in the processed tokens; relative excess FLOPs of the busiest rank over the mean."""
    busiest, processed = sums.get("packing/rank_flops_max", 0.0), sums.get("packing/processed")
    return {
        "padding/share": 1.0 - sums["packing/tokens"] / processed if processed else 0.0,
        "imbalance": busiest * ranks / sums["packing/flops"] - 1.0 if sums.get("packing/flops") else 0.0,
    }


def _successes(groups: Sequence[Group], sources: Mapping[str, RewardConfig]) -> dict[str, float]:
    """Mean success rate over prompts, and share of groups with a success; empty without successes."""
    counted = [g for g in groups if sources[g.source].success is not None]
    if not counted:
        return {}
    return {
        "success": mean(g.hits / g.size for g in counted),
        "groups/hit": mean(g.hits > 0 for g in counted),
    }


def _totals(group: Group, sources: Mapping[str, RewardConfig]) -> np.ndarray:
    """The weighted reward of each rollout (G_i,), by the weights of its source."""
    weights = sources[group.source].weights
    return np.array([total(r.rewards, weights) for r in group.rollouts])


def _by_source(groups: Sequence[Group], sources: Mapping[str, RewardConfig]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for source in sources:
        of_source = [g for g in groups if g.source == source]
        key = f"source/{source}"
        metrics[f"{key}/groups"] = len(of_source)
        if of_source:
            metrics[f"{key}/rollouts"] = sum(g.size for g in of_source)
            metrics[f"{key}/tokens"] = sum(g.tokens for g in of_source)
            metrics[f"{key}/reward"] = mean(_totals(g, sources).mean() for g in of_source)
            metrics |= {f"{key}/{name}": value for name, value in _successes(of_source, sources).items()}
    return metrics


def _over_prompts(groups: Sequence[Group], name: str) -> float:
    rewarded = [g for g in groups if name in g.rollouts[0].rewards]
    return mean(mean(r.rewards[name] for r in g.rollouts) for g in rewarded)


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
