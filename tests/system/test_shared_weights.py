"""`weights.transport: ipc` on the whole stack, without a GPU: two replicas copy memory that the learner
shares, and a learner and a replica are killed."""

import random
import signal
from collections.abc import Callable
from typing import Any

import pytest

from common.keys import Keys
from common.redis import connect
from common.telemetry import beats
from deploy.launch.redis_server import RedisServer
from tests.support.jsonl import lines

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(800)]
STEPS = 10


def test_replicas_hold_equal_weights_and_learner_and_replica_may_die(
    live_run: Callable[..., Any], redis_server: RedisServer
) -> None:
    client, parts = connect(redis_server.url), Keys("live").parts
    settings = {"weights.transport": "ipc", "generator.replicas": 2, "queue.url": redis_server.url}
    run = live_run(STEPS, **settings)
    seen: dict[int, dict[int, str]] = {}

    def both_hold_one_version() -> bool:
        for replica in beats(client.hgetall(parts), "generator"):
            if replica["checksum"]:
                seen.setdefault(replica["version"], {})[replica["pid"]] = replica["checksum"]
        return any(len(held) >= 2 for held in seen.values())

    run.wait_for(both_hold_one_version, "version that two replicas hold")
    run.until(3)
    # A learner that stands still while it may be filling the buffer, and then dies there.
    [learner] = run.part("learner")
    learner.send_signal(signal.SIGSTOP)
    learner.send_signal(signal.SIGKILL)
    run.until(5)
    run.kill("generator", random.Random(0))
    run.finish()
    both_hold_one_version()
    run.assert_exact()
    assert all(len(set(held.values())) == 1 for held in seen.values()), seen
    assert "hold different weights" not in run.said()
    steps = lines(run.run / "steps.jsonl")
    assert all(s["drift"] < 1e-4 for s in steps if "drift" in s)
    assert any("drift" in s for s in steps[1:])
    assert max(g["version_max"] for g in lines(run.run / "groups.jsonl")) >= 1
