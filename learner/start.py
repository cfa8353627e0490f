"""The objects with which one rank trains, and how they are made."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis
import torch

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import fingerprint, load_tokenizer
from hora_rl.common.files import replace_text
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import Heartbeat
from hora_rl.common.types import Group
from hora_rl.common.weights.replica_calls import BroadcastClient
from hora_rl.learner.checkpoints.checkpoint import Checkpoints
from hora_rl.learner.feed.admission import Vocabulary
from hora_rl.learner.feed.reader import Planner, Reader
from hora_rl.learner.model.engine import Engine
from hora_rl.learner.records.drift import Drift
from hora_rl.learner.records.rollout_writer import RolloutFiles
from hora_rl.learner.records.step_records import Records
from hora_rl.learner.rows.batch import samples_of
from hora_rl.learner.rows.estimator import estimator_of
from hora_rl.learner.rows.prefixes import rows_of
from hora_rl.learner.weights.publisher import Publisher
from hora_rl.learner.weights.shared_card import SharedCard


@dataclass(frozen=True, slots=True)
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
    heart: Heartbeat
    drift: Drift
    card: SharedCard


def prepare(
    config: Config, client: redis.Redis, heart: Heartbeat, run_dir: Path, rank: int, world: int
) -> tuple[Parts, int]:
    """Load the model and its newest checkpoint, and publish the weights if replicas lack them. Also returns
    the step to start from. A collective."""

    def starting(waits_for: str) -> None:
        heart.update(state="starting", waiting_for=waits_for)

    starting("the model to be loaded")
    engine = Engine(config, rank, world)
    starting("the newest checkpoint to be verified and loaded")
    checkpoints = Checkpoints(config, run_dir, rank, world)
    start = checkpoints.restore(engine)
    if notices := "; ".join(_notices(checkpoints.refused, start, engine.unshared)):
        heart.note(notices)
    publisher = Publisher(config, engine, client, run_dir, rank)
    planner, records = (
        _plan_and_records(config, client, engine, run_dir, start) if rank == 0 else (None, None)
    )
    reader = Reader(client, config, rank, world, planner.kept if planner else {})
    drift = Drift(config.weights.drift_limit)
    card = SharedCard(config, heart, BroadcastClient(config.weights.update_limit_s))
    objects = (engine, reader, publisher, checkpoints, planner, records)
    parts = Parts(config, client, *objects, run_dir, rank, world, heart, drift, card)
    card.give()
    starting("the newest weights to be published")
    publisher.begin(start)
    return parts, start


def _plan_and_records(
    config: Config, client: redis.Redis, engine: Engine, run_dir: Path, start: int
) -> tuple[Planner, Records]:
    """Build rank 0's planner and records."""
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    budget, per_batch = config.learner.tokens_per_microbatch, config.rollout.prompts_per_batch
    estimator = estimator_of(config)

    def cost(group: Group) -> float:
        samples = samples_of([group], estimator, per_batch, start)
        return engine.shape.flops(rows_of(samples, budget, engine.sharing))

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


def _notices(refused: list[str], start: int, unshared: str) -> Iterator[str]:
    if refused:
        yield f"set aside as refused-step-*: {'; '.join(refused)}; the run continues after step {start}"
    if unshared:
        yield f"each rollout computes its prompt again: {unshared}"
