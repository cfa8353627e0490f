"""`hora study` on the real stack: two arms, two seeds, stopped in the middle, ended by the same command,
compared."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

HORA = str(Path(sys.executable).with_name("hora"))
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
    whole = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [json.loads(line)["step"] for line in whole]


def interrupted(command: list[str], out: Path, log: Path) -> None:
    """Run the study until its second cell has trained a step, then press Ctrl-C; nothing it started may be
    left."""
    with log.open("wb") as file:
        first = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        try:
            deadline = time.monotonic() + 500
            while not steps(out / CELLS[1]):
                assert first.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.05)
            family = psutil.Process(first.pid).children(recursive=True)
        finally:  # whatever failed, it must not outlive the test
            first.send_signal(signal.SIGINT)
            ended = first.wait(150)
    assert ended == 130, log.read_text()[-3000:]
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert "The same command continues the study" in log.read_text()


def test_an_interrupted_study_goes_on_to_a_report_at_equal_compute(tmp_path: Path) -> None:
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(STUDY, sort_keys=False))
    command = [HORA, "study", str(file), "--out", str(out), "--parallel", "1"]
    interrupted(command, out, tmp_path / "first.log")
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
        groups = [json.loads(line) for line in (cell / "groups.jsonl").read_text().splitlines()]
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
    assert {path.stem for path in (out / "report").glob("*.png")} >= {"curves", "frontier", "forest"}
