"""`hora study --loop` that ends in the middle: no cell outlives it, and no second one works in its folder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from hora_rl.deploy.machine.signals import GRACE_S
from research.tasks.build import build

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
HORA = str(Path(sys.executable).with_name("hora"))
CELLS = ("grpo-seed0", "hora-seed0")


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A study of two cells that train for hours, in a folder of its own."""
    folder = tmp_path_factory.mktemp("study")
    build("many", folder / "many", steps=3)
    study = {
        "name": "long",
        "base": "tiny",
        "seeds": [0],
        "set": {
            "model.path": str(folder / "many" / "model"),
            "data.path": str(folder / "many" / "trained.jsonl"),
            "evaluation.path": str(folder / "many" / "trained.jsonl"),
            "rollout.prompts_per_batch": 2,
            "rollout.group_size": 4,
            "rollout.pre_rollouts": 2,
            "rollout.shards": 1,
            "reward.weights": {"accuracy": 1.0},
            "rollout.max_staleness": 0,
            "rollout.max_response_tokens": 10,
            "allocation.warmup.enabled": False,
            "learner.steps": 100_000,
        },
        "arms": {"grpo": {"allocation.rule": "uniform"}, "hora": {"allocation.rule": "hit_utility"}},
        "design": {"watched": "trained", "every": 50_000},
    }
    file = folder / "long.yaml"
    file.write_text(yaml.safe_dump(study, sort_keys=False))
    return [HORA, "study", str(file), "--loop", "--parallel", "2", "--out", str(folder / "out")]


def training(command: list[str]) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """The study, both of whose cells have trained a step, with the processes that it started."""
    out = Path(command[-1])
    for cell in CELLS:
        (out / cell / "groups.jsonl").unlink(missing_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    study = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    try:
        deadline = time.monotonic() + 120
        while not all(has_groups(out / cell) for cell in CELLS):
            assert study.poll() is None, study.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.1)
    except BaseException:
        study.kill()  # the kernel ends its workers
        raise
    return study, psutil.Process(study.pid).children(recursive=True)


def has_groups(cell: Path) -> bool:
    groups = cell / "groups.jsonl"
    return groups.exists() and groups.stat().st_size > 0


def assert_gone(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_a_second_study_is_refused_and_no_worker_outlives_a_killed_one(command: list[str]) -> None:
    study, family = training(command)
    try:
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        says = f"another `hora study` (process {study.pid}) works there"
        assert (second.returncode, says in " ".join(second.stderr.split())) == (1, True), second.stderr
    finally:
        study.kill()
        study.communicate()
    assert len(family) >= 2
    assert_gone(family)


def test_a_study_that_is_told_to_end_does_so_in_time(command: list[str]) -> None:
    study, family = training(command)
    try:
        study.send_signal(signal.SIGTERM)
        said, _ = study.communicate(timeout=GRACE_S)
    finally:
        study.kill()
    assert study.returncode == 130, said
    assert "nothing is left running" in said
    assert "Traceback" not in said
    assert_gone(family)
