"""A learner that comes after another says which version is out, or nobody would."""

from pathlib import Path

import pytest

from common.keys import Keys
from common.load import load
from common.redis import connect
from deploy.launch.redis_server import RedisServer
from tests.support.filling import fill
from tests.support.real_learner import finish, recorded, start

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]
GAMMA = 2


def test_a_version_that_was_announced_and_not_counted_is_counted_by_the_next_learner(tmp_path: Path) -> None:
    settings = [
        "run.name=r",
        f"run.folder={tmp_path}",
        f"rollout.prompts_per_batch={GAMMA}",
        "rollout.shards=1",
    ]
    config = load("tiny", [*settings, "learner.steps=1", "rollout.max_staleness=0"])
    with RedisServer(tmp_path / "redis") as server:
        client, state = connect(server.url), Keys("r").state
        fill(config, server, recorded(config, [[9, 12]] * GAMMA, per_batch=GAMMA))
        finish(start(config, server, tmp_path), tmp_path)
        assert client.hget(state, "version") == b"1"
        client.hset(state, "version", 0)  # as when it dies while the replicas load what was announced
        finish(start(config, server, tmp_path), tmp_path)
        assert client.hget(state, "version") == b"1"
