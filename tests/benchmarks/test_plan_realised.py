"""`benchmarks.plan_realised`: plan and cells see the same prompts, and a wrong plan would be told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.plan_realised import ARMS, BATCHES, Compared, compare, configuration, realise, table
from deploy.tasks.build import build

PROMPTS = 150
FOUND = Compared(ARMS[1], 3, (0.60, 0.55, 0.66), (0.50, 0.495, 0.51), 0.66, 0.525)


def test_what_is_outside_both_bounds_is_told() -> None:
    assert FOUND.held == (True, False)
    assert replace(FOUND, found_hits=0.661).held == (False, False)
    assert replace(FOUND, found_signal=0.519).held == (True, True)  # outside the interval, within 2 points
    lines = table([FOUND, replace(FOUND, seed=4, found_hits=0.70)]).splitlines()
    assert lines[2] == "| hit_utility ×4 | hits | 60.0 | 68.0 | +8.0 ± 2.0 | 10.0 | 1 of 2 |"
    assert lines[3].endswith("| 2.5 | 0 of 2 |")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task whose model was shown so much that some of its answers are right, which takes some seconds."""
    folder = tmp_path_factory.mktemp("task") / "facts"
    build("facts", folder, steps=250)
    return folder


@pytest.mark.slow
def test_a_seed_is_predicted_and_realised_on_weights_that_do_not_move(task: Path, tmp_path: Path) -> None:
    found = compare(task, tmp_path, seed=0, epochs=1)
    assert [c.arm for c in found] == list(ARMS)
    for c in found:
        # So short a warm start has not learned the format, whose reward gives groups a signal beside success.
        assert 0.02 < c.found_hits < 0.98
        assert abs(c.found_hits - c.hits[0]) < 0.12  # 150 prompts once: three standard errors
    config = configuration(task, tmp_path, ARMS[2], 0, 1)
    groups = (tmp_path / config.run.name / "groups.jsonl").read_text().splitlines()
    indices = [json.loads(line)["prompt_index"] for line in groups]
    assert sorted(indices) == list(range(PROMPTS))
    curves = json.loads((tmp_path / config.run.name / "curves.json").read_text())
    before, after = curves["curves"]["trained"]
    assert (before["step"], after["step"]) == (0, BATCHES)
    assert before["pass@16"] == pytest.approx(after["pass@16"], abs=1e-6)
    assert np.isfinite(realise(config)).all()
