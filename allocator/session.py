"""Phase B in rounds: each round's results decide where the next rollouts go.

    session = Session(prompts=15, budget=360, rounds=4, stop="hit")
    session.tell(successes, trials)             # Phase A
    while not session.done:
        extra = session.ask()                   # the next round
        session.tell(*sample(extra))

A session depends only on the results it has received. After a restart, tell the same results again.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.allocator.posterior import (
    Float,
    Int,
    check_budget,
    check_counts,
    check_prior,
    check_trials,
    check_whole,
)
from hora_rl.allocator.rules import get_rule
from hora_rl.allocator.rules.base import Gain, Mask, Rule, Sampled
from hora_rl.allocator.rules.hits import FIRST_MISS, no_failure, no_success, one_kind
from hora_rl.allocator.solver import Problem, Tier, check_least_trials, serve

STOPS: dict[str, Callable[[Sampled], Mask] | None] = {"none": None, "hit": no_success, "mixed": one_kind}
"""Active prompts by `stop`."""


class Session:
    """Divides `budget` Phase B rollouts over n prompts in `rounds` rounds of equal budget.

    prompts: n. budget: Phase B rollouts of all prompts, e.g. n·(G - G0). rule: as for `allocate`. prior:
    (α0, β0), numbers or arrays (n,). rounds: R; 1 is the paper's single division. stop: `hit` stops prompts
    with a success, `mixed` those with a success and a failure, `none` stops none. max_group_size: cap on G_i.

    If rounds do not divide the budget, later rounds get one more. Rollouts that active prompts cannot take go
    to prompts without a failure, by the probability of their first failure, then to all others by the rule's
    gain. So the rounds sum to `budget` exactly.

    >>> session = Session(prompts=3, budget=60, rounds=2, stop="hit")
    >>> session.tell([0, 0, 8], 8)
    >>> session.ask()
    array([15, 15,  0])
    >>> session.tell([0, 1, 0], [15, 15, 0])
    >>> session.ask()
    array([30,  0,  0])
    >>> session.tell([0, 0, 0], [30, 0, 0])
    >>> session.done
    True

    All methods raise ValueError naming the argument.
    """

    def __init__(
        self,
        prompts: int,
        budget: int,
        rule: str | Rule | Gain = "hit_utility",
        prior: tuple[ArrayLike, ArrayLike] = (1.0, 1.0),
        rounds: int = 1,
        stop: str = "none",
        max_group_size: int | None = None,
    ) -> None:
        check_whole("prompts", prompts, 1)
        check_whole("budget", budget, 0)
        check_whole("rounds", rounds, 1)
        if rounds > max(budget, 1):
            raise ValueError(
                f"rounds ({rounds}) exceeds the budget ({budget}): a round needs at least one rollout"
            )
        if stop not in STOPS:
            raise ValueError(f"stop: {stop!r} is none of {', '.join(STOPS)}")
        self._budget, self._rounds, self._cap = int(budget), int(rounds), max_group_size
        self._rule, self._stop = get_rule(rule), stop
        self._prior = check_prior(prior, prompts)
        self._rounds_told = 0
        zeros = np.zeros(prompts, dtype=np.int64)
        self._sampled = Sampled(zeros, zeros, zeros)

    def tell(self, successes: ArrayLike, trials: ArrayLike) -> None:
        """Add the results of all prompts, (n,) and an int or (n,): first Phase A, then each round. A round
        may have lost rollouts; later rounds spend them."""
        c, before = check_counts(successes), self._sampled
        if len(c) != len(before):
            raise ValueError(f"successes must be of shape ({len(before)},), not ({len(c)},)")
        n = np.broadcast_to(check_trials(trials, c), c.shape)
        extra = before.extra + n if self._rounds_told else before.extra
        if int(extra.sum()) > self._budget:
            raise ValueError(
                f"trials: this round's {int(n.sum())} and {self.spent} before exceed the budget "
                f"({self._budget})"
            )
        after = Sampled(before.successes + c, before.trials + n, extra)
        check_budget(self._budget - int(extra.sum()), after.successes, after.trials, self._cap)
        if not self._rounds_told:
            check_least_trials(self._rule, after.trials)
        self._sampled, self._rounds_told = after, self._rounds_told + 1

    def ask(self) -> NDArray[np.int64]:
        """Δ (n,) of the next round; zeros when the budget is spent. Repeated calls return the same."""
        if not self._rounds_told:
            raise ValueError("ask: nothing was told; tell Phase A's successes and trials first")
        left = self._budget - self.spent
        if left == 0:
            return np.zeros(len(self._sampled), dtype=np.int64)
        over = max(self._rounds_told - 1, ((self.spent + 1) * self._rounds - 1) // self._budget)
        share = max(1, left // max(1, self._rounds - over))
        problem = Problem(self._sampled, self._prior, self._cap)
        return serve(problem, tiers(self._rule, self._stop, self._sampled), share)

    @property
    def spent(self) -> int:
        """Phase B rollouts so far."""
        return int(self._sampled.extra.sum())

    @property
    def done(self) -> bool:
        """Whether Phase A is complete and the budget is spent."""
        return self._rounds_told > 0 and self.spent == self._budget

    @property
    def successes(self) -> Int:
        """(n,) successes so far, including Phase A."""
        return self._sampled.successes.copy()

    @property
    def trials(self) -> Int:
        """(n,) rollouts so far, including Phase A: the group sizes."""
        return self._sampled.trials.copy()


def tiers(rule: Rule, stop: str, sampled: Sampled) -> list[Tier]:
    """Groups of prompts in order of priority, each with its rule; see `serve`."""
    everyone, serves = np.ones(len(sampled), dtype=np.bool_), STOPS[stop]
    if serves is None:
        return [(everyone, rule)]
    return [(serves(sampled), rule), (no_failure(sampled), FIRST_MISS), (everyone, rule)]


def simulate(session: Session, rates: Float, pre_rollouts: int, rng: np.random.Generator) -> tuple[Int, Int]:
    """A session on prompts with these `rates` (n,): successes and group sizes, both (n,)."""
    session.tell(rng.binomial(pre_rollouts, rates), pre_rollouts)
    while not session.done:
        extra = session.ask()
        session.tell(rng.binomial(extra, rates), extra)
    return session.successes, session.trials
