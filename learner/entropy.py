"""Entropy of the policy in the objective: the bonus coefficient, and the entropy threshold of the trained
tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from hora_rl.common.config import Objective
from hora_rl.learner.totals import gathered


class EntropyControl:
    """Coefficient of the entropy bonus: constant, or adapted towards `entropy_target` after every update.

    As in TRL (Skywork-OR1, 2505.22312): the coefficient grows by entropy_coef_delta if the mean entropy of
    the last update is at most the target and shrinks by the same amount otherwise, within its bounds. Above
    the target and before the first update there is no bonus.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._coefficient, self._last = objective.entropy_coef, math.inf

    @property
    def coefficient(self) -> float:
        """Bonus of the next update per nat of mean entropy."""
        target = self._objective.entropy_target
        return self._coefficient if target is None or self._last <= target else 0.0

    def observe(self, entropy: float) -> None:
        """Record the mean entropy (nats) of one update's tokens, over all ranks."""
        objective = self._objective
        if objective.entropy_target is None:
            return
        up = entropy <= objective.entropy_target
        moved = self._coefficient + (objective.entropy_coef_delta if up else -objective.entropy_coef_delta)
        self._coefficient = min(objective.entropy_coef_max, max(objective.entropy_coef_min, moved))
        self._last = entropy

    def state_dict(self) -> dict[str, float]:
        return {"coefficient": self._coefficient, "last": self._last}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._coefficient, self._last = state["coefficient"], state["last"]


def threshold(entropies: Sequence[torch.Tensor], share: float, world: int) -> float:
    """The (1 - share) quantile of the entropies of all ranks' tokens. A collective where `world` > 1."""
    own = torch.cat(list(entropies)).float().cpu().numpy()
    every = np.concatenate(gathered(own, world))
    return float(np.quantile(every, 1.0 - share)) if len(every) else 0.0
