"""The training loop: one optimizer step on one screen.

    plan (ledger) ─► read my groups ─► samples ─► rows ─► micro-batches ─► forward, backward, step
        ─► record ─► publish v+1
               └─► checkpoint ─► acknowledge

Runs on every rank, under Ray Train, torchrun or DeepSpeed's launcher alike: it needs an initialised process
group when there is more than one rank, and Redis. Rank 0 plans, records and publishes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis
import structlog
import torch

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import fingerprint, load_tokenizer
from hora_rl.common.errors import HoraError, RunError
from hora_rl.common.files import check_room, replace_text
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.state import changed, read_state
from hora_rl.common.live.telemetry import STEPPING, Heart
from hora_rl.common.types import Group
from hora_rl.common.weights.versions import advance, available
from hora_rl.learner.admission import Vocabulary
from hora_rl.learner.batch import MicroBatch, measurable, micro_batches, samples_at
from hora_rl.learner.candidates import candidate, is_candidate, is_missing
from hora_rl.learner.checkpoint import Checkpoints
from hora_rl.learner.drift import ENOUGH, Drift
from hora_rl.learner.engine import Engine, Update
from hora_rl.learner.estimator import estimator_of
from hora_rl.learner.export import export
from hora_rl.learner.extensions import compile_extensions
from hora_rl.learner.flops import peak_flops
from hora_rl.learner.metrics import step_metrics
from hora_rl.learner.prefixes import rows_of
from hora_rl.learner.records import Records, records_of
from hora_rl.learner.rollout_writer import RolloutFiles
from hora_rl.learner.shared_card import SharedCard
from hora_rl.learner.steps import Planner, Reader, wait_while_held
from hora_rl.learner.totals import Totals, over_ranks
from hora_rl.learner.weights.broadcast import BroadcastClient
from hora_rl.learner.weights.publisher import Publisher

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Parts:
    """The objects of one rank; only rank 0 has `planner` and `records`."""

    config: Config
    redis: redis.Redis
    engine: Engine
    reader: Reader
    publisher: Publisher
    checkpoints: Checkpoints
    planner: Planner | None
    records: Records | None
    run_dir: Path
    rank: int
    world: int
    heart: Heart
    drift: Drift
    card: SharedCard
    published: int = 0  # newest version that replicas can get; repeated steps below it are not published
    republished: int = 0  # how often rank 0 has asked all ranks to publish again


def train(config: Config, redis_url: str, run_dir: Path, rank: int, world: int) -> None:
    """Train from the newest checkpoint (or the initial policy) to learner.steps, then export the model."""
    client = connect(redis_url, patient=True)
    heart = Heart(client, config.run.name, f"learner/{rank}")
    try:
        parts, start = _prepare(config, client, heart, run_dir, rank, world)
        _train(parts, start)
    except (OSError, RuntimeError) as error:
        if not isinstance(error, HoraError):
            check_room(run_dir)
        raise
    finally:
        heart.stop()


def _train(parts: Parts, start: int) -> None:
    config, run_dir, bad_in_a_row = parts.config, parts.run_dir, 0
    if config.generator.sleep != "none":  # a step would have the engines sleep
        wait_while_held(parts.redis, config.run.name, parts.heart)
    _keep_candidate(parts, start)
    for step in range(start, config.learner.steps):
        update = train_step(parts, step)
        bad_in_a_row = bad_in_a_row + 1 if update.bad else 0
        if bad_in_a_row >= config.learner.max_bad_losses:
            raise RunError(
                f"{bad_in_a_row} steps in a row had no finite loss; their batches are in "
                f"{run_dir / 'bad-steps'}"
            )
        _keep_candidate(parts, step + 1)
        last = step + 1 == config.learner.steps
        if last or (update.applied and (step + 1) % config.learner.checkpoint_every == 0):
            _acknowledge(parts, wait=True)  # the one before, where it is still being written
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
    """Let go of the groups that a checkpoint makes needless, when one has become durable on every rank."""
    needed_from = parts.checkpoints.finished(wait=wait)
    if needed_from is not None and parts.planner is not None:
        parts.planner.durable(needed_from)


def _keep_candidate(parts: Parts, step: int) -> None:
    """Write the weights after `step` steps, in case their evaluation finds them the best. A collective."""
    if not is_candidate(parts.config, step):
        return
    if parts.engine.agree(int(is_missing(parts.run_dir, step))):
        export(parts.engine, parts.config, candidate(parts.run_dir, step), parts.rank, step)


def train_step(parts: Parts, step: int) -> Update:
    """`step` is the number of steps done; the step starts from weights of version `step`."""
    config, began = parts.config, time.monotonic()
    waited = 0.0
    if parts.planner is not None:
        waited = parts.planner.plan(step, partial(_wait, parts, parts.planner, step))
    _beat(parts, step, STEPPING)
    groups = parts.reader.read(step, partial(_publish_with_rank_0, parts, step))
    samples = samples_at(config, groups, step, totals_at(parts, groups))
    rows = rows_of(samples, config.learner.tokens_per_microbatch, parts.engine.sharing)
    micro, packing = micro_batches(rows, config.learner.tokens_per_microbatch)
    flops = parts.engine.shape.flops(rows)
    packing |= {"packing/flops": flops, "packing/rank_flops_max": flops}
    packing["packing/micro_batches_max"] = float(len(micro))
    fell_asleep = parts.card.take(step, lambda: parts.published, partial(_help_replicas, parts, step))
    update = parts.engine.step(micro, partial(_fresh, parts, step))
    if update.bad:
        _keep_for_inspection(parts, step, groups)
    sums = parts.drift.add(step, _over_ranks(parts, {**update.sums, **packing}))
    parts.card.give()
    if step + 1 > parts.published:
        parts.publisher.publish(step + 1)
        parts.published = step + 1
    seconds = time.monotonic() - began
    times = {"time/wait": waited, "time/forward_backward": update.seconds, "time/step": seconds}
    _record(parts, step, groups, update, sums, times | fell_asleep)
    return update


def _record(
    parts: Parts,
    step: int,
    mine: list[Group],
    update: Update,
    sums: dict[str, float],
    times: dict[str, float],
) -> None:
    trained = records_of(step, mine, parts.config, parts.world)
    if parts.records is None:
        return
    groups = mine if parts.world == 1 else parts.reader.read_all(step)
    timing = parts.publisher.timing
    metrics = step_metrics(
        step,
        groups,
        sums,
        parts.config,
        ranks=parts.world,
        grad_norm=update.grad_norm,
        learning_rate=update.learning_rate,
    )
    metrics |= times | {
        "time/gather": timing.gather,
        "time/transfer": timing.transfer,
        "time/load": timing.load,
        "time/checksum": timing.checksum,
        "time/checkpoint": parts.checkpoints.seconds,  # of the newest, which was after an earlier step
        "weights/bytes": float(timing.bytes),
    }
    metrics["tokens_per_second"] = metrics["tokens"] / max(1e-9, times["time/forward_backward"])
    metrics["flops"] = parts.config.learner.objective.updates_per_batch * sums["packing/flops"]
    metrics["micro_batches"] = sums["packing/micro_batches_max"]
    metrics["mfu"] = _mfu(parts, metrics["flops"], times["time/forward_backward"])
    metrics["applied"] = float(update.applied)
    if metrics.get("drift", 0.0) > parts.config.weights.drift_alarm:
        log.error(
            "generator and learner disagree on the same weights",
            step=step,
            drift=metrics["drift"],
            tokens=metrics["drift/tokens"],
        )
    metrics |= parts.records.idle()
    known = {k: v for k, v in metrics.items() if not math.isnan(v)}
    parts.records.step(step, trained, known, groups)
    _beat(parts, step + 1, STEPPING)


def _fresh(parts: Parts, step: int) -> MicroBatch | None:
    """Rollouts sampled on version `step` that arrived while step `step` was trained; rank 0 has them."""
    if parts.planner is None:
        return None
    parts.planner.look()
    samples = measurable(parts.planner.kept.values(), step, ENOUGH)
    budget = parts.config.learner.tokens_per_microbatch
    micro, _ = micro_batches(rows_of(samples, budget, parts.engine.sharing), budget)
    return max(micro, key=lambda m: int(m.match.sum()), default=None)


def totals_at(parts: Parts, groups: list[Group]) -> Totals | None:
    """Sums over the groups of all ranks, where the objective needs them and there are several ranks; then a
    collective."""
    if parts.world == 1 or not parts.config.learner.objective.over_batch:
        return None
    return over_ranks(estimator_of(parts.config).sums(groups), parts.engine.device)


def _mfu(parts: Parts, flops: float, seconds: float) -> float:
    """Model FLOPs of a step over the peak of the ranks' devices; NaN where the peak is unknown."""
    peak = peak_flops(parts.engine.device_name, parts.config.model.dtype)
    return flops / (max(1e-9, seconds) * peak * parts.world) if peak else math.nan


