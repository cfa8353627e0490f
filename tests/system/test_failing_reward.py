"""A reward of the user's own that fails in the middle of a run ends it with one line that names the reward
and the row. Nothing is lost, and the run is resumed when the reward works again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STEPS = 12
WEIGHTS = "{accuracy: 1.0, 'tests.system.own_reward:wants_column': 0.1, 'tests.system.own_reward:ranks': 0.1}"
SETTINGS = {"reward.weights": WEIGHTS, "rollout.attempts": 2, "learner.checkpoint_every": 2}

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500)]


def test_a_reward_that_fails_ends_the_run_in_one_line_and_loses_nothing(
    live_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    monkeypatch.setenv("OWN_REWARD_BREAKS", str(broken))
    run = live_run(STEPS, **SETTINGS)
    for steps, how, named, why in (
        (2, "column", "wants_column", "raised KeyError: 'expected' (row "),
        (4, "length", "ranks", " completions of a group (row "),
    ):
        run.until(steps)
        broken.write_text(how)
        last = run.fail().splitlines()[-1]
        assert last.startswith("hora: "), last
        assert f"own_reward:{named}" in last
        assert why in last
        record = json.loads((run.run / "run.json").read_text())
        assert record["state"] == "failed"
        assert named in record["reason"]
        broken.unlink()
        run.start("--resume")
    run.finish()
    run.assert_exact()
