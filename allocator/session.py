"""Phase B in rounds, or one rollout at a time: each result decides where the next rollouts go.

    session = Session(prompts=15, budget=360, rounds=4, stop="hit")
    session.tell(successes, trials)             # Phase A
    while not session.done:
        extra = session.ask()                   # the next round
        session.tell(*sample(extra))

The same with results in any order; `start` samples one rollout of a prompt in the background:

    session = Session(prompts=15, budget=360, rounds=4, stop="hit", pre_rollouts=8)
    while not session.done:
        while (prompt := session.next()) is not None:
            start(prompt)
        session.tell(*arrived())                # (prompt, success) of the first to arrive

A session depends only on the results it has received. After a restart, tell the same results again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.allocator.arguments import check_budget, check_counts, check_prior, check_trials, check_whole
from hora_rl.allocator.posterior import Int
from hora_rl.allocator.problem import Problem, Tier, check_least_trials, divide_at_least, serve
from hora_rl.allocator.rules import get_rule
from hora_rl.allocator.rules.base import Gain, Marginal, Mask, Rule, Sampled
from hora_rl.allocator.rules.outcomes import FIRST_MISS, no_failure, no_success, one_kind

STOPS: dict[str, Callable[[Sampled], Mask] | None] = {"none": None, "hit": no_success, "mixed": one_kind}
"""Active prompts by `stop`."""


class Session:
    """Divides `budget` Phase B rollouts over n prompts in `rounds` rounds of equal budget.

    prompts: n. budget: Phase B rollouts of all prompts, e.g. n·(G - G0). rule: as for `allocate`. prior:
    (α0, β0), numbers or arrays (n,). rounds: R; 1 is the paper's single division. stop: `hit` stops prompts
    with a success, `mixed` those with a success and a failure, `none` stops none. max_group_size: cap on G_i.
    least_extra: minimum Phase B rollouts per prompt, all in the first round; needs a marginal gain and stop
    `none`. pre_rollouts: G0, for `next`. in_flight: instead of rounds, `next` keeps at most this many Phase B
    rollouts in flight and places each by all results so far; `hit_utility` needs a stop there.

    If rounds do not divide the budget, later rounds get one more. Rollouts that active prompts cannot take go
    to prompts without a failure, by the probability of their first failure, then to all others by the rule's
    gain. So the rounds sum to `budget` exactly.

    >>> session = Session(prompts=3, budget=60, rounds=2, stop="hit")
    >>> told = session.tell([0, 0, 8], 8)
    >>> session.ask()
    array([15, 15,  0])
    >>> told = session.tell([0, 1, 0], [15, 15, 0])
    >>> session.ask()
    array([30,  0,  0])
    >>> told = session.tell([0, 0, 0], [30, 0, 0])
    >>> session.done
    True
    >>> session = Session(prompts=2, budget=2, rule="first_hit", pre_rollouts=1, in_flight=1)
    >>> session.next(), session.next(), session.next()
    (0, 1, None)
    >>> session.tell(1, True), session.next(), session.tell(0, False), session.next()
    (True, None, True, 0)

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
        least_extra: int = 0,
        pre_rollouts: int | None = None,
        in_flight: int | None = None,
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
        self._least, self._pre, self._in_flight = least_extra, pre_rollouts, in_flight
        _check_least(least_extra, self._rule, stop, prompts, self._budget // self._rounds)
        _check_in_flight(in_flight, pre_rollouts, rounds, least_extra)
        self._prior = check_prior(prior, prompts)
        self._told = 0
        zeros = np.zeros(prompts, dtype=np.int64)
        self._sampled = Sampled(zeros, zeros, zeros)
        if pre_rollouts is not None:
            check_whole("pre_rollouts", pre_rollouts, 0)
            check_budget(self._budget, zeros, zeros + pre_rollouts, max_group_size)
            check_least_trials(self._rule, zeros + pre_rollouts)
        self._out, self._due = zeros.copy(), zeros.copy()
        self._known: dict[Hashable, tuple[int, bool]] = {}

    @overload
    def tell(self, prompt: int, success: bool, rollout: Hashable = None, /) -> bool: ...

    @overload
    def tell(self, successes: ArrayLike, trials: ArrayLike, /) -> bool: ...

    def tell(self, first: Any, second: Any, rollout: Hashable = None, /) -> bool:
        """Add results; returns whether they count.

        (prompt, success, rollout): one rollout, also if `next` did not ask for it. Rollouts beyond the budget
        or `max_group_size` do not count, nor does a name `rollout` that was told before.

        (successes, trials): (n,) and an int or (n,), of all prompts; first Phase A, then each round. A round
        may have lost rollouts; later rounds spend them.
        """
        if np.ndim(first) == 0:
            return self._tell_one(first, second, rollout)
        self._tell_round(first, second)
        return True

    def lost(self, prompt: int) -> None:
        """Stop waiting for one rollout of `prompt`: `next` asks for it again. A late arrival still counts."""
        at = self._place(prompt)
        self._out[at] = max(0, self._out[at] - 1)

    def next(self) -> int | None:
        """The prompt to sample once more now. None: wait for a result, or the budget is spent.

        Phase A comes first. Phase B begins when all its results are told.
        """
        if not self._due.any():
            self._due = self._ready()
        prompt = int(np.argmax(self._due))
        if not self._due[prompt]:
            return None
        self._due[prompt] -= 1
        self._out[prompt] += 1
        return prompt

    def _ready(self) -> Int:
        """(n,) rollouts that can start now."""
        if self._pre is None:
            raise ValueError("pre_rollouts: `next` needs it, the rollouts that each prompt begins with")
        trials, out, none = self._sampled.trials, self._out, np.zeros_like(self._out)
        if bool((trials < self._pre).any()):
            return np.maximum(self._pre - trials - out, 0)
        waiting = int(out.sum())
        if self._in_flight is None:
            return none if waiting else self.ask()
        if waiting >= min(self._in_flight, self._budget - self.spent):
            return none
        # Rollouts in flight count as given. The optimum with one more tells which prompt lacks it.
        problem = Problem(self._sampled, self._prior, self._cap)
        lacks = serve(problem, tiers(self._rule, self._stop, self._sampled), waiting + 1) - out
        none[np.argmax(lacks)] = int(lacks.max() > 0)
        return none

    def _tell_one(self, prompt: int, success: bool, rollout: Hashable) -> bool:
        before = self._sampled
        told = (self._place(prompt), bool(success))
        if success not in (0, 1):
            raise ValueError(f"success must be true or false, not {success!r}")
        if self._pre is None:
            raise ValueError("pre_rollouts: needed to tell one rollout, which may be of Phase A")
        if rollout is not None:
            if (known := self._known.get(rollout, told)) != told:
                raise ValueError(f"rollout {rollout!r} was told as {known} before, and now as {told}")
            if rollout in self._known:
                return False
            self._known[rollout] = told
        self.lost(prompt)
        one = np.zeros_like(self._out)
        one[prompt] = 1
        of_b = one * (before.trials >= self._pre)
        full = self._cap is not None and before.trials[prompt] >= self._cap
        if full or self.spent + of_b.sum() > self._budget:
            return False
        self._sampled = Sampled(before.successes + one * told[1], before.trials + one, before.extra + of_b)
        self._told = max(self._told, int((self._sampled.trials >= self._pre).all()))
        return True

    def _place(self, prompt: int) -> int:
        n = len(self._sampled)
        if isinstance(prompt, bool) or not isinstance(prompt, int | np.integer) or not 0 <= prompt < n:
            raise ValueError(f"prompt must be a whole number in 0..{n - 1}, not {prompt!r}")
        return int(prompt)

    def _tell_round(self, successes: ArrayLike, trials: ArrayLike) -> None:
        c, before = check_counts(successes), self._sampled
        if len(c) != len(before):
            raise ValueError(f"successes must be of shape ({len(before)},), not ({len(c)},)")
        n = np.broadcast_to(check_trials(trials, c), c.shape)
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
        """Δ (n,) of the next round; zeros when the budget is spent. Repeated calls return the same."""
        if not self._told:
            raise ValueError("ask: nothing was told; tell Phase A's successes and trials first")
        left = self._budget - self.spent
        if left == 0:
            return np.zeros(len(self._sampled), dtype=np.int64)
        over = max(self._told - 1, ((self.spent + 1) * self._rounds - 1) // self._budget)
        share = max(1, left // max(1, self._rounds - over))
        problem = Problem(self._sampled, self._prior, self._cap)
        if self._least and self._told == 1:
            return divide_at_least(self._least, self._rule, problem, share)
        return serve(problem, tiers(self._rule, self._stop, self._sampled), share)

    @property
    def spent(self) -> int:
        """Phase B rollouts so far."""
        return int(self._sampled.extra.sum())

    @property
    def done(self) -> bool:
        """Whether Phase A is complete and the budget is spent."""
        return self._told > 0 and self.spent == self._budget

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


def _check_least(least: int, rule: Rule, stop: str, prompts: int, first_round: int) -> None:
    check_whole("least_extra", least, 0)
    if least and not (isinstance(rule, Marginal) and stop == "none"):
        raise ValueError(
            f"least_extra ({least}) needs a rule that is a marginal gain and stop none, not rule {rule.name} "
            f"with stop {stop}"
        )
    if least * prompts > first_round:
        raise ValueError(
            f"least_extra ({least}) for {prompts} prompts exceeds the first round's {first_round} rollouts"
        )


def _check_in_flight(in_flight: int | None, pre_rollouts: int | None, rounds: int, least: int) -> None:
    if in_flight is None:
        return
    check_whole("in_flight", in_flight, 1)
    if pre_rollouts is None or rounds > 1 or least:
        raise ValueError(
            f"in_flight ({in_flight}) goes one rollout at a time: it needs pre_rollouts, and neither "
            "rounds nor least_extra"
        )
