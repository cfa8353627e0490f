"""A coordinator on Serve whose data cannot be used: a learner elsewhere learns why, instead of waiting for a
plan."""

import pytest
from ray import serve

from hora_rl.actors.coordinator.deployment import Coordinator
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from tests.support.local_serve import local_serve
from tests.support.synthetic_run import config_of

pytestmark = pytest.mark.system
OLD = b"what the one before gave up for"


def test_the_reason_why_a_run_does_not_begin_is_left_and_one_that_has_begun_is_not_ended(redis_url, tmp_path):
    client = connect(redis_url)
    with local_serve():
        for run, begun in (("no-data", False), ("begun", True)):
            config, keys = config_of(run, data={"path": str(tmp_path / "gone.jsonl")}), Keys(run)
            client.hset(keys.state, "error", OLD)
            if begun:  # another coordinator may be doing it
                client.hset(keys.plans, "0:0", "a plan")
            options = {"ray_actor_options": {"num_cpus": 0}}
            application = serve.deployment(Coordinator, name="coordinator", **options).bind(
                config.model_dump(mode="json"), redis_url, {}, None
            )
            with pytest.raises(RuntimeError):
                serve.run(application, name=run, route_prefix=None)
            reason = client.hget(keys.state, "error")
            assert (b"gone.jsonl" in reason, reason == OLD) == (not begun, begun)
