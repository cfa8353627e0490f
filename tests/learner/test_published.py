"""A learner that comes after another says which version is out, or nobody would."""

import os
from pathlib import Path

import pytest

from hora_rl.common.errors import DamagedWeights
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.telemetry import heartbeat_now
from hora_rl.common.weights.versions import check_file, mark_of, newest_now
from hora_rl.deploy.machine.redis_server import RedisServer
from tests.support.filling import fill
from tests.support.ports import until
from tests.support.real_learner import finish, recorded, small_run, start

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(280)]
GAMMA = 2


def test_a_version_that_was_announced_and_not_counted_is_counted_by_the_next_learner(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    config = small_run(tmp_path, GAMMA, "learner.steps=1", "rollout.max_staleness=0")
    client, state = connect(redis_server.url), Keys("r").state
    fill(config, redis_server, recorded(config, [[9, 12]] * GAMMA, per_batch=GAMMA))
    finish(start(config, redis_server, tmp_path), tmp_path)
    assert client.hget(state, "version") == b"1"
    client.hset(state, "version", 0)  # as when it dies while the replicas load what was announced
    finish(start(config, redis_server, tmp_path), tmp_path)
    assert client.hget(state, "version") == b"1"


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 3)])
def test_weights_that_a_replica_found_damaged_are_published_again_while_their_batch_is_waited_for(
    tmp_path: Path, ranks: int, stage: int, redis_server: RedisServer
) -> None:
    """Without staleness nobody could sample the next batch, and no step could make another version."""
    settings = ("rollout.max_staleness=0", f"learner.workers={ranks}", f"learner.zero_stage={stage}")
    config = small_run(tmp_path, GAMMA, *settings, "learner.steps=2")
    client, groups = connect(redis_server.url), recorded(config, [[9, 12]] * 2 * GAMMA, per_batch=GAMMA)
    fill(config, redis_server, groups[:GAMMA])
    learner = start(config, redis_server, tmp_path)
    until(lambda: client.hget(Keys("r").state, "version") == b"1", limit_s=200, process=learner)
    manifest = newest_now(client, "r")
    assert manifest is not None
    os.truncate(manifest.path, 1000)
    with pytest.raises(DamagedWeights):
        check_file(manifest.update_info())
    found = {"version": 0, "damaged": (1, mark_of(manifest.path))}
    heartbeat_now(client, "r", "generator/a", found)
    until(lambda: os.path.getsize(manifest.path) == manifest.bytes, limit_s=200, process=learner)
    again = newest_now(client, "r")
    assert again is not None
    assert (again.version, again.digest) == (1, manifest.digest)
    check_file(again.update_info()).close()
    fill(config, redis_server, groups[GAMMA:])
    finish(learner, tmp_path)
    assert client.hget(Keys("r").state, "republished") == b"1", "once for each file that is found damaged"
