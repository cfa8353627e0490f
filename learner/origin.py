"""Folders of weights by step, and `hora.json`, which records the run and step of exported weights."""

from __future__ import annotations

import json
from pathlib import Path

from hora_rl.common.errors import ConfigError
from hora_rl.common.weights.model_files import ORIGIN


def write_origin(folder: Path, run: str, step: int, base_weights: str | None = None) -> None:
    """Record that the weights in `folder` are those of `run` after `step` optimizer steps, and an adapter's
    base."""
    about = {"run": run, "step": step, **({"base_weights": base_weights} if base_weights else {})}
    (folder / ORIGIN).write_text(json.dumps(about) + "\n")


def steps_in(folder: Path) -> dict[int, Path]:
    """The folders `step-*` in `folder`, by step. Partial and refused ones have other names."""
    named = ((path.name.removeprefix("step-"), path) for path in folder.glob("step-*"))
    return {int(step): path for step, path in named if step.isdecimal()}


def step_of(model: str) -> int | None:
    """The optimizer steps behind the weights of a model folder; None for a hub name or a folder that no run
    exported.

    Raises ConfigError for a file without a step.
    """
    path = Path(model) / ORIGIN
    if not path.is_file():
        return None
    try:
        return int(json.loads(path.read_text())["step"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: does not say the step ({error!r}); give it with --step") from None
