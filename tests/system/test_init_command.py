"""What `hora init` writes is trained by `hora run`, as a new user would do it."""

from pathlib import Path

import pytest

from tests.support.jsonl import lines
from tests.system.conftest import hora

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("task", "files", "reward"), [("mine", 3, "first_reward:score"), ("code", 2, "code_tests")]
)
def test_a_task_of_one_s_own_is_written_checked_and_trained(
    task: str, files: int, reward: str, tmp_path: Path
) -> None:
    assert len(hora("init", "first.yaml", "--task", task, cwd=tmp_path).stdout.split()) == files
    free = ("-s", "telemetry.http_port=0")
    assert "valid. 64 prompts" in hora("check", "first.yaml", *free, cwd=tmp_path).stdout
    hora("run", "first.yaml", "-s", "learner.steps=2", *free, cwd=tmp_path)
    steps = lines(tmp_path / "runs" / "first" / "steps.jsonl")
    assert len(steps) == 2
    assert f"reward/{reward}" in steps[0]
