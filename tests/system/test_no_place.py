"""Ranks that find no place end the run with both numbers, after a limit, and not never."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

CODE = """
import sys, ray
from hora_rl.common.errors import RunError
from hora_rl.common.load import load
from hora_rl.learner import launch

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
try:
    launch.run(load("tiny", ["learner.workers=2"]), *sys.argv[1:])
except RunError as error:
    print(f"said: {error}")
"""


def test_ranks_that_find_no_place_end_the_run(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "2")
    began = time.monotonic()
    command = [sys.executable, "-c", CODE, redis_url, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    [said] = [line for line in done.stdout.splitlines() if line.startswith("said: ")]
    assert "learner.workers = 2 need a CPU each" in said
    assert "1 CPUs and 0 GPUs are free" in said
    print(f"after {time.monotonic() - began:.0f} s: {said}")
