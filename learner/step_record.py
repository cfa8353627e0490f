"""Writes a finished step to the records, trackers and live views."""

from __future__ import annotations

import math

import structlog

from hora_rl.common.live.telemetry import STEPPING
from hora_rl.common.types import Group
from hora_rl.learner.engine import Update
from hora_rl.learner.flops import peak_flops
from hora_rl.learner.metrics import step_metrics
from hora_rl.learner.parts import Parts
from hora_rl.learner.records import records_of

log = structlog.get_logger(__name__)


def record_step(
    parts: Parts,
    step: int,
    mine: list[Group],
    update: Update,
    sums: dict[str, float],
    times: dict[str, float],
) -> None:
    """Write the step to every record. `sums` are over all ranks, `mine` this rank's groups. A collective."""
    trained = records_of(step, mine, parts.config, parts.world)
    if parts.records is None:
        return
    groups = mine if parts.world == 1 else parts.reader.read_all(step)
    norm, rate = update.grad_norm, update.learning_rate
    metrics = step_metrics(
        step, groups, sums, parts.config, ranks=parts.world, grad_norm=norm, learning_rate=rate
    )
    metrics |= times | parts.publisher.metrics
    metrics["time/checkpoint"] = parts.checkpoints.seconds  # of an earlier step
    metrics["tokens_per_second"] = metrics["tokens"] / max(1e-9, times["time/forward_backward"])
    metrics["flops"] = parts.config.learner.objective.updates_per_batch * sums["packing/flops"]
    metrics["micro_batches"] = sums["packing/micro_batches_max"]
    metrics["mfu"] = _mfu(parts, metrics["flops"], times["time/forward_backward"])
    metrics["applied"] = float(update.applied)
    if metrics.get("drift", 0.0) > parts.config.weights.drift_alarm:
        found = {"drift": metrics["drift"], "tokens": metrics["drift/tokens"]}
        log.error("generator and learner disagree on the same weights", step=step, **found)
    metrics |= parts.records.idle()
    known = {k: v for k, v in metrics.items() if not math.isnan(v)}
    parts.records.step(step, trained, known, groups)
    parts.heart.update(state=STEPPING, step=step + 1)


def _mfu(parts: Parts, flops: float, seconds: float) -> float:
    """Model FLOPs of a step over the peak of the ranks' devices; NaN if the peak is unknown."""
    peak = peak_flops(parts.engine.device_name, parts.config.model.dtype)
    return flops / (max(1e-9, seconds) * peak * parts.world) if peak else math.nan
