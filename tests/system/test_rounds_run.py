"""A whole run on the real stack whose Phase B goes in four rounds that stop at a hit, and whose coordinator
is killed."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from allocator import Session
from common.keys import Keys
from common.redis import connect
from deploy.launch.redis_server import RedisServer
from tests.support.held import rollouts_held

STEPS, PROMPTS, G, G0, SHARDS, ROUNDS = 10, 8, 10, 2, 2, 4
SETTINGS = {
    "rollout.prompts_per_batch": PROMPTS,
    "rollout.group_size": G,
    "rollout.pre_rollouts": G0,
    "rollout.shards": SHARDS,
    "allocation.rounds": ROUNDS,
    "allocation.stop": "hit",
}

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]


def session_of(report: Mapping[str, Any]) -> Session:
    n = len(report["groups"])
    return Session(n, n * (G - G0), rounds=ROUNDS, stop="hit")


def test_a_run_in_rounds_keeps_every_promise_when_its_coordinator_dies(
    live_run: Callable[..., Any],
) -> None:
    run = live_run(STEPS, **SETTINGS)
    run.until(2)
    run.kill("coordinator", random.Random(0))
    run.finish()
    run.assert_exact()
    with RedisServer(run.run / "redis") as server:
        client, keys = connect(server.url), Keys("live")
        reports = [json.loads(text) for text in client.hvals(keys.shards)]
        assert client.hlen(keys.plans) == STEPS * SHARDS * ROUNDS
        assert client.xlen(keys.dead) == client.xlen(keys.groups) == 0
        assert rollouts_held(client, "live") == set()
    assert len(reports) == STEPS * SHARDS
    for report in reports:
        session, trials = session_of(report), G0
        for division in report["rounds"]:
            session.tell(division["successes"], trials)
            assert division["extra"] == session.ask().tolist()
            trials = division["extra"]
    records = [json.loads(line) for line in (run.run / "groups.jsonl").read_text().splitlines()]
    assert all(sum(r["rounds"]) == r["extra"] == r["size"] - G0 for r in records)
    assert any(len(r["rounds"]) == ROUNDS for r in records)
    assert any(r["hits"] and not r["extra"] for r in records), (
        "with a hit in Phase A a prompt may need no more"
    )
