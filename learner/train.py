"""The training loop: one optimizer step on one screen.

    plan (ledger) ─► read my groups ─► samples ─► rows ─► micro-batches ─► forward, backward, step
        ─► record ─► publish v+1
               └─► checkpoint ─► acknowledge

Runs on every rank, under Ray Train, torchrun or DeepSpeed's launcher. Needs Redis, and an initialised process
group if there are several ranks. Rank 0 plans, records and publishes.
"""

import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from hora_rl.common.config import Config
from hora_rl.common.errors import HoraError, RunError
from hora_rl.common.files import check_room
from hora_rl.common.live.redis import connect
from hora_rl.common.live.telemetry import STEPPING, Heartbeat
from hora_rl.common.moves import moved
from hora_rl.common.types import Group
from hora_rl.common.wire import encode_group
from hora_rl.learner.checkpoints.export import export
from hora_rl.learner.checkpoints.origin import candidate, is_candidate, is_missing
from hora_rl.learner.feed.reader import Planner, wait_while_held
from hora_rl.learner.model.engine import Update
from hora_rl.learner.model.flops import peak_flops
from hora_rl.learner.records.drift import ENOUGH
from hora_rl.learner.records.metrics import step_metrics
from hora_rl.learner.records.step_records import group_record
from hora_rl.learner.rows.batch import MicroBatch, measurable, micro_batches, samples_of
from hora_rl.learner.rows.estimator import estimator_of
from hora_rl.learner.rows.prefixes import rows_of
from hora_rl.learner.start import Parts, prepare
from hora_rl.learner.totals import gathered, sums_over_ranks

log = structlog.get_logger(__name__)
BAD_LOSSES = 3
"""Steps in a row without a finite loss that stop the run."""


def train(config: Config, redis_url: str, run_dir: Path, rank: int, world: int) -> None:
    """Train from the newest checkpoint (or the initial policy) to learner.steps, then export the model."""
    client = connect(redis_url, patient=True)
    heart = Heartbeat(client, config.run.name, f"learner/{rank}")
    try:
        parts, start = prepare(config, client, heart, run_dir, rank, world)
        _train(parts, start)
    except (OSError, RuntimeError) as error:
        if not isinstance(error, HoraError):
            check_room(run_dir)
        raise
    finally:
        heart.stop()


def _train(parts: Parts, start: int) -> None:
    config, run_dir, bad_in_a_row = parts.config, parts.run_dir, 0
    if config.generator.sleep != "none":  # a step would put the engines to sleep
        wait_while_held(parts.redis, config.run.name, parts.heart)
    _keep_candidate(parts, start)
    for step in range(start, config.learner.steps):
        update = train_step(parts, step)
        bad_in_a_row = bad_in_a_row + 1 if update.bad else 0
        if bad_in_a_row >= BAD_LOSSES:
            raise RunError(
                f"{bad_in_a_row} steps in a row had no finite loss; their batches are in "
                f"{run_dir / 'bad-steps'}"
            )
        _keep_candidate(parts, step + 1)
        last = step + 1 == config.learner.steps
        if last or (update.applied and (step + 1) % config.learner.checkpoint_every == 0):
            _acknowledge(parts, wait=True)  # the previous one, if still being written
            if parts.records is not None:
                parts.records.sync()
            parts.checkpoints.begin(parts.engine, step + 1)
        _acknowledge(parts, wait=last)
        if step == start:  # its weights are not published before
            wait_while_held(parts.redis, config.run.name, parts.heart)
    parts.publisher.close()
    parts.checkpoints.close()
    end = max(start, config.learner.steps)
    export(parts.engine, config, run_dir / "model", parts.rank, end, run_dir / "adapter")
    if parts.planner is not None:
        parts.planner.durable(config.learner.steps)  # the model is exported: no checkpoint is needed any more
    if parts.records is not None:
        parts.records.close()


def _acknowledge(parts: Parts, *, wait: bool) -> None:
    """When a checkpoint has become durable on every rank, drop the groups that no restart can need."""
    needed_from = parts.checkpoints.finished(wait=wait)
    if needed_from is not None and parts.planner is not None:
        parts.planner.durable(needed_from)


