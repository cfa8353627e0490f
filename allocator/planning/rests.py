"""What letting solved prompts rest spares (`data.rest: [solved]`), exactly, while success rates stay."""

import numpy as np

from hora_rl.allocator.posterior import Float


def spared(rates: Float, pre_rollouts: int, epochs: int) -> Float:
    """Expected share of a run of `epochs` epochs that a prompt of each rate (K,) rests.

    A visit with all `pre_rollouts` right, the k-th in a row, is followed by a rest of 2^(k-1) epochs.
    """
    solved = rates**pre_rollouts
    visits = np.zeros((epochs, epochs + 1, len(rates)))  # probability of one, by epoch and series before it
    visits[0, 0] = 1.0
    for epoch in range(epochs - 1):
        visits[epoch + 1, 0] += visits[epoch].sum(0) * (1 - solved)
        for times in range(epoch + 1):
            back = epoch + 1 + 2**times
            if back < epochs:
                visits[back, times + 1] += visits[epoch, times] * solved
    return np.asarray(1 - visits.sum((0, 1)) / epochs)
