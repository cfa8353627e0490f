"""A project with a `common`, `deploy`, … of its own trains with its own rewards and an installed HORA."""

import json
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.installed import ROOMS, environment_of, wheel_in
from tests.support.programs import run_well

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]
CONFIG = """\
run: {name: theirs}
model: {path: deploy/demo/model, dtype: float32}
data: {path: arithmetic, limit: 32, system: null}
rollout:
  {prompts_per_batch: 4, group_size: 4, pre_rollouts: 2, shards: 1,
   max_prompt_tokens: 32, max_response_tokens: 32}
reward: {weights: {"rewards:score": 1.0}, success: "rewards:score"}
learner: {steps: 2, tokens_per_microbatch: 4096}
telemetry: {http_port: 0}
"""
REWARD = """\
from common.points import HALF
from hora_rl.common.errors import Unavailable


def score(problem, completion, answer):
    assert issubclass(Unavailable, Exception)
    return HALF * (1 + completion.endswith(answer))
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project with a package of each of our names, and a reward that imports one of them."""
    folder = tmp_path_factory.mktemp("project")
    for name in ROOMS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('HORA imported mine')\n")
    (folder / "common" / "__init__.py").write_text("")
    (folder / "common" / "points.py").write_text("HALF = 0.5\n")
    (folder / "rewards.py").write_text(REWARD)
    (folder / "theirs.yaml").write_text(CONFIG)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with HORA's wheel, and all else from this environment."""
    wheel = wheel_in(tmp_path_factory.mktemp("wheel"))
    programs, packages = environment_of(tmp_path_factory.mktemp("installed") / "venv", str(wheel))
    # A path in a .pth file is searched, but its own .pth files are not: the editable HORA stays out.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


@pytest.fixture
def run_in(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return lambda folder, program, *words: run_well(installed / program, *words, cwd=folder, limit_s=500)


def test_a_wheel_puts_one_name_into_the_environment(installed: Path) -> None:
    packages = next(installed.parent.glob("lib/python*/site-packages"))
    assert not [name for name in ROOMS if (packages / name).exists()]
    assert (packages / "hora_rl" / "common").is_dir()


def test_the_sandbox_of_programs_starts_with_ours(run_in: Run, project: Path) -> None:
    code = """
from hora_rl.actors.verifier.code.runner import Runner
from hora_rl.actors.verifier.sandbox.sandbox import Limits
from hora_rl.common.data.code import RowTests
runner = Runner(Limits())
assert runner.judge(["def twice(x): return 2 * x"], RowTests(asserts="assert twice(2) == 4")).right
assert not runner.judge(["def twice(x): return x"], RowTests(asserts="assert twice(2) == 4")).right
runner.close()
"""
    run_in(project, "python", "-c", code)


def test_a_project_with_our_names_checks_and_trains(run_in: Run, project: Path) -> None:
    run_in(project, "hora", "check", "theirs.yaml")
    run_in(project, "hora", "run", "theirs.yaml")
    lines = (project / "runs" / "theirs" / "steps.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["reward/rewards:score"] >= 0.5
    run_in(project, "hora", "audit", "runs/theirs")
