"""A prior's state as an .npz file of plain arrays, written atomically and read without pickle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hora_rl.allocator.priors.base import State


def save_state(path: str | Path, name: str, state: State) -> None:
    """Write the state of prior `name` to `path`."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    arrays: dict[str, Any] = {f"state/{k}": v for k, v in state.items()}
    with part.open("wb") as file:
        np.savez(file, prior=np.array(name), **arrays)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load_state(path: str | Path, name: str) -> State:
    """The state in `path`. Raises ValueError if it belongs to another prior than `name`."""
    with np.load(path, allow_pickle=False) as arrays:
        found = str(arrays["prior"]) if "prior" in arrays else "no prior"
        if found != name:
            raise ValueError(
                f"{path}: holds the state of {found}, not of {name}; fit it with `python -m "
                "hora_rl.deploy.fit_prior`"
            )
        return {k.removeprefix("state/"): arrays[k] for k in arrays.files if k != "prior"}
