"""A coordinator on Serve whose data cannot be used: a learner elsewhere learns why, instead of waiting for a plan."""

import pytest
from ray import serve

from actors.coordinator import Coordinator
from benchmarks.synthetic_run import config_of
from common.keys import Keys
from common.redis import connect
from deploy.redis_server import RedisServer
from tests.system.local_serve import local_serve

pytestmark = pytest.mark.system


def test_the_reason_why_a_coordinator_does_not_start_is_left_where_every_view_finds_it(tmp_path):
    config = config_of("no-data", data={"path": str(tmp_path / "gone.jsonl")})
    with RedisServer(tmp_path / "redis") as server, local_serve():
        options = {"ray_actor_options": {"num_cpus": 0}}
        application = serve.deployment(Coordinator, name="coordinator", **options).bind(
            config.model_dump(mode="json"), server.url, None, None
        )
        with pytest.raises(RuntimeError):
            serve.run(application, name="hora", route_prefix=None)
        reason = connect(server.url).hget(Keys("no-data").state, "error")
    assert reason is not None
    assert b"gone.jsonl" in reason
