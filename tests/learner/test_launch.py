"""The learner under Ray Train and torchrun: when it is tried again, why it ended, whom a reason reaches."""

import itertools
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from ray import train as ray_train
from ray.exceptions import OutOfMemoryError
from ray.train import WorkerGroupError

from hora_rl.common.errors import RunError
from hora_rl.common.live import redis as connections
from hora_rl.common.live.keys import Keys
from hora_rl.common.load import load
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.learner import launch, ranks, train
from hora_rl.learner import main as program

LINE = "evaluation.every (5) is kept by `hora run` and `hora train`"
UNREADABLE = "redis://127.0.0.1:1?password_file=/no/such/file"
EVALUATED = ("evaluation.every=5", "learner.keep_best=pass@4")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = str(Path(launch.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_a_learner_that_cannot_go_on_stops_with_its_reason_and_is_not_tried_again(
    cluster: None, tmp_path: Path, redis_server: RedisServer
) -> None:
    config = load("tiny", ["run.name=r", f"run.folder={tmp_path}", "learner.wait_limit_s=1"])
    run_dir = tmp_path / "r"
    run_dir.mkdir()
    with pytest.raises(RunError, match="the learner stopped: step 0 has waited 1 s for groups"):
        launch.run(config, redis_server.url, str(run_dir))
    assert len(list((run_dir / "tensorboard").glob("events*"))) == 1, "each attempt that trains opens one"


def words(*settings: str) -> list[str]:
    options = [word for setting in settings for word in ("--set", setting)]
    return ["--config", "tiny", "--redis", "unix:///nowhere", "--no-ray", *options]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (EVALUATED[:1], LINE),
        (EVALUATED, LINE),
        (("weights.transport=gloo",), "--no-ray needs weights.transport: file, not gloo"),
        (
            ("generator.sleep=step", "rollout.max_staleness=0"),
            "--no-ray needs generator.sleep: none, not step",
        ),
        (("learner.step=5",), "learner.step"),
    ],
)
def test_what_would_be_left_out_is_refused_in_one_line(
    settings: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["main", *words(*settings)])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert line in str(ended.value)
    assert str(ended.value).startswith("hora learner, rank 0: ")
    assert "\n" not in str(ended.value)


def test_a_learner_with_other_settings_than_the_deployed_ones_is_refused(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections.connect(redis_server.url).set(Keys("tiny").config, load("tiny").model_dump_json())
    refused, same = words("learner.objective.clip_high=0.3"), words("run.folder=elsewhere")
    for arguments in (refused, same):
        arguments[arguments.index("unix:///nowhere")] = redis_server.url
    monkeypatch.setattr(sys, "argv", ["main", *refused])
    with pytest.raises(SystemExit, match=r"with other settings: learner\.objective\.clip_high: 0\.2"):
        program.main()
    monkeypatch.setattr(sys, "argv", ["main", *same])
    monkeypatch.setattr(program, "_run", lambda *_, **__: None)
    program.main()


# As Ray 2.60 wrote it, shortened.
SHORT_OF_MEMORY = """1 worker(s) were killed due to the node running low on memory. Memory on the node \
(IP: 192.0.2.2, ID: 307e) was 22.78GB used / 23.54GB limit (0.96)
OOM kill reason: Memory usage 2982658048B exceeded threshold of 2906798848B (11.5% of 25276510208B limit)
Ray killed 2 worker(s) based on the killing policy
Considered workers: [
Selected to kill: (Task: job ID=01000000, lease ID=00000000aeb, task name=PreemptionWatcher.__init__, \
required resources={}, pid=9006, actual memory used=0.10GB, worker ID=1560)
Selected to kill: (Task: job ID=01000000, lease ID=00000000aea, task name=RayTrainWorker.execute, \
required resources={}, pid=9007, actual memory used=7.05GB, worker ID=1561)
]
Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/en/latest/x.html. \
Consider provisioning more memory."""


CONTROLLER, RANKS = OutOfMemoryError(SHORT_OF_MEMORY), WorkerGroupError("ranks died", {0: ValueError("x")})


@pytest.mark.parametrize(
    "error", [CONTROLLER, RuntimeError(f"Training failed due to worker errors:\n{SHORT_OF_MEMORY}")]
)
def test_of_short_memory_the_process_the_memory_and_the_keys_are_named(error: Exception) -> None:
    text = launch.reason(error)
    assert "\n" not in text
    for fact in ("9007", "7.05 GB", "22.78 of 23.54 GB", "192.0.2.2", "learner.tokens_per_microbatch"):
        assert fact in text, fact
    assert launch.not_started(1, error) == text, "the ranks had processors"


def test_any_other_error_is_its_last_line_and_ours_is_whole() -> None:
    assert launch.reason(ValueError("a\nray.x.Y: the last")) == "the learner stopped: the last"
    assert launch.reason(RunError("one line")) == "one line"


def dying(times: int, error: Exception) -> tuple[Callable[[], Any], list[int]]:
    """Trainers of which so many die, and one entry for each that was started."""
    started: list[int] = []

    class Trainer:
        def fit(self) -> SimpleNamespace:
            started.append(1)
            if len(started) <= times:
                raise error
            return SimpleNamespace(return_value=None)

    return Trainer, started


@pytest.mark.parametrize(
    ("error", "deaths", "steps", "starts", "ends"),
    [
        (CONTROLLER, 2, itertools.repeat(0), 3, None),
        (CONTROLLER, 9, itertools.repeat(0), launch.CONTROLLERS, RunError),
        (RANKS, 9, itertools.repeat(0), 1, WorkerGroupError),
        # A step between any two deaths.
        (CONTROLLER, 99, itertools.count(), 100, None),
        (RANKS, 99, itertools.count(), 100, None),
        # Every start goes back to the checkpoint of step 20, and dies before the next, here or there.
        (CONTROLLER, 99, itertools.cycle([25, 27, 24, 26]), 4, RunError),
        (RANKS, 99, itertools.cycle([25, 27, 24, 26]), 2, WorkerGroupError),
    ],
)
def test_deaths_end_a_run_only_without_new_steps(
    error: Exception,
    deaths: int,
    steps: Iterator[int],
    starts: int,
    ends: type[Exception] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "AGAIN_S", 0.0)
    make, started = dying(deaths, error)
    with pytest.raises(ends) if ends else nullcontext():
        launch.fit(make, steps.__next__)
    assert len(started) == starts


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The run folders of the ranks that began to train. Each of them fails in a way that stays."""
    folders: list[str] = []

    def fail(config: Any, url: str, run_dir: Path, rank: int, world: int) -> None:
        folders.append(run_dir.name)
        raise RunError("step 0 has waited 1 s for groups")

    monkeypatch.setattr(train, "train", fail)
    monkeypatch.setattr(ranks, "set_device", lambda *_: "gloo")
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


def test_the_next_start_trains_whatever_is_left(trained: list[str], redis_url: str, tmp_path: Path) -> None:
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
        text = attempt(gone, tmp_path / "a", "gone", "1")
    assert text.startswith("no Redis answers at redis://127.0.0.1")
    assert trained == ["a"]


def test_all_ranks_return_when_one_of_them_has_a_reason(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, lacking = (launch.StopReason(url, "ranks", "1") for url in (redis_url, UNREADABLE))
    assert stop.agree() is None
    monkeypatch.setattr(launch, "gathered", lambda mine: [mine, lacking._read()])
    assert "password_file /no/such/file cannot be read" in stop.agree()
    stop.write("one line")
    assert stop.agree() == "one line"
