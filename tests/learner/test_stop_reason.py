"""A reason to stop reaches every rank of the start that it belongs to, and no other start."""

import socket
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from ray import train as ray_train

from hora_rl.common.errors import RunError
from hora_rl.common.live import redis as connections
from hora_rl.common.load import load
from hora_rl.learner import device, launch, train
from tests.support.ranks import cases_of, run_ranks


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The run folders of the ranks that began to train. Each of them fails in a way that stays."""
    folders: list[str] = []

    def fail(config: Any, url: str, run_dir: Path, rank: int, world: int) -> None:
        folders.append(run_dir.name)
        raise RunError("step 0 has waited 1 s for groups")

    monkeypatch.setattr(train, "train", fail)
    monkeypatch.setattr(device, "set_device", lambda *_: "gloo")
    monkeypatch.setattr(launch.logs, "configure", lambda form, run, part: None)
    values = {"get_world_rank": 0, "get_world_size": 1, "get_local_rank": 0}
    one_rank = Mock(**{f"{name}.return_value": value for name, value in values.items()})
    monkeypatch.setattr(ray_train, "get_context", lambda: one_rank)
    monkeypatch.setenv("LOCAL_RANK", "0")
    return folders


def attempt(url: str, run_dir: Path, run: str, start: str) -> str | None:
    """A rank as Ray Train starts it."""
    run_dir.mkdir(exist_ok=True)
    config = load("tiny", [f"run.name={run}"]).model_dump(mode="json")
    arguments = {"config": config, "redis_url": url, "run_dir": str(run_dir), "start": start}
    return launch._worker(arguments)


def test_a_rank_that_does_not_see_the_folder_of_the_one_that_stopped_stops_too(
    trained: list[str], redis_url: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="waited 1 s"):
        attempt(redis_url, tmp_path / "a", "sees", "1")
    assert attempt(redis_url, tmp_path / "b", "sees", "1") == "step 0 has waited 1 s for groups"
    assert trained == ["a"]


def test_the_next_start_trains_whatever_the_folder_still_shows(
    trained: list[str], redis_url: str, tmp_path: Path
) -> None:
    for start in ("1", "2"):
        with pytest.raises(RunError, match="waited 1 s"):
            attempt(redis_url, tmp_path / "a", "next", start)
    assert trained == ["a", "a"]


def test_a_redis_that_is_gone_hides_no_reason_and_ends_the_next_attempt(
    trained: list[str], redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise patience takes two minutes.
    monkeypatch.setattr(connections.connect, "__kwdefaults__", {"retries": 0, "patient": False})
    agree = launch.StopReason.agree
    with socket.socket() as closed:  # a port on which nothing listens
        closed.bind(("127.0.0.1", 0))
        gone = f"redis://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setattr(launch.StopReason, "agree", lambda stop: None)  # Redis was up then
        with pytest.raises(RunError, match="waited 1 s"):
            attempt(gone, tmp_path / "a", "gone", "1")
        monkeypatch.setattr(launch.StopReason, "agree", agree)
        said = attempt(gone, tmp_path / "a", "gone", "1")
    assert said is not None
    assert said.startswith("no Redis answers at redis://127.0.0.1")
    assert trained == ["a"]


RANKS = """
import json, os, sys, torch.distributed as dist
from hora_rl.learner.launch import StopReason

dist.init_process_group("gloo")
rank, url = dist.get_rank(), sys.argv[1]
first = StopReason(url, "ranks", "1").agree()
if rank == 1:
    StopReason(url, "ranks", "1").write("one line")
dist.barrier()
lacking = "redis://127.0.0.1:1?password_file=/no/such/file"
found = [
    first,
    StopReason(url, "ranks", "1").agree(),
    StopReason(lacking if rank == 1 else url, "ranks", "2").agree(),
]
every = [None, None]
dist.all_gather_object(every, found)
if rank == 0:
    print(json.dumps(every), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_all_ranks_return_when_one_of_them_has_a_reason(redis_url: str, tmp_path: Path) -> None:
    [[zero, one]] = cases_of(run_ranks(RANKS, tmp_path, redis_url))
    assert zero == one
    assert zero[:2] == [None, "one line"]
    assert "password_file /no/such/file cannot be read" in zero[2]
