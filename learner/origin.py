"""Weights in folders: which steps a run has, and `hora.json` beside exported weights, which says where they
come from."""

from __future__ import annotations

import json
from pathlib import Path

from hora_rl.common.errors import ConfigError
from hora_rl.common.weights.model_files import ORIGIN


def write_origin(folder: Path, run: str, step: int, base_weights: str | None = None) -> None:
    """Say that the weights in `folder` are those of `run` after `step` optimizer steps; of an adapter, for
    which base."""
    about = {"run": run, "step": step, **({"base_weights": base_weights} if base_weights else {})}
    (folder / ORIGIN).write_text(json.dumps(about) + "\n")


def steps_in(folder: Path) -> dict[int, Path]:
    """The folders `step-*` in `folder`, by step; partial and refused ones have other names."""
    named = ((path.name.removeprefix("step-"), path) for path in folder.glob("step-*"))
    return {int(step): path for step, path in named if step.isdecimal()}


def step_of(model: str) -> int | None:
    """The optimizer steps behind the weights of a model folder; None for one that no run exported, and for a
    hub name.

    Raises ConfigError for a file that does not say it.
    """
    path = Path(model) / ORIGIN
    if not path.is_file():
        return None
    try:
        return int(json.loads(path.read_text())["step"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: does not say the step ({error!r}); give it with --step") from None
