"""The training loop: one optimizer step on one screen.

    plan (ledger) ─► read my groups ─► samples ─► rows ─► micro-batches ─► forward, backward, step
        ─► record ─► publish v+1
               └─► checkpoint ─► acknowledge

Runs on every rank; rank 0 plans, records and publishes. Needs Redis, and an initialised process group if
there are several ranks."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import redis
import structlog

from hora_rl.common.config import Config
from hora_rl.common.errors import HoraError, RunError
from hora_rl.common.files import check_room
from hora_rl.common.live.redis import connect
from hora_rl.common.live.telemetry import STEPPING, Heartbeat
from hora_rl.common.types import Group
from hora_rl.common.wire import encode_group
from hora_rl.learner.checkpoints.checkpoint import Checkpoints
from hora_rl.learner.checkpoints.export import export, export_candidate
from hora_rl.learner.feed.feed import Feed
from hora_rl.learner.feed.reader import wait_while_held
from hora_rl.learner.model.engine import Engine
from hora_rl.learner.records.recorder import Recorder
from hora_rl.learner.weights.publisher import Publisher, acquire_card, release_card

log = structlog.get_logger(__name__)
BAD_LOSSES = 3
"""Steps in a row without a finite loss that stop the run."""


def train(config: Config, redis_url: str, run_dir: Path, rank: int, world: int) -> None:
    """Train from the newest checkpoint (or the initial policy) to learner.steps, then export the model."""
    client = connect(redis_url, patient=True)
    heart = Heartbeat(client, config.run.name, f"learner/{rank}")
    try:
        heart.update(state="starting", waiting_for="the model to be loaded")
        engine = Engine(config, rank, world)
        _steps(config, client, engine, heart, run_dir)
    except (OSError, RuntimeError) as error:
        if not isinstance(error, HoraError):
            check_room(run_dir)
        raise
    finally:
        heart.stop()


def _steps(config: Config, client: redis.Redis, engine: Engine, heart: Heartbeat, run_dir: Path) -> None:
    heart.update(state="starting", waiting_for="the newest checkpoint to be verified and loaded")
    checkpoints = Checkpoints(config, run_dir, engine.rank, engine.world)
    start = checkpoints.restore(engine)
    _note(heart, checkpoints.refused, start, engine.unshared)
    publisher = Publisher(config, engine, client, run_dir, engine.rank)
    feed = Feed(config, client, engine, publisher, heart, start)
    recorder = Recorder(config, client, engine, run_dir, start)
    release_card(config.generator)
    heart.update(state="starting", waiting_for="the newest weights to be published")
    publisher.begin(start)
    if config.generator.sleep != "none":  # a step would put the engines to sleep
        wait_while_held(client, config.run.name, heart)
    export_candidate(engine, config, run_dir, start)
    bad_in_a_row = 0
    for step in range(start, config.learner.steps):
        began = time.monotonic()
        groups, waited = feed.groups(step)
        micro, packing = feed.micro_batches(groups, step)
        times = {
            "time/wait": waited,
            **acquire_card(config.generator, config.learner.wait_limit_s, heart, publisher, step),
        }
        update = engine.step(micro, partial(feed.fresh, step))
        sums = recorder.over_ranks(step, update.sums | packing)
        release_card(config.generator)
        if step + 1 > publisher.published:
            publisher.publish(step + 1)
        times |= {"time/step": time.monotonic() - began, "time/checkpoint": checkpoints.seconds}
        recorder.record(step, groups, feed.all_groups, update, sums, times | publisher.metrics)
        heart.update(state=STEPPING, step=step + 1)
        bad_in_a_row = bad_in_a_row + 1 if update.bad else 0
        if update.bad:
            _inspect(run_dir, step, groups, bad_in_a_row)
        export_candidate(engine, config, run_dir, step + 1)
        last = step + 1 == config.learner.steps
        if last or (update.applied and (step + 1) % config.learner.checkpoint_every == 0):
            _acknowledge(checkpoints, feed, wait=True)  # the previous one, if still being written
            recorder.sync()
            checkpoints.begin(engine, step + 1)
        _acknowledge(checkpoints, feed, wait=last)
        if step == start:  # its weights are not published before
            wait_while_held(client, config.run.name, heart)
    publisher.close()
    checkpoints.close()
    end = max(start, config.learner.steps)
    export(engine, config, run_dir / "model", engine.rank, end, run_dir / "adapter")
    feed.durable(config.learner.steps)  # the model is exported: no checkpoint is needed any more
    recorder.close()


def _acknowledge(checkpoints: Checkpoints, feed: Feed, *, wait: bool) -> None:
    """When a checkpoint has become durable on every rank, drop the groups that no restart can need."""
    needed_from = checkpoints.finished(wait=wait)
    if needed_from is not None:
        feed.durable(needed_from)


def _inspect(run_dir: Path, step: int, groups: Sequence[Group], bad_in_a_row: int) -> None:
    """Keep the batch of a step without a finite loss. Raises RunError after too many of them."""
    folder = run_dir / "bad-steps" / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    for group in groups:
        (folder / f"{group.id.replace(':', '-')}.msgpack").write_bytes(encode_group(group))
    log.error("no finite loss: the step is skipped", step=step, batch=str(folder))
    if bad_in_a_row >= BAD_LOSSES:
        raise RunError(
            f"{bad_in_a_row} steps in a row had no finite loss; their batches are in {folder.parent}"
        )


def _note(heart: Heartbeat, refused: list[str], start: int, unshared: str) -> None:
    """Show refused checkpoints, and why prompts are not shared, in every view."""
    notices = []
    if refused:
        notices.append(
            f"set aside as refused-step-*: {'; '.join(refused)}; the run continues after step {start}"
        )
    if unshared:
        notices.append(f"each rollout computes its prompt again: {unshared}")
    if notices:
        heart.note("; ".join(notices))
