"""The Beta posterior of each prompt's success rate after Phase A (paper, section 3.2), and log Γ in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int64]
BetaPrior = tuple[float, float] | tuple[Float, Float]
"""(α0, β0): one prior for all prompts, or arrays (n,)."""


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """Beta(alpha, beta) of each prompt and the counts behind it. Arrays (n,), or shapes that broadcast."""

    alpha: Float
    beta: Float
    successes: Int
    trials: Int

    @property
    def mean(self) -> Float:
        """Posterior mean α/(α+β) of the success rate."""
        return self.alpha / (self.alpha + self.beta)

    def __len__(self) -> int:
        return len(self.alpha)

    def __getitem__(self, index: Any) -> Posterior:
        """Some of the prompts; `[:, None]` makes prompts the rows of a table over levels."""
        return Posterior(self.alpha[index], self.beta[index], self.successes[index], self.trials[index])


def posterior(successes: Int, trials: Int, alpha: Float, beta: Float) -> Posterior:
    """Beta(α0 + c, β0 + G0 - c) (paper, eq. posterior). All arguments (n,)."""
    return Posterior(alpha + successes, beta + (trials - successes), successes, trials)


def prior_from_rate(rate: Float, strength: Float | float) -> tuple[Float, Float]:
    """Beta prior (s·p̂, s·(1-p̂)) of a predicted success rate p̂ (n,) with strength s.

    With the counts this is the paper's learned posterior, α = s·p̂ + c and β = s(1-p̂) + G0 - c. s = 2 and
    p̂ = 1/2 give Beta(1, 1).
    """
    return np.asarray(strength * rate), np.asarray(strength * (1 - rate))


def log_gamma(x: Float) -> Float:
    """log Γ(x) for x > 0, any shape: Stirling's series at x + 8. Its first neglected term is below 1e-15."""
    z = x + 8
    product = x * (x + 1) * (x + 2) * (x + 3)
    rest = (x + 4) * (x + 5) * (x + 6) * (x + 7)
    inverse = 1 / z
    square = inverse * inverse
    series = inverse * (
        1 / 12
        - square
        * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square * (1 / 1188 - square * 691 / 360360))))
    )
    # Two logarithms: the product of eight factors leaves float64's range from about 1e38 on.
    return (z - 0.5) * np.log(z) - z + 0.5 * np.log(2 * np.pi) + series - np.log(product) - np.log(rest)
