"""Parts of a live run are killed without warning, under load. The run ends as if nothing had happened, or
`--resume` ends it: every group trained in exactly one surviving step, no budget lost, no process left.
"""

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learner import extensions

STEPS, SOME_STEPS, FEW_STEPS = 40, 10, 8
# Plain text decides nearly all answers of the demo: without work a verifier starts no worker.
OWN_REWARD = {"reward.weights": "{format: 0.5, accuracy: 0.5, 'tests.system.own_reward:brevity': 0.01}"}

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(10_000))
    print(f"seed of the moment: CHAOS_SEED={seed}")  # shown when the test fails
    return random.Random(seed)


@pytest.mark.parametrize(
    "part",
    ["generator", "engine", "coordinator", "verifier", "verifier worker", "redis", "learner", "controller"],
)
def test_a_run_survives_the_death_of(part: str, live_run: Callable[..., Any], chance: random.Random) -> None:
    run = live_run(STEPS, **(OWN_REWARD if part == "verifier worker" else {}))
    run.until(chance.randint(2, 8))
    run.kill(part, chance)
    at = run.trained()
    seconds = run.finish()
    print(f"{part}: killed at step {at}, finished by itself after {seconds:.0f} s")
    run.assert_exact()


@pytest.mark.parametrize("transport", ["file", "gloo"])
def test_a_learner_dies_of_which_every_batch_awaits_its_version(
    transport: str, live_run: Callable[..., Any], chance: random.Random
) -> None:
    """Without staleness nothing is sampled until the learner that repeats its steps says which version is
    out."""
    run = live_run(STEPS, **{"weights.transport": transport, "rollout.max_staleness": 0})
    for _ in range(3):
        run.until(run.trained() + chance.randint(2, 6))
        run.kill("learner", chance)
    run.finish()
    run.assert_exact()


def test_the_successor_of_the_only_generator_is_sent_the_newest_weights(
    live_run: Callable[..., Any], chance: random.Random
) -> None:
    """Nobody else holds the version that the batch in hand asks for, and no step can make another."""
    run = live_run(STEPS, **{"weights.transport": "gloo"})
    run.until(chance.randint(2, 8))
    run.kill("generator", chance)
    run.finish()
    run.assert_exact()


def test_a_run_survives_many_deaths_in_a_row(live_run: Callable[..., Any], chance: random.Random) -> None:
    run = live_run(STEPS)
    for part in ("verifier", "generator", "redis", "coordinator", "learner"):
        run.until(run.trained() + chance.randint(1, 3))
        run.kill(part, chance)
    run.finish()
    run.assert_exact()


def test_a_run_of_which_everything_was_killed_is_resumed(
    live_run: Callable[..., Any], chance: random.Random
) -> None:
    run = live_run(STEPS)
    run.until(chance.randint(2, 12))
    run.kill_everything()
    at = run.trained()
    run.start("--resume")
    seconds = run.finish()
    print(f"everything: killed at step {at}, resumed and finished after {seconds:.0f} s")
    run.assert_exact()


def test_a_run_whose_launcher_was_killed_leaves_nothing_and_is_resumed(
    live_run: Callable[..., Any], chance: random.Random
) -> None:
    run = live_run(STEPS)
    run.until(chance.randint(2, 12))
    gone = run.kill_launcher()
    at = run.trained()
    run.start("--resume")
    seconds = run.finish()
    print(
        f"launcher: killed at step {at}, the rest gone {gone:.0f} s later, resumed and finished after "
        f"{seconds:.0f} s"
    )
    run.assert_exact()


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
    newest = steps_of(run.run)[-1]
    damage(run.run / "checkpoints" / f"step-{newest:08d}")
    run.kill("learner", chance, within_s=0.0)
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


def test_a_learner_killed_while_it_compiles_keeps_no_later_one_waiting(
    live_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "builds"))
    foreign = tmp_path / "builds" / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    foreign.parent.mkdir(parents=True)
    foreign.touch()  # what a killed learner of another program, or of an older version, leaves behind
    lock = extensions.build_folder() / "deepspeed_shm_comm" / "lock"
    run = live_run(FEW_STEPS)
    run.until_there(lock)
    run.kill("learner", random.Random(0), within_s=0.0)
    assert lock.exists(), "it was killed while it compiled"
    run.finish()
    run.assert_exact()
    assert not lock.exists()


def test_a_run_whose_raylet_was_killed_says_so_in_one_line_leaves_nothing_and_is_resumed(
    live_run: Callable[..., Any], chance: random.Random
) -> None:
    run = live_run(SOME_STEPS)
    run.until(chance.randint(2, 8))
    run.kill("raylet", chance)
    last = run.fail().splitlines()[-1]
    assert last.startswith("hora: Ray's node on this machine ended (its process raylet died)")
    record = json.loads((run.run / "run.json").read_text())
    assert record["state"] == "failed"
    assert "raylet" in record["reason"]
    run.start("--resume")
    run.finish()
    run.assert_exact()


def test_a_replica_whose_engine_stands_still_is_replaced_while_the_other_goes_on(
    live_run: Callable[..., Any], chance: random.Random
) -> None:
    run = live_run(STEPS, **{"generator.replicas": 2, "weights.update_limit_s": 30})
    run.until(chance.randint(2, 8))
    frozen = run.kill("engine", chance, signal.SIGSTOP)
    at = run.trained()
    seconds = run.finish()
    print(f"engine: stopped at step {at}, finished by itself after {seconds:.0f} s")
    assert not frozen.is_running(), "the replica that stood still was kept"
    run.assert_exact()
