"""The learner under Ray Train, for real: what another attempt cannot fix is not attempted again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from hora_rl.common.errors import RunError
from hora_rl.common.load import load
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.learner import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = str(Path(launch.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_a_learner_that_cannot_go_on_stops_with_its_reason_and_is_not_tried_again(
    cluster: None, tmp_path: Path, redis_server: RedisServer
) -> None:
    config = load("tiny", ["run.name=r", f"run.folder={tmp_path}", "learner.wait_limit_s=1"])
    run_dir = tmp_path / "r"
    run_dir.mkdir()
    with pytest.raises(RunError, match="the learner stopped: step 0 has waited 1 s for groups"):
        launch.run(config, redis_server.url, str(run_dir))
    assert len(list((run_dir / "tensorboard").glob("events*"))) == 1, "each attempt that trains opens one"
