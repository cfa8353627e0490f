"""What `hora init` writes is trained by `hora run`, as a new user would do it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HORA = str(Path(sys.executable).with_name("hora"))
pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]


def hora(folder: Path, *words: str) -> str:
    done = subprocess.run([HORA, *words], cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("task", "files", "reward"), [("mine", 3, "first_reward:score"), ("code", 2, "code_tests")]
)
def test_a_task_of_one_s_own_is_written_checked_and_trained(
    task: str, files: int, reward: str, tmp_path: Path
) -> None:
    assert len(hora(tmp_path, "init", "first.yaml", "--task", task).split()) == files
    free = ["-s", "telemetry.http_port=0"]
    assert "valid. 64 prompts" in hora(tmp_path, "check", "first.yaml", *free)
    hora(tmp_path, "run", "first.yaml", "-s", "learner.steps=2", *free)
    lines = (tmp_path / "runs" / "first" / "steps.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert f"reward/{reward}" in json.loads(lines[0])