def _prepare(
    config: Config, client: redis.Redis, heart: Heart, run_dir: Path, rank: int, world: int
) -> tuple[Parts, int]:

    def starting(waits_for: str) -> None:
        heart.tell(state="starting", waiting_for=waits_for)

    compile_extensions(starting)
    starting("the model to be loaded")
    engine = Engine(config, rank, world)
    starting("the newest checkpoint to be verified and loaded")
    checkpoints = Checkpoints(config, run_dir, rank, world)
    start = checkpoints.restore(engine)
    if notices := [*_refused(checkpoints, start), *_unshared(engine)]:
        heart.note("; ".join(notices))
    publisher = Publisher(config, engine, client, run_dir, rank)
    planner, records = (
        _plan_and_records(config, client, engine, run_dir, start) if rank == 0 else (None, None)
    )
    reader = Reader(client, config, rank, world, planner.kept if planner else {})
    parts = Parts(
        config,
        client,
        engine,
        reader,
        publisher,
        checkpoints,
        planner,
        records,
        run_dir,
        rank,
        world,
        heart,
        Drift(config.weights.drift_limit),
        SharedCard(config, heart, BroadcastClient(config.weights.update_limit_s)),
    )
    parts.card.give()
    starting("the newest weights to be published")
    _publish_newest(parts, start)
    return parts, start


