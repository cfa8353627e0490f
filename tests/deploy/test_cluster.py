"""Whether the application that is served is that of the run to be trained. Which of its parts find no place
is told with the numbers, and nothing is told while parts only take their time."""

from pathlib import Path
from typing import Any

import pytest
import ray
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.state import changed, read_state
from hora_rl.common.live.telemetry import heartbeat_now
from hora_rl.common.load import load
from hora_rl.deploy.launch import cluster, placement
from hora_rl.deploy.launch.cluster import check_agreement
from hora_rl.deploy.launch.evaluation import TrainingRun
from hora_rl.deploy.launch.placement import Share, reports_unplaced, unplaced
from tests.support.ports import until


def shares(*, generators: int, up: int, ranks_up: int = 1, cpus: float = 0.5) -> list[Share]:
    return [
        Share("generator", generators, up, {"CPU": cpus, "GPU": 0.0}),
        Share("verifier", 1, 1, {"CPU": 0.25, "GPU": 0.0}),
        Share("coordinator", 1, 1, {"CPU": 0.25, "GPU": 0.0}),
        Share("learner rank", 1, ranks_up, {"CPU": 1.0, "GPU": 0.0}),
    ]


def test_what_a_cluster_cannot_hold_is_told_with_both_numbers_and_no_more() -> None:
    said = unplaced(shares(generators=2, up=1), {"CPU": 2.0})
    assert said.startswith("no place for 1 of 2 generator: 2.5 CPUs are reserved")
    assert "the cluster has 2;" in said
    said = unplaced(shares(generators=2, up=2, ranks_up=0), {"CPU": 2.0})
    assert said.startswith("no place for 1 of 1 learner rank")
    assert unplaced(shares(generators=1, up=0, ranks_up=0), {"CPU": 2.0}) == ""
    assert unplaced(shares(generators=2, up=2, cpus=0.9), {"CPU": 2.0}) == "", "everything runs"
    both = [
        Share("generator", 2, 1, {"CPU": 0.5, "GPU": 1.0}),
        Share("learner rank", 2, 2, {"CPU": 1.0, "GPU": 1.0}),
    ]
    assert "4 GPUs are reserved" in unplaced(both, {"CPU": 16.0, "GPU": 3.0})
    assert unplaced(both, {"CPU": 16.0, "GPU": 4.0}) == ""


def training(name: str, url: str) -> TrainingRun:
    return TrainingRun(load("tiny", [f"run.name={name}"]), url, Path(), Console())


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Share]:
    """What a look finds on a cluster of two CPUs."""
    found = shares(generators=1, up=1)
    monkeypatch.setattr(placement, "EVERY_S", 0.02)
    monkeypatch.setattr(placement, "_shares", lambda run, client: found)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    return found


def test_what_an_earlier_start_said_is_gone_when_all_parts_fit(redis_url: str, parts: list[Share]) -> None:
    client = connect(redis_url)
    client.hset(Keys("fits").state, mapping=changed(unplaced="no place for 1 of 2 learner rank"))
    with reports_unplaced(training("fits", redis_url)):
        until(lambda: read_state(client, "fits").unplaced == "")


def test_nothing_is_without_a_place_after_the_end(redis_url: str, parts: list[Share]) -> None:
    client = connect(redis_url)
    parts[:] = shares(generators=2, up=1)
    with reports_unplaced(training("ends", redis_url)):
        until(lambda: read_state(client, "ends").unplaced.startswith("no place for 1 of 2 gen"))
    assert read_state(client, "ends").unplaced == ""


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
