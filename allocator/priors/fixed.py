"""One fixed Beta prior for all prompts: the paper's choice and the default."""

from __future__ import annotations

import numpy as np

from hora_rl.allocator.posterior import Float, Int
from hora_rl.allocator.priors.base import State, checked


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
