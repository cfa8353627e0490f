"""`hora study` on the real stack: two arms, two seeds, stopped in the middle, ended by the same command,
compared."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from research.tests.test_study_processes import HORA, assert_stops, started, written
from tests.support.jsonl import lines

STEPS, PROMPTS, SIZE, PROBLEMS, SAMPLES = 6, 8, 6, 4, 8
STUDY = {
    "name": "small",
    "title": "Two arms at a small size",
    "base": "tiny",
    "seeds": [3, 4],
    "set": {
        "rollout.prompts_per_batch": PROMPTS,
        "rollout.group_size": SIZE,
        "rollout.pre_rollouts": 2,
        "rollout.shards": 2,
        "learner.steps": STEPS,
        "learner.checkpoint_every": 2,
        "allocation.warmup.enabled": False,
        "evaluation.prompts": PROBLEMS,
        "evaluation.samples": SAMPLES,
        "evaluation.k": [1, SAMPLES],
    },
    "design": {"pass_at": SAMPLES},
    "arms": {"grpo": {"allocation.rule": "uniform"}, "hora": {"allocation.rule": "hit_utility"}},
}
CELLS = ("grpo-seed3", "hora-seed3", "grpo-seed4", "hora-seed4")

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500)]


def record(cell: Path) -> dict:
    path = cell / "run.json"
    return json.loads(path.read_text()) if path.exists() else {"state": "not begun"}


def steps(cell: Path) -> list[int]:
    path = cell / "steps.jsonl"
    complete = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [json.loads(line)["step"] for line in complete]


def test_an_interrupted_study_goes_on_to_a_report_at_equal_compute(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [HORA, "study", written(tmp_path, STUDY), "--out", str(out), "--parallel", "1"]
    first = started(command, lambda: bool(steps(out / CELLS[1])), 500)
    family = psutil.Process(first.pid).children(recursive=True)
    assert_stops(first, signal.SIGINT, family, limit_s=150)
    done = record(out / CELLS[0])
    assert [done["state"], record(out / CELLS[1])["state"]] == ["finished", "stopped"]
    assert not (out / CELLS[2]).exists()

    env = {**os.environ, "COLUMNS": "200"}
    again = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
    assert again.returncode == 0, again.stdout + again.stderr
    assert record(out / CELLS[0]) == done, "a finished cell was run again"
    drawn = set()
    for name in CELLS:
        cell = out / name
        assert record(cell)["state"] == "finished"
        assert steps(cell) == list(range(STEPS))
        groups = lines(cell / "groups.jsonl")
        assert len({g["group_id"] for g in groups}) == len(groups) == STEPS * PROMPTS
        assert all(sum(g["size"] for g in groups if g["batch"] == b) == PROMPTS * SIZE for b in range(STEPS))
        assert len({g["size"] for g in groups}) == 1 or name.startswith("hora")
        drawn.add((cell / "evaluation" / "arithmetic-step0.samples.jsonl").read_bytes())
        last = json.loads((cell / "evaluation" / f"arithmetic-step{STEPS}.json").read_text())
        assert (len(last["problems"]), last["samples"]) == (PROBLEMS, SAMPLES)
    assert len(drawn) == 1, "the initial policy was drawn from more than once"

    text = (out / "report" / "report.md").read_text()
    assert "all cells the same total" in text
    assert "Missing" not in text
    assert "| hora | grpo | 2 |" in text
    for arm in STUDY["arms"]:
        assert f"| {arm} | 2 |" in text
    assert (out / "report" / "curves.png").stat().st_size > 4000
