"""Whether the application that is served is that of the run to be trained."""

from typing import Any

import pytest

from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import heartbeat_now
from hora_rl.common.load import load
from hora_rl.deploy.launch import cluster
from hora_rl.deploy.launch.cluster import check_agreement


def served(url: str, name: str) -> tuple[Any, Config]:
    """Redis and configuration of a run whose coordinator has written its own."""
    client, config = connect(url), load("tiny", [f"run.name={name}"])
    client.set(Keys(name).config, config.model_dump_json())
    return client, config


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SETTLE_S", 0.0)
    monkeypatch.setattr(cluster, "WAIT_S", 0.0)


def test_what_an_earlier_coordinator_left_does_not_pass_for_one_at_work(redis_url: str) -> None:
    client, config = served(redis_url, "left")
    with pytest.raises(RunError, match="no coordinator of run 'left' writes to this Redis"):
        check_agreement(config, redis_url)
    heartbeat_now(client, "left", "coordinator/a", {"state": "working"})
    check_agreement(config, redis_url)


def test_a_coordinator_of_other_settings_is_named_with_the_key(redis_url: str) -> None:
    client, _ = served(redis_url, "other")
    heartbeat_now(client, "other", "coordinator/a", {"state": "working"})
    with pytest.raises(ConfigError, match=r"run\.seed"):
        check_agreement(load("tiny", ["run.name=other", "run.seed=7"]), redis_url)


def test_a_learner_that_starts_has_a_coordinator_that_gave_up_start_again(redis_url: str) -> None:
    client, config = served(redis_url, "again")
    state = Keys("again").state
    client.hset(state, mapping=changed(error="the reward's service was away"))
    with pytest.raises(RunError, match="the coordinator stopped: the reward's service was away"):
        check_agreement(config, redis_url)
    assert client.hexists(state, "error"), "nobody is there to start again: its reason stays"
    heartbeat_now(client, "again", "coordinator/a", {"state": "working"})
    check_agreement(config, redis_url)
    assert not client.hexists(state, "error")
