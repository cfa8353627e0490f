"""RLOO (2402.14740): each reward minus the mean of the others."""

from numpy.typing import ArrayLike

from hora_rl.common.algorithms.base import Algorithm, Values, centred


def advantage(rewards: ArrayLike) -> Values:
    """(R - mean)·n/(n - 1): unbiased for the mean reward's gradient at fixed n."""
    values = centred(rewards)
    return values * len(values) / max(1, len(values) - 1)


ALGORITHM = Algorithm(advantage=advantage)
