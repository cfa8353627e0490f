"""Why the learner ended, in one line, from what Ray says in many."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import OutOfMemoryError
from ray.train import WorkerGroupError

from hora_rl.common.errors import RunError
from hora_rl.learner import launch

# As Ray 2.60 wrote it, shortened.
SHORT_OF_MEMORY = """1 worker(s) were killed due to the node running low on memory. Memory on the node \
(IP: 192.0.2.2, ID: 307e) was 22.78GB used / 23.54GB limit (0.96)
OOM kill reason: Memory usage 2982658048B exceeded threshold of 2906798848B (11.5% of 25276510208B limit)
Object store memory usage: [- objects spillable: 1
- bytes spillable: 1651

(global lru) num evictions: 0]
Ray killed 2 worker(s) based on the killing policy
Considered workers: [
Selected to kill: (Task: job ID=01000000, lease ID=00000000aeb, task name=PreemptionWatcher.__init__, \
required resources={}, pid=9006, actual memory used=0.10GB, worker ID=1560)
Selected to kill: (Task: job ID=01000000, lease ID=00000000aea, task name=RayTrainWorker.execute, \
required resources={}, pid=9007, actual memory used=7.05GB, worker ID=1561)
]
Total non-selected idle workers: 2
Top 10 memory users: PID\tMEM(GB)\tCOMMAND
8320\t0.57\tray::IDLE
Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/en/latest/x.html. \
Consider provisioning more memory."""


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError(SHORT_OF_MEMORY),
        RuntimeError(f"Training failed due to worker errors:\n{SHORT_OF_MEMORY}"),
    ],
)
def test_of_short_memory_the_process_the_memory_and_the_keys_are_named(error: Exception) -> None:
    said = launch.reason(error)
    assert "\n" not in said
    for fact in ("9007", "7.05 GB", "22.78 of 23.54 GB", "192.0.2.2", "learner.tokens_per_microbatch"):
        assert fact in said, fact


def test_any_other_error_is_its_last_line_and_ours_is_whole() -> None:
    assert launch.reason(ValueError("a\nray.x.Y: the last")) == "the learner stopped: the last"
    assert launch.reason(RunError("one line")) == "one line"


def dying(times: int, error: Exception) -> tuple[Callable[[], Any], list[int]]:
    """Trainers of which so many die, and one entry for each that was started."""
    started: list[int] = []

    class Trainer:
        def fit(self) -> SimpleNamespace:
            started.append(1)
            if len(started) <= times:
                raise error
            return SimpleNamespace(return_value=None)

    return Trainer, started


CONTROLLER, RANKS = OutOfMemoryError(SHORT_OF_MEMORY), WorkerGroupError("ranks died", {0: ValueError("x")})


def test_a_controller_that_dies_again_and_again_is_given_up() -> None:
    make, started = dying(2, CONTROLLER)
    launch.fit(make, lambda: 0)
    assert len(started) == 3
    make, started = dying(9, CONTROLLER)
    with pytest.raises(RunError, match="TrainController"):
        launch.fit(make, lambda: 0)
    assert len(started) == launch.CONTROLLERS


def test_ranks_that_die_without_a_step_are_given_up_at_once() -> None:
    make, started = dying(9, RANKS)
    with pytest.raises(WorkerGroupError):
        launch.fit(make, lambda: 0)
    assert len(started) == 1


@pytest.mark.parametrize("error", [CONTROLLER, RANKS])
def test_deaths_with_steps_between_them_end_no_run(error: Exception) -> None:
    make, started = dying(99, error)
    launch.fit(make, iter(range(1000)).__next__)
    assert len(started) == 100
