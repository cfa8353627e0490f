"""GRPO (2402.03300; the paper, section 3.1): rewards over the group's deviation."""

from numpy.typing import ArrayLike

from hora_rl.common.algorithms.base import Algorithm, Values, centred

STD_FLOOR = 1e-4


def advantage(rewards: ArrayLike) -> Values:
    """(R - mean)/(std + 1e-4), std with n - 1 as in TRL."""
    values = centred(rewards)
    return values / (values.std(ddof=1) + STD_FLOOR) if values.any() else values


ALGORITHM = Algorithm(advantage=advantage)
