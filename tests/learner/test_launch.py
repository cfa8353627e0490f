"""The learner under Ray Train and torchrun: what another attempt cannot fix is not attempted again, what it
cannot do there is said before it trains, and one run at a time trains on a cluster."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.load import load
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.learner import launch
from hora_rl.learner import main as program
from hora_rl.learner.ray_job import job_of, refuse_beside_another, training_runs


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


@pytest.fixture
def learner_of_a() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 * 2**20,
        job_config=job_of("a"),
    )
    try:
        yield
    finally:
        ray.shutdown()


@pytest.mark.system
@pytest.mark.slow
def test_another_run_is_refused_while_a_learner_is_attached(learner_of_a: None) -> None:
    assert training_runs() == {"a"}
    refuse_beside_another("a")
    with pytest.raises(ConfigError, match=r"run 'a' trains on this Ray cluster.*replaced by that of 'b'"):
        refuse_beside_another("b")

    @ray.remote(num_cpus=0)
    def build() -> set[str]:
        """Serve builds an application in a task."""
        return training_runs()

    assert ray.get(build.remote()) == {"a"}


LINE = "evaluation.every (5) is kept by `hora run` and `hora train`"
EVALUATED = ("evaluation.every=5", "learner.keep_best=pass@4")


def words(*settings: str) -> list[str]:
    given = [word for setting in settings for word in ("--set", setting)]
    return ["--config", "tiny", "--redis", "unix:///nowhere", "--no-ray", *given]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (EVALUATED[:1], LINE),
        (EVALUATED, LINE),
        (("weights.transport=gloo",), "--no-ray needs weights.transport: file, not gloo"),
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
