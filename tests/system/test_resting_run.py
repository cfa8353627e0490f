"""A run of the whole stack in which prompts rest, killed between two checkpoints: the audit derives the
prompts of every batch from the reports."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from hora_rl.common.data.arithmetic import stream
from hora_rl.deploy.runs.ended_run import audit_run
from tests.support.jsonl import lines, write_lines
from tests.system.conftest import LiveRun

PROMPTS, GAMMA, STEPS = 24, 8, 15

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_solved_and_unsolved_prompts_rest_in_a_run_that_was_killed(tmp_path: Path) -> None:
    additions = stream(0, "train")
    rows = {a.problem: a.answer for a in (next(additions) for _ in range(200))}
    problems = ({"problem": p, "answer": a} for p, a in list(rows.items())[:PROMPTS])
    settings = {
        "data.path": write_lines(tmp_path / "sums.jsonl", problems),
        "data.rest": "[solved, unsolved]",
        "rollout.prompts_per_batch": GAMMA,
        "learner.checkpoint_every": 4,
    }
    with LiveRun(tmp_path, STEPS, **settings) as live:
        live.until(6)  # two steps after the checkpoint
        live.kill_everything()
        live.start("--resume")
        live.finish(600.0)
        assert audit_run(live.run)
        records = lines(live.run / "groups.jsonl")
    epochs = defaultdict[int, list[int]](list)
    for r in sorted(records, key=lambda r: r["epoch"]):
        epochs[r["prompt_index"]].append(r["epoch"])
    assert max(r["epoch"] for r in records) >= STEPS * GAMMA // PROMPTS, "epochs that not all take part in"
    gaps = {b - a for visits in epochs.values() for a, b in pairwise(visits)}
    assert {2, 3} <= gaps, "rests of one and of two epochs"