def _keep_candidate(parts: Parts, step: int) -> None:
    """Write the weights after `step` steps if their evaluation may find them best. A collective."""
    if not is_candidate(parts.config.learner, parts.config.evaluation.every, step):
        return
    if parts.engine.agree(int(is_missing(parts.run_dir, step))):
        export(parts.engine, parts.config, candidate(parts.run_dir, step), parts.rank, step)


def train_step(parts: Parts, step: int) -> Update:
    """Run one optimizer step, from weights of version `step` (the number of finished steps)."""
    config, began = parts.config, time.monotonic()
    waited = 0.0
    if parts.planner is not None:
        waited = parts.planner.plan(step, partial(_wait, parts, parts.planner, step))
    parts.heart.update(state=STEPPING, step=step)
    groups = parts.reader.read(step, partial(parts.publisher.follow_rank_0, step))
    estimator = estimator_of(config)
    if estimator.objective.normalisation == "token":
        tokens = sum(gathered(estimator.trained_tokens(groups)))
        estimator = replace(estimator, tokens=tokens)
    samples = samples_of(groups, estimator, config.rollout.prompts_per_batch, step)
    rows = rows_of(samples, config.learner.tokens_per_microbatch, parts.engine.sharing)
    micro, packing = micro_batches(rows, config.learner.tokens_per_microbatch, parts.engine.multiple)
    flops = parts.engine.shape.flops(rows)
    packing |= {"packing/flops": flops, "packing/rank_flops_max": flops}
    packing["packing/micro_batches_max"] = float(len(micro))
    fell_asleep = parts.card.acquire(
        step, lambda: parts.publisher.published, partial(parts.publisher.help_replicas, step)
    )
    update = parts.engine.step(micro, partial(_fresh, parts, step))
    if update.bad:
        _keep_for_inspection(parts, step, groups)
    sums = parts.drift.add(step, sums_over_ranks(update.sums | packing))
    parts.card.give()
    if step + 1 > parts.publisher.published:
        parts.publisher.publish(step + 1)
    seconds = time.monotonic() - began
    times = {"time/wait": waited, "time/forward_backward": update.seconds, "time/step": seconds}
    _record(parts, step, groups, update, sums, times | fell_asleep)
    return update


def _fresh(parts: Parts, step: int) -> MicroBatch | None:
    """Rollouts sampled on version `step` that arrived while step `step` was trained; only rank 0 has them."""
    if parts.planner is None:
        return None
    parts.planner.look()
    samples = measurable(parts.planner.kept.values(), step, ENOUGH)
    budget = parts.config.learner.tokens_per_microbatch
    rows = rows_of(samples, budget, parts.engine.sharing)
    micro, _ = micro_batches(rows, budget, parts.engine.multiple)
    return max(micro, key=lambda m: int(m.match.sum()), default=None)


def _keep_for_inspection(parts: Parts, step: int, groups: list[Group]) -> None:
    folder = parts.run_dir / "bad-steps" / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    for group in groups:
        (folder / f"{group.id.replace(':', '-')}.msgpack").write_bytes(encode_group(group))
    log.error("no finite loss: the step is skipped", step=step, batch=str(folder))


def _wait(parts: Parts, planner: Planner, step: int) -> None:
    missing, batch = planner.missing(step)
    parts.heart.update(state="waiting", step=step, missing=missing, batch=batch)
    parts.publisher.help_replicas(step)


def _record(
    parts: Parts,
    step: int,
    mine: list[Group],
    update: Update,
    sums: dict[str, float],
    times: dict[str, float],
) -> None:
    """Write the step to every record. `sums` are over all ranks, `mine` this rank's groups. A collective."""
    of_ranks = gathered([group_record(step, group, parts.config) for group in mine])
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
    if far := moved(parts.records.newest, known):
        log.warning(far)
    parts.records.step(step, [record for own in of_ranks for record in own], known, groups)
    parts.heart.update(state=STEPPING, step=step + 1)


def _mfu(parts: Parts, flops: float, seconds: float) -> float:
    """Model FLOPs of a step over the peak of the ranks' devices; NaN if the peak is unknown."""
    peak = peak_flops(parts.engine.device_name, parts.config.model.dtype)
    return flops / (max(1e-9, seconds) * peak * parts.world) if peak else math.nan
