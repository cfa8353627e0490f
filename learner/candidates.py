"""Weights that may be the best: RUN/candidates/step-00000020, the policy of each evaluated step.

The learner writes a candidate before any checkpoint that contains its step, so a restart finds the folder or
repeats the step. The launcher compares evaluations, moves the best to RUN/best and deletes the rest.
"""

from __future__ import annotations

from pathlib import Path

from hora_rl.common.config import Learner
from hora_rl.learner.origin import step_of, steps_in

BEST = "best"
CANDIDATES = "candidates"


def is_candidate(learner: Learner, every: int | None, step: int) -> bool:
    """Whether the weights after `step` steps are evaluated (every `every` steps) and may be kept as the
    best."""
    if learner.keep_best is None or every is None:
        return False
    return step % every == 0 or step == learner.steps


def candidate(run_dir: Path, step: int) -> Path:
    return run_dir / CANDIDATES / f"step-{step:08d}"


def candidates_in(run_dir: Path) -> dict[int, Path]:
    """The complete candidates, by step."""
    return steps_in(run_dir / CANDIDATES)


def best_step(run_dir: Path) -> int | None:
    """The step of the weights in RUN/best; None without any."""
    return step_of(str(run_dir / BEST))


def is_missing(run_dir: Path, step: int) -> bool:
    """Whether neither RUN/candidates nor RUN/best holds the weights after `step` steps."""
    return not candidate(run_dir, step).exists() and best_step(run_dir) != step
