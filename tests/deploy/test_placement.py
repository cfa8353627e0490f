"""What finds no place is told with the numbers, and nothing is told while parts only take their time."""

from pathlib import Path

import pytest
import ray
from rich.console import Console

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.state import changed, read_state
from hora_rl.common.load import load
from hora_rl.deploy.launch import placement
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


def test_what_two_cpus_cannot_hold_is_told_with_both_numbers_and_no_more() -> None:
    said = unplaced(shares(generators=2, up=1), {"CPU": 2.0})
    assert said.startswith("no place for 1 of 2 generator: 2.5 CPUs are reserved")
    assert "the cluster has 2;" in said
    said = unplaced(shares(generators=2, up=2, ranks_up=0), {"CPU": 2.0})
    assert said.startswith("no place for 1 of 1 learner rank")
    assert unplaced(shares(generators=1, up=0, ranks_up=0), {"CPU": 2.0}) == ""
    assert unplaced(shares(generators=2, up=2, cpus=0.9), {"CPU": 2.0}) == "", "everything runs"


def test_gpus_are_counted_too() -> None:
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
