"""Generator and learner take turns: the engine sleeps while the learner steps. A learner and a replica that
are killed in such a step leave nothing asleep."""

import json
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from common.keys import Keys
from common.redis import connect
from common.telemetry import LEADER, STEPPING, beats
from deploy.launch.redis_server import RedisServer
from tests.support.jsonl import lines

pytestmark = [pytest.mark.system, pytest.mark.timeout(800)]
STEPS = 6


def test_parts_take_turns_and_each_may_die_in_the_other_s(
    live_run: Callable[..., Any], redis_server: RedisServer
) -> None:
    client, parts = connect(redis_server.url), Keys("live").parts
    run = live_run(
        STEPS,
        **{
            "generator.sleep": "rehearsal",
            "rollout.max_staleness": 0,
            "rollout.group_size": 16,
            "learner.objective.updates_per_batch": 2,
            "queue.url": redis_server.url,
        },
    )

    def asleep_in_a_step() -> bool:
        said = json.loads(client.hget(parts, LEADER) or "{}")
        replicas = beats(client.hgetall(parts), "generator")
        awake = [r for r in replicas if r["seen"] > time.time() - 3 and r["state"] != "asleep"]
        asleep = [r for r in replicas if r["seen"] > time.time() - 1.5 and r["state"] == "asleep"]
        return bool(said.get("state") == STEPPING and asleep and not awake)

    for done, part in ((1, "learner"), (3, "generator")):
        run.until(done)
        run.wait_for(asleep_in_a_step, "step with a generator asleep")
        for victim in run.part(part):
            victim.send_signal(signal.SIGKILL)
    run.finish()
    run.assert_exact()
    steps = lines(run.run / "steps.jsonl")
    assert all(s["time/sleep"] > 0 for s in steps)
    assert all(s["drift"] < 1e-4 for s in steps if "drift" in s)
    assert any("drift" in s for s in steps[1:]), "on weights that woke the engine"
    for group in lines(run.run / "groups.jsonl"):
        assert group["version_min"] == group["version_max"] == group["batch"]
