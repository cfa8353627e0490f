"""Every command has a test that runs it: this one, on folders of ended runs, or the one that is named here
because the command starts a stack or trains."""

import json
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from hora_rl.deploy.cli import app
from tests.support.pages import ROOT
from tests.support.reported_runs import make_run
from tests.support.rollouts import write_rollouts
from tests.support.synthetic_run import write_ended

# Commands in one folder, in this order, with what each must say.
HERE: dict[str, list[tuple[str, str]]] = {
    "init": [("init named.yaml --task code --model smollm2", "named.yaml")],
    "check": [("check tiny --elsewhere", "valid. 2000 prompts")],
    "monitor": [("monitor runs/over --once", "finished"), ("monitor runs/over --json", '"step": 3')],
    "runs": [("runs", "finished")],
    "rollouts": [("rollouts runs/sampled --step 1 --prompt 0 --failure --longest", "step 1")],
    "report": [
        ("report runs/reported", "report"),
        ("report runs/one runs/two --compare --out compared", "compare.html"),
    ],
    "plan": [("plan counts.jsonl", "hit_utility")],
}
# The test, and a word of it that stands for the command.
ELSEWHERE = {
    "run": ("tests/system/test_first_run.py", "hora run"),
    "stop": ("tests/system/test_interrupt.py", '"stop"'),
    "eval": ("tests/system/test_evaluation_command.py", '"eval"'),
    "sample": ("tests/system/test_sample_command.py", '"sample"'),
    "study": ("research/tests/test_study_command.py", '"study"'),
    "export": ("tests/system/test_whole_loop.py", '"export"'),
    "audit": ("tests/system/test_whole_loop.py", '"audit"'),
    "train": ("tests/system/test_elastic.py", '"train"'),
    "redis": ("tests/system/test_two_machines.py", "self.redis"),
}


def test_every_command_has_a_test() -> None:
    assert {*HERE, *ELSEWHERE} == typer.main.get_command(app).commands.keys()
    for path, word in ELSEWHERE.values():
        assert word in (ROOT / path).read_text(encoding="utf-8"), (path, word)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read: runs that have ended, and recorded counts."""
    made = tmp_path_factory.mktemp("reader")
    runs = made / "runs"
    write_ended(runs / "over")
    write_rollouts(runs / "sampled", steps=3, prompts=2)
    make_run(runs / "reported", "hit_utility", 0, steps=8)
    for name, rule in (("one", "hit_utility"), ("two", "uniform")):
        (runs / name).mkdir()
        config = {"run": {"name": name}, "allocation": {"rule": rule}, "learner": {"steps": 3}}
        (runs / name / "config.yaml").write_text(yaml.safe_dump(config))
        steps = [{"step": i, "success": 0.1 * i, "rollouts": 10, "time/step": 60.0} for i in range(3)]
        (runs / name / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    counts = [{"id": f"q{i}", "successes": i % 33, "trials": 32} for i in range(330)]
    (made / "counts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in counts))
    return made


@pytest.mark.system
@pytest.mark.parametrize(("command", "says"), [pair for pairs in HERE.values() for pair in pairs])
def test_a_command_does_what_it_says_on_ended_runs(
    command: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    print(done.output)
    assert says in done.output
