"""Phase B in rounds: what one round finds decides where the next one's rollouts go.

    session = Session(prompts=15, budget=360, rounds=4, stop="hit")
    session.tell(successes, trials)             # Phase A
    while not session.done:
        extra = session.ask()                   # the next round
        session.tell(*sample(extra))

A session is what it was told and nothing else: a process that starts anew tells the same again and asks for
the round that comes next.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from allocator.arguments import check_budget, check_counts, check_prior, check_trials
from allocator.posterior import Int
from allocator.problem import Problem, Tier, divide_at_least, serve
from allocator.rules import get_rule
from allocator.rules.base import Gain, Marginal, Mask, Rule, Sampled
from allocator.rules.outcomes import FIRST_MISS, no_failure, no_success, one_kind
from allocator.solver import check_least_trials

STOPS: dict[str, Callable[[Sampled], Mask] | None] = {"none": None, "hit": no_success, "mixed": one_kind}
"""Which prompts are still served, by `stop`."""


class Session:
    """Divides `budget` Phase B rollouts over n prompts in `rounds` rounds of equal budget.

    prompts: n. budget: Phase B's rollouts of all prompts together, e.g. n·(G - G0). rule: as for `allocate`.
    prior: (α0, β0), numbers or arrays (n,). rounds: R, 1 is the paper's one division. stop: `hit`, prompts
    with a success get no more; `mixed`, those with a success and a failure; `none`. max_group_size: cap on
    G_i. least_extra: how many Phase B rollouts every prompt gets at least, all in the first round; the rule
    must be a marginal gain, and nothing may stop. Where a round does not divide, later rounds are larger by
    one.

    What the prompts that are still served cannot take goes to prompts without a failure, where the first
    failure is most probable, and then by the rule's own gain to all others. So the rounds sum to `budget`
    exactly.

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

    Raises ValueError naming the argument, here and in every method.
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
        least_extra: int = 0,
    ) -> None:
        _check_whole("prompts", prompts, 1)
        _check_whole("budget", budget, 0)
        _check_whole("rounds", rounds, 1)
        if rounds > max(budget, 1):
            raise ValueError(
                f"rounds ({rounds}) exceeds the budget ({budget}): a round needs at least one rollout"
            )
        if stop not in STOPS:
            raise ValueError(f"stop: {stop!r} is none of {', '.join(STOPS)}")
        self._budget, self._rounds, self._cap = int(budget), int(rounds), max_group_size
        self._rule, self._stop = get_rule(rule), stop
        self._least = _check_least(least_extra, self._rule, stop, prompts, self._budget // self._rounds)
        self._prior = check_prior(prior, prompts)
        self._told = 0
        zeros = np.zeros(prompts, dtype=np.int64)
        self._sampled = Sampled(zeros, zeros, zeros)

    def tell(self, successes: ArrayLike, trials: ArrayLike) -> None:
        """Add what was sampled: `successes` (n,) among `trials`, an int or (n,). First Phase A, then each
        round.

        A round may have lost rollouts; what it did not spend is given by the next ones.
        """
        c, before = check_counts("successes", successes), self._sampled
        if len(c) != len(before):
            raise ValueError(f"successes must be of shape ({len(before)},), not ({len(c)},)")
        n = np.broadcast_to(check_trials("trials", trials, c), c.shape)
        extra = before.extra + n if self._told else before.extra
        if int(extra.sum()) > self._budget:
            raise ValueError(
                f"trials: this round's {int(n.sum())} and {self.spent} before exceed the budget "
                f"({self._budget})"
            )
        after = Sampled(before.successes + c, before.trials + n, extra)
        check_budget(self._budget - int(extra.sum()), after.successes, after.trials, self._cap)
        if not self._told:
            check_least_trials(self._rule, after.trials)
        self._sampled, self._told = after, self._told + 1

    def ask(self) -> NDArray[np.int64]:
        """The next round's Δ (n,); all zeros when the budget is spent. Asking again gives the same."""
        if not self._told:
            raise ValueError("ask: nothing was told; tell Phase A's successes and trials first")
        left = self._budget - self.spent
        if left == 0:
            return np.zeros(len(self._sampled), dtype=np.int64)
        share = max(1, left // max(1, self._rounds - self._told + 1))
        problem = Problem(self._sampled, self._prior, self._cap)
        if self._least and self._told == 1:
            return divide_at_least(self._least, self._rule, problem, share)
        return serve(problem, tiers(self._rule, self._stop, self._sampled), share)

    @property
    def spent(self) -> int:
        """Phase B's rollouts so far."""
        return int(self._sampled.extra.sum())

    @property
    def done(self) -> bool:
        """Whether Phase A was told and the whole budget is spent."""
        return self._told > 0 and self.spent == self._budget

    @property
    def successes(self) -> Int:
        """(n,) successes so far, Phase A's included."""
        return self._sampled.successes.copy()

    @property
    def trials(self) -> Int:
        """(n,) rollouts so far, Phase A's included: the size of each group."""
        return self._sampled.trials.copy()


def tiers(rule: Rule, stop: str, sampled: Sampled) -> list[Tier]:
    """Who is served, in this order; a prompt has its turn once."""
    everyone, serves = np.ones(len(sampled), dtype=np.bool_), STOPS[stop]
    if serves is None:
        return [(everyone, rule)]
    return [(serves(sampled), rule), (no_failure(sampled), FIRST_MISS), (everyone, rule)]


def _check_least(least: int, rule: Rule, stop: str, prompts: int, first_round: int) -> int:
    _check_whole("least_extra", least, 0)
    if least and not (isinstance(rule, Marginal) and stop == "none"):
        raise ValueError(
            f"least_extra ({least}) needs a rule that is a marginal gain and stop none, not rule {rule.name} "
            f"with stop {stop}"
        )
    if least * prompts > first_round:
        raise ValueError(
            f"least_extra ({least}) for {prompts} prompts exceeds the first round's {first_round} rollouts"
        )
    return int(least)


def _check_whole(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, not {value!r}")
