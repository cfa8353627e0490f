"""A coordinator on Serve whose data cannot be used: a learner elsewhere learns why, instead of waiting for a
plan."""

import pytest
from ray import serve

from actors.coordinator.deployment import Coordinator
from common.keys import Keys
from common.redis import connect
from deploy.launch.redis_server import RedisServer
from tests.support.local_serve import local_serve
from tests.support.synthetic_run import config_of

pytestmark = pytest.mark.system
OLD = b"what the one before gave up for"


def error_after(redis: RedisServer, begun: bool) -> bytes | None:
    """What stands in state.error after a coordinator that cannot start, of a run that has a plan or not; OLD
    was there before."""
    config, keys = config_of("no-data", data={"path": str(redis.folder / "gone.jsonl")}), Keys("no-data")
    with local_serve():
        client = connect(redis.url)
        client.hset(keys.state, "error", OLD)
        if begun:
            client.hset(keys.plans, "0:0", "a plan")
        options = {"ray_actor_options": {"num_cpus": 0}}
        application = serve.deployment(Coordinator, name="coordinator", **options).bind(
            config.model_dump(mode="json"), redis.url, {}, None
        )
        with pytest.raises(RuntimeError):
            serve.run(application, name="hora", route_prefix=None)
        return client.hget(keys.state, "error")


def test_the_reason_why_a_run_does_not_begin_is_left_where_every_view_finds_it(redis_server):
    reason = error_after(redis_server, begun=False)
    assert reason is not None
    assert b"gone.jsonl" in reason


def test_a_coordinator_that_cannot_start_does_not_end_a_run_that_another_one_may_be_doing(redis_server):
    assert error_after(redis_server, begun=True) == OLD
