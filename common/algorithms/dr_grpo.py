"""Dr.GRPO (2503.20783): R - mean, without the group's deviation."""

from hora_rl.common.algorithms.base import Algorithm, centred

ALGORITHM = Algorithm(advantage=centred, per_group=True)
