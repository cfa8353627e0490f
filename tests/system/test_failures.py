"""What fails in a run is named, and nothing is lost. A learner dies, and files that it or a killed one left
are damaged: what can be used is used. A reward of the user's own that fails in the middle ends the run with
one line that names the reward and the row, and the run is resumed when the reward works again.

`test_chaos.py` meets whole runs with everything else.
"""

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SOME_STEPS = 10

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("DAMAGE_SEED") or random.randrange(10_000))
    print(f"seed of the moment: DAMAGE_SEED={seed}")  # shown when the test fails
    return random.Random(seed)


def noise(folder: Path) -> None:
    """4 KiB inside the largest file: a tensor's values, which load without a word."""
    largest = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        file.write(os.urandom(4096))


def cut(folder: Path) -> None:
    largest = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


def lose(folder: Path) -> None:
    next(folder.rglob("*_model_states.pt")).unlink()


def steps_of(run: Path) -> list[int]:
    return sorted(int(p.name.removeprefix("step-")) for p in (run / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("damage", [cut, lose])
def test_a_learner_that_finds_its_newest_checkpoint_damaged_takes_the_one_before(
    damage: Callable[[Path], None], live_run: Callable[..., Any], chance: random.Random
) -> None:
    run = live_run(SOME_STEPS)
    run.until(chance.randint(6, 7))
    learner = run.kill("learner", chance, signal.SIGSTOP, within_s=0.0)  # it could write a newer one
    newest = steps_of(run.run)[-1]
    damage(run.run / "checkpoints" / f"step-{newest:08d}")
    learner.kill()
    run.finish()
    assert [p.name for p in (run.run / "checkpoints").glob("refused-*")] == [f"refused-step-{newest:08d}"]
    run.assert_exact()


def test_noise_in_the_newest_checkpoint_is_found_when_the_run_is_resumed(
    live_run: Callable[..., Any], chance: random.Random
) -> None:
    run = live_run(SOME_STEPS)
    run.until(chance.randint(7, 8))
    run.kill_everything()
    before, newest = steps_of(run.run)
    noise(run.run / "checkpoints" / f"step-{newest:08d}")
    run.start("--resume")
    run.finish()
    assert [p.name for p in (run.run / "checkpoints").glob("refused-*")] == [f"refused-step-{newest:08d}"]
    assert f"step-{newest:08d}: " in run.said()
    assert f"the run continues after step {before}" in run.said()
    run.assert_exact()


def test_when_both_checkpoints_are_damaged_the_run_ends_once_and_says_so(
    live_run: Callable[..., Any], chance: random.Random
) -> None:
    run = live_run(SOME_STEPS)
    run.until(chance.randint(7, 8))
    run.kill_everything()
    for step in steps_of(run.run):
        noise(run.run / "checkpoints" / f"step-{step:08d}")
    run.start("--resume")
    last = run.fail().splitlines()[-1]
    assert last.startswith(
        "hora: the learner stopped: the newest checkpoint here that can be used contains 0 steps"
    )
    assert "Traceback" not in run.said()
    assert json.loads((run.run / "run.json").read_text())["state"] == "failed"


WEIGHTS = "{accuracy: 1.0, 'tests.system.own_reward:wants_column': 0.1, 'tests.system.own_reward:ranks': 0.1}"
REWARDED = {"reward.weights": WEIGHTS, "rollout.attempts": 2, "learner.checkpoint_every": 2}


def test_a_reward_that_fails_ends_the_run_in_one_line_and_loses_nothing(
    live_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    monkeypatch.setenv("OWN_REWARD_BREAKS", str(broken))
    run = live_run(12, **REWARDED)
    for steps, how, named, why in (
        (2, "column", "wants_column", "raised KeyError: 'expected' (prompt "),
        (4, "length", "ranks", " values (prompt "),
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


def test_a_proxy_that_a_busy_machine_starts_late_is_waited_for(
    live_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_proxy.py").write_text("import time; time.sleep(25)\n\ndef nothing(): return []\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "late_proxy:nothing")
    run = live_run(1)
    run.finish()
    run.assert_exact()
