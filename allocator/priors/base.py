"""Protocols of priors, the fixed one (the paper's choice and the default), and the file of a prior's state,
an .npz of plain arrays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.posterior import Float, Int

State = dict[str, NDArray]
FIXED_STRENGTH = 2.0
"""α + β where the strength is not learned, as in Beta(1, 1)."""


class Prior(Protocol):
    """Predicts a Beta prior per prompt and learns after each generation cycle. Prompts are data set rows."""

    name: str
    learns: bool
    """Whether `update` changes predictions."""

    def predict(self, prompts: Int) -> tuple[Float, Float]:
        """(alpha0 (n,), beta0 (n,)) of prompts (n,), all positive; else ValueError naming the prior."""

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        """Learn from one generation cycle: c_i (n,) successes of `trials` rollouts per prompt (n,)."""

    def state_dict(self) -> State:
        """All state that `update` changes, as arrays."""

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict()`."""


@runtime_checkable
class LearnedPrior(Prior, Protocol):
    """A prior that can be fitted to recorded rollouts before a run."""

    def fit(self, prompts: Int, successes: Int, trials: Int) -> float:
        """Fit to c_i successes (m,) of `trials` (m,) of prompts (m,); returns the mean loss per prompt."""


def checked(name: str, prompts: Int, alpha: Float, beta: Float) -> tuple[Float, Float]:
    """Return the prediction. Raises ValueError with prior and prompt unless finite and positive."""
    bad = ~(np.isfinite(alpha) & np.isfinite(beta) & (alpha > 0) & (beta > 0))
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"prior {name}: predicts Beta({alpha[i]}, {beta[i]}) for prompt {int(prompts[i])}; both must be "
            "finite and positive. Fit it again (python -m hora_rl.deploy.fit_prior), or use the fixed prior"
        )
    return alpha, beta


class FixedPrior:
    """Beta(alpha, beta) for all prompts."""

    name = "fixed"
    learns = False

    def __init__(self, alpha: float = 1.0, beta: float = 1.0) -> None:
        self._alpha = alpha
        self._beta = beta

    def predict(self, prompts: Int) -> tuple[Float, Float]:
        n = len(prompts)
        return checked(self.name, prompts, np.full(n, self._alpha), np.full(n, self._beta))

    def update(self, prompts: Int, successes: Int, trials: int) -> None:
        """Nothing to learn."""

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to restore."""


def save_state(path: str | Path, name: str, state: State) -> None:
    """Write the state of prior `name` to `path`, atomically."""
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
        prior = str(arrays["prior"]) if "prior" in arrays else "no prior"
        if prior != name:
            raise ValueError(
                f"{path}: holds the state of {prior}, not of {name}; fit it with `python -m "
                "hora_rl.deploy.fit_prior`"
            )
        return {k.removeprefix("state/"): arrays[k] for k in arrays.files if k != "prior"}
