"""Folders of weights by step, and `hora.json`, which records the run and step of exported weights.

Weights that may be the best are in RUN/candidates/step-00000020. The learner writes a candidate before any
checkpoint that contains its step, so a restart finds the folder or repeats the step. The launcher compares
evaluations, moves the best to RUN/best and deletes the rest."""

import json
from pathlib import Path

from hora_rl.common.config import LearnerConfig
from hora_rl.common.errors import ConfigError
from hora_rl.common.model.model_files import ORIGIN

BEST = "best"
CANDIDATES = "candidates"


def write_origin(folder: Path, run: str, step: int, base_weights: str | None = None) -> None:
    """Record the run and step of the weights in `folder`, and an adapter's base."""
    about = {"run": run, "step": step, **({"base_weights": base_weights} if base_weights else {})}
    (folder / ORIGIN).write_text(json.dumps(about) + "\n")


def steps_in(folder: Path) -> dict[int, Path]:
    """The folders `step-*` in `folder`, by step. Partial and refused ones have other names."""
    named = ((path.name.removeprefix("step-"), path) for path in folder.glob("step-*"))
    return {int(step): path for step, path in named if step.isdecimal()}


def step_of(model: str) -> int | None:
    """The optimizer steps behind the weights of a model folder; None for a hub name or a folder that no run
    exported. Raises ConfigError for a file without a step."""
    path = Path(model) / ORIGIN
    if not path.is_file():
        return None
    try:
        return int(json.loads(path.read_text())["step"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f'{path}: does not say the step ({error!r}): remove it, or write it as {{"step": N}}'
        ) from None


def is_candidate(learner: LearnerConfig, every: int | None, step: int) -> bool:
    """Whether the weights after `step` steps are evaluated (every `every` steps) and may be the best."""
    if learner.keep_best is None or every is None:
        return False
    return step % every == 0 or step == learner.steps


def candidate(run_dir: Path, step: int) -> Path:
    return run_dir / CANDIDATES / f"step-{step:08d}"


def candidates_in(run_dir: Path) -> dict[int, Path]:
    return steps_in(run_dir / CANDIDATES)


def best_step(run_dir: Path) -> int | None:
    """The step of the weights in RUN/best; None without any."""
    return step_of(str(run_dir / BEST))


def is_missing(run_dir: Path, step: int) -> bool:
    """Whether neither RUN/candidates nor RUN/best holds the weights after `step` steps."""
    return not candidate(run_dir, step).exists() and best_step(run_dir) != step
