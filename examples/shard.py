"""Rollouts of some prompts that arrive one by one, and what comes next: the part of the examples that no
trainer matters to.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allocator import Session


class Shard:
    """`prompts` prompts that share a budget of `group_size` rollouts each; all begin with `pre_rollouts`
    (Phase A).

    >>> shard = Shard(prompts=2, group_size=4, pre_rollouts=2, rule="hit_utility", rounds=1, stop="hit")
    >>> [shard.arrived(place, hit) for place, hit in ((0, True), (1, False), (0, True))]
    [None, None, None]
    >>> shard.arrived(1, False)  # Phase A is whole
    array([0, 4])
    """

    def __init__(
        self, prompts: int, group_size: int, pre_rollouts: int, rule: str, rounds: int, stop: str = "none"
    ) -> None:
        budget = prompts * (group_size - pre_rollouts)
        self._session = Session(prompts, budget, rule, rounds=rounds, stop=stop)
        self._asked = np.full(prompts, pre_rollouts, dtype=np.int64)
        self._came, self._hits = np.zeros_like(self._asked), np.zeros_like(self._asked)

    def arrived(self, place: int, success: bool) -> NDArray[np.int64] | None:
        """Count one rollout of the prompt at `place`; one that failed counts as no success.

        Returns the rollouts (prompts,) of the next round when this one is whole, all zeros when the budget is
        spent.
        """
        if self._came[place] == self._asked[place]:
            raise ValueError(f"prompt {place}: more than the {self._asked[place]} rollouts of this round")
        self._came[place] += 1
        self._hits[place] += success
        if (self._came < self._asked).any():
            return None
        self._session.tell(self._hits, self._asked)
        self._asked = self._session.ask()
        self._came, self._hits = np.zeros_like(self._asked), np.zeros_like(self._asked)
        return self._asked.copy()
