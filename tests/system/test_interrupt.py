"""Ctrl-C at any moment stops everything that was started, and `--resume` goes on to the end without a gap."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

HORA = str(Path(sys.executable).with_name("hora"))
SETTINGS = {
    "rollout.prompts_per_batch": 8,
    "rollout.group_size": 6,
    "rollout.pre_rollouts": 2,
    "rollout.shards": 2,
    "learner.steps": 8,
    "learner.checkpoint_every": 2,
    "evaluation.path": "null",
    "telemetry.http_port": 0,
}

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def command(folder: Path, *more: str) -> list[str]:
    settings = {**SETTINGS, "run.folder": folder, "run.name": "stopped"}
    return [HORA, "run", "tiny", *more, *(p for k, v in settings.items() for p in ("-s", f"{k}={v}"))]


def steps(run: Path) -> list[int]:
    file = run / "steps.jsonl"
    return [json.loads(line)["step"] for line in file.read_text().splitlines()] if file.exists() else []


def test_an_interrupted_run_leaves_nothing_and_is_resumed_without_a_gap(tmp_path: Path) -> None:
    run = tmp_path / "stopped"
    env = {**os.environ, "COLUMNS": "200"}
    with (tmp_path / "first.log").open("wb") as log:
        first = subprocess.Popen(command(tmp_path), stdout=log, stderr=log, env=env, start_new_session=True)
        deadline = time.monotonic() + 300
        while len(steps(run)) < 3:
            assert first.poll() is None, (tmp_path / "first.log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        family = psutil.Process(first.pid).children(recursive=True)
        os.kill(first.pid, signal.SIGINT)
        assert first.wait(120) == 130
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    text = (tmp_path / "first.log").read_text()
    assert "--resume" in text
    assert json.loads((run / "run.json").read_text())["state"] == "stopped"
    again = subprocess.run(
        command(tmp_path, "--resume"), capture_output=True, text=True, timeout=400, env=env
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert steps(run) == list(range(8))
    groups = [json.loads(line) for line in (run / "groups.jsonl").read_text().splitlines()]
    assert len({g["group_id"] for g in groups}) == len(groups) == 64
    assert all(sum(g["size"] for g in groups if g["batch"] == b) == 48 for b in range(8))