def _plan_and_records(
    config: Config, client: redis.Redis, engine: Engine, run_dir: Path, start: int
) -> tuple[Planner, Records]:
    """What rank 0 has beside its share of the steps."""
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    budget = config.learner.tokens_per_microbatch

    def cost(group: Group) -> float:
        return engine.shape.flops(rows_of(samples_at(config, [group], start), budget, engine.sharing))

    planner = Planner(
        client,
        config,
        Vocabulary(fingerprint(tokenizer), engine.hf.config.get_text_config().vocab_size),
        start,
        # In millions of FLOPs, to be short in the ledger. Groups without signal cost nothing.
        lambda group: math.ceil(cost(group) / 1e6),
    )
    rollouts = RolloutFiles(config, tokenizer, run_dir, start)
    device, ranks = engine.device_name, torch.distributed.get_world_size()
    replace_text(run_dir / "learner.json", json.dumps({"device": device, "ranks": ranks}))
    begun = changed(step=start, folder=str(run_dir.resolve()), device=device)
    client.hset(Keys(config.run.name).state, mapping=begun)
    return planner, Records(config, client, run_dir, start, rollouts)


def _publish_newest(parts: Parts, start: int) -> None:
    """Replicas get the weights after `start` steps, if they do not hold them. A collective."""
    config, client, agree = parts.config, parts.redis, parts.engine.agree
    parts.published = agree(available(client, config) if parts.rank == 0 else 0)
    parts.republished = agree(read_state(client, config.run.name).republished)
    if parts.rank == 0:
        # The learner before this one may have died between announcing a version and recording that.
        advance(client, config.run.name, parts.published)
    if parts.published < start:
        parts.publisher.publish(start)
        parts.publisher.wait()
        parts.published = start


def _refused(checkpoints: Checkpoints, start: int) -> Iterator[str]:
    if checkpoints.refused:
        yield (
            f"set aside as refused-step-*: {'; '.join(checkpoints.refused)}; the run continues after step "
            f"{start}"
        )


def _unshared(engine: Engine) -> Iterator[str]:
    if engine.unshared:
        yield f"each rollout computes its prompt again: {engine.unshared}"


def _over_ranks(parts: Parts, sums: dict[str, float]) -> dict[str, float]:
    if parts.world == 1:
        return sums
    names = sorted(sums)
    tensor = torch.tensor([sums[n] for n in names], dtype=torch.float64, device=parts.engine.device)
    top = tensor.clone()
    torch.distributed.all_reduce(tensor)
    torch.distributed.all_reduce(top, op=torch.distributed.ReduceOp.MAX)
    return {n: float(m if n.endswith("max") else s) for n, s, m in zip(names, tensor, top, strict=True)}


def _wait(parts: Parts, planner: Planner, step: int) -> None:
    missing, batch = planner.missing(step)
    parts.heart.tell(state="waiting", step=step, missing=missing, batch=batch)
    _help_replicas(parts, step)


def _help_replicas(parts: Parts, step: int) -> None:
    """Bring the weights of version `step` to replicas that lack them. Rank 0 alone calls it."""
    parts.publisher.refresh()
    if parts.publisher.is_damaged():
        log.error("a replica found the newest weights damaged; publishing them again", version=step)
        # A number, not an increment: a command whose answer is lost is sent again.
        number = parts.republished + 1
        parts.redis.hset(Keys(parts.config.run.name).state, "republished", str(number))
        _publish_again(parts, step, number)


def _publish_with_rank_0(parts: Parts, step: int) -> None:
    """Publish again together with rank 0, which waits for groups of step `step` too: gathering is a
    collective."""
    number = read_state(parts.redis, parts.config.run.name).republished
    if number > parts.republished:
        _publish_again(parts, step, number)


def _publish_again(parts: Parts, step: int, number: int) -> None:
    parts.republished = number
    parts.publisher.publish(step)
    parts.publisher.wait()
    parts.published = step  # a newer version is published again when its step is repeated


def _beat(parts: Parts, step: int, state: str) -> None:
    parts.heart.tell(state=state, step=step)


def _keep_for_inspection(parts: Parts, step: int, groups: list[Group]) -> None:
    from hora_rl.common.wire import encode_group

    folder = parts.run_dir / "bad-steps" / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    for group in groups:
        (folder / f"{group.id.replace(':', '-')}.msgpack").write_bytes(encode_group(group))
    log.error("no finite loss: the step is skipped", step=step, batch=str(folder))
