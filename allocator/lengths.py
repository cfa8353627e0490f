"""Budgets in tokens: expected lengths, gain per token, and rollouts for a number of tokens.

A wrong answer to a hard prompt may be twice as long as a right answer to an easy one. So the expected length
ℓ of a prompt's completions is learned per class of c, and rollouts go where gain/ℓ is highest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora_rl.allocator.posterior import Float, Int, Posterior
from hora_rl.allocator.rules import get_rule
from hora_rl.allocator.rules.base import Marginal, Rule
from hora_rl.allocator.session import Session

STRENGTH = 8.0
"""Pseudo-rollouts of mean length in each class's average."""

WINDOW = 10
"""Cycles remembered: lengths change while a model learns."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens per completion: the mean over all prompts, and `by_class`, whose entry c of k+1 is expected at a
    success share of c/k."""

    mean: float
    by_class: tuple[float, ...]

    def of(self, successes: Int, trials: Int) -> Float:
        """Expected length of prompts with `successes` among `trials`; shapes broadcast."""
        classes = len(self.by_class) - 1
        nearest = np.rint(classes * successes / np.maximum(trials, 1)).astype(np.int64)
        return np.asarray(self.by_class)[nearest]


def expected_lengths(successes: ArrayLike, tokens: ArrayLike, trials: int) -> Lengths:
    """Lengths from `successes` (m,) among `trials` rollouts and `tokens` (m,), the sum per prompt.

    Raises ValueError for no prompts, or for a prompt with fewer tokens than rollouts.
    """
    c, spent = np.asarray(successes, dtype=np.int64), np.asarray(tokens, dtype=np.float64)
    if c.ndim != 1 or c.shape != spent.shape or not len(c):
        raise ValueError(
            f"tokens must be of the shape of successes, {c.shape}, and not empty, not {spent.shape}"
        )
    if float(spent.min()) < trials:
        i = int(np.argmin(spent))
        raise ValueError(f"tokens[{i}] = {spent[i]:g}: {trials} rollouts have at least one token each")
    mean = float(spent.mean()) / trials
    prompts = np.bincount(c, minlength=trials + 1)
    by_class = np.bincount(c, weights=spent, minlength=trials + 1) + STRENGTH * mean
    return Lengths(mean, tuple((by_class / (prompts * trials + STRENGTH)).tolist()))


class RunningLengths:
    """Lengths from the Phase A rollouts of the last `WINDOW` cycles.

    Phase A samples all prompts alike, so the mean is that of uniform sampling under every rule.
    """

    def __init__(self, trials: int) -> None:
        self._trials = trials
        self._cycles: deque[list[tuple[int, int]]] = deque(maxlen=WINDOW)

    @property
    def now(self) -> Lengths | None:
        """Lengths of the cycles observed so far; None before the first."""
        counts = [pair for cycle in self._cycles for pair in cycle]
        if not counts:
            return None
        successes, tokens = zip(*counts, strict=True)
        return expected_lengths(successes, tokens, self._trials)

    def observe(self, successes: Sequence[int], tokens: Sequence[int]) -> None:
        """Record one cycle's prompts (m,). Raises ValueError unless there is one length per prompt."""
        if len(tokens) != len(successes):
            raise ValueError(
                f"{len(tokens)} lengths for {len(successes)} prompts: a budget in tokens needs one each"
            )
        self._cycles.append(list(zip(successes, tokens, strict=True)))


@lru_cache(maxsize=16)
def per_token(rule: str | Rule, lengths: Lengths) -> Rule:
    """`rule` with gains divided by the expected length. Rules without gains are returned unchanged."""
    chosen = get_rule(rule)
    if not isinstance(chosen, Marginal):
        return chosen

    def table(posterior: Posterior, depth: int) -> Float:
        expected = lengths.of(posterior.successes, posterior.trials)[:, None]
        return chosen.table(posterior, depth) - np.log(expected)

    return replace(chosen, name=f"{chosen.name} per token", table=table, exact=None)


def ask_tokens(
    outcomes: Sequence[tuple[ArrayLike, ArrayLike]],
    tokens: float,
    lengths: Lengths,
    rule: str | Rule = "hit_utility",
    prior: tuple[ArrayLike, ArrayLike] = (1.0, 1.0),
    stop: str = "none",
    max_group_size: int | None = None,
) -> NDArray[np.int64]:
    """Δ (n,) of the next round: as many rollouts as `tokens` are expected to pay for, by gain per token.

    told: successes (n,) and trials (an int or (n,)) of Phase A and of each round so far, as for
    `Session.tell`.
    """
    chosen = per_token(rule, lengths)
    c = np.sum([np.asarray(s) for s, _ in outcomes], axis=0)
    n = np.sum([np.broadcast_to(np.asarray(t), c.shape) for _, t in outcomes], axis=0)
    each = lengths.of(c, n)
    extra_before = int(n.sum()) - int(np.broadcast_to(np.asarray(outcomes[0][1]), c.shape).sum())

    def ask(rollouts: int) -> NDArray[np.int64]:
        session = Session(len(c), extra_before + rollouts, chosen, prior, 1, stop, max_group_size)
        for successes, trials in outcomes:
            session.tell(successes, trials)
        return session.ask()

    most = int(max(tokens, 0.0) / float(each.min()))
    if max_group_size is not None:
        most = min(most, len(c) * max_group_size - int(n.sum()))
    best = bisect_right(range(most + 1), tokens, key=lambda rollouts: float(ask(rollouts) @ each)) - 1
    return ask(max(best, 0))
