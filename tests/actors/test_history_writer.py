"""Heartbeats of replicas that were replaced long ago are let go of; what views show stays."""

import json
import time
from pathlib import Path

from hora_rl.actors.coordinator.history_writer import FORGOTTEN_S, long_gone, write_sample
from hora_rl.common.live.redis import connect_async
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import heartbeat_now
from hora_rl.learner.records import Records
from tests.support.synthetic_run import SyntheticRun, config_of


def test_a_replica_that_is_long_gone_is_forgotten_and_a_learner_is_not() -> None:
    now = 10 * FORGOTTEN_S
    seen = {
        b"generator/new": now - 1,
        b"generator/old": now - FORGOTTEN_S - 1,
        b"environment/old": 0.0,
        b"verifier/silent": now - FORGOTTEN_S + 1,
        b"learner/0": 0.0,
        b"coordinator/old": 0.0,
    }
    parts = {name: json.dumps({"seen": at}).encode() for name, at in seen.items()}
    assert long_gone(parts, now) == [b"generator/old", b"environment/old"]


async def test_a_step_s_record_has_the_idle_share_of_generators(redis_url: str, tmp_path: Path) -> None:
    run = SyntheticRun(redis_url, config_of("looked-at"))
    records = Records(run.config, run.redis, tmp_path, 0)

    async def look(*running: int, paused: bool = False) -> None:
        run.redis.hset(run.keys.state, mapping=changed(paused=paused))
        for i, n in enumerate(running):
            heartbeat_now(run.redis, "looked-at", f"generator/{i}", {"running": n, "waiting": 0})
        run.redis.delete(f"{run.keys.history}:lock")

        async with connect_async(redis_url) as client:
            per_step = run.config.rollout.prompts_per_batch
            await write_sample(client, run.config.run.name, per_step, time.time())

    await look(0, 0)
    assert records.idle() == {}, "there was no step before"
    await look(3, 0)
    await look(1, 2)
    await look(0, 0, paused=True)
    assert records.idle() == {"generators/idle": 0.25}
    assert records.idle() == {}, "nobody has looked since"
    records.close()
