"""The objects with which one rank trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import redis

from hora_rl.common.config import Config
from hora_rl.common.live.telemetry import Heartbeat
from hora_rl.learner.checkpoint import Checkpoints
from hora_rl.learner.drift import Drift
from hora_rl.learner.engine import Engine
from hora_rl.learner.feed import Planner, Reader
from hora_rl.learner.records import Records
from hora_rl.learner.shared_card import SharedCard
from hora_rl.learner.weights.publisher import Publisher


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
    heart: Heartbeat
    drift: Drift
    card: SharedCard
    published: int = 0  # newest version that replicas can get; repeated steps below it are not published
    republished: int = 0  # how often rank 0 has asked all ranks to publish again
