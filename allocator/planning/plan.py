"""`allocator.plan`: what each rule would find on prompts like the counted ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from hora_rl.allocator.checks import check_counts, check_trials, check_whole
from hora_rl.allocator.planning.forecast import forecast, reach
from hora_rl.allocator.planning.outcome import Arm
from hora_rl.allocator.planning.table import Plan
from hora_rl.allocator.posterior import Int
from hora_rl.allocator.rules import get_rule, needs_counts
from hora_rl.allocator.rules.base import Division
from hora_rl.allocator.session import STOPS

LEAST_PROMPTS, ENOUGH_PROMPTS = 100, 300
SIZES = (8, 16, 32, 64, 128)
ARMS = (
    *("uniform", "hit_utility", "hit_utility/hit", "mixed/mixed"),
    *("hit_or_miss", "hard_first", "variance", "knapsack"),
)


def plan(
    successes: ArrayLike,
    trials: ArrayLike,
    group_sizes: Sequence[int] | None = None,
    pre_rollouts: Sequence[int] | None = None,
    rules: Sequence[str] = ARMS,
    rounds: Sequence[int] = (1, 4),
    gradients: tuple[float, float, int] | None = None,
) -> Plan:
    """Forecast each rule on prompts like these; `print` shows the plan.

    successes: (m,) among `trials`, an int or (m,), of m >= 100 prompts, better 300. group_sizes: G, by
    default every power of two from 16 that the trials reach. pre_rollouts: G0, by default 4 and 8. rules: as
    for `allocate`, with a stop after a slash: `first_hit/hit`. rounds: R. gradients: the noise r of a hit,
    the overlap ρ of two prompts' gradients and Γ, which give the leverage 1/(1 + ρA) of a gain
    (docs/explanation/method.md, Rules).

    >>> rates = np.random.default_rng(0).beta(0.3, 0.9, 400)
    >>> forecast = plan(np.random.default_rng(1).binomial(64, rates), 64, [16], [4], ["first_hit/hit"], [4])
    >>> forecast.recommended.uniform_group_size
    38

    Raises ValueError naming the argument and the first offending index, or a group size beyond the trials.
    """
    c, n = _counts(successes, trials)
    chosen = arms_within(reach(n), group_sizes, pre_rollouts, rules, rounds, gradients)
    few = f"{len(c)} prompts are few; {ENOUGH_PROMPTS} make intervals that a plan can be built on"
    return forecast(c, n, chosen, (few,) if len(c) < ENOUGH_PROMPTS else (), gradients)


def arms_within(
    most: int,
    group_sizes: Sequence[int] | None,
    pre_rollouts: Sequence[int] | None,
    rules: Sequence[str],
    rounds: Sequence[int],
    gradients: tuple[float, float, int] | None,
) -> list[Arm]:
    """The arms of a `plan` from `most` trials a prompt. Raises ValueError as it does."""
    sizes = _sizes(group_sizes, most)
    pre = (
        [g for g in (4, 8) if g < max(sizes)]
        if pre_rollouts is None
        else _whole("pre_rollouts", pre_rollouts)
    )
    chosen = arms([_rule(i, rule) for i, rule in enumerate(rules)], _whole("rounds", rounds), pre, sizes)
    _check(most, chosen)
    noise, overlap, prompts = gradients or (0.0, 0.0, 1)
    if not (noise >= 0 and 0 <= overlap < 1 and prompts >= 1):
        raise ValueError(
            f"gradients = ({noise:g}, {overlap:g}, {prompts}): the noise is from 0, the overlap from 0 to "
            "below 1, and there is a prompt"
        )
    return chosen


def _counts(successes: ArrayLike, trials: ArrayLike) -> tuple[Int, Int]:
    c = check_counts(successes)
    n = np.broadcast_to(check_trials(trials, c), c.shape)
    if not n.all():
        raise ValueError(f"trials[{int(np.argmin(n))}] = 0 must be positive")
    if len(c) < LEAST_PROMPTS:
        raise ValueError(
            f"successes: {len(c)} prompts say too little about how rates are distributed: a plan needs "
            f"{LEAST_PROMPTS}, better {ENOUGH_PROMPTS}, training prompts"
        )
    return c, n


def _sizes(numbers: Sequence[int] | None, most: int) -> list[int]:
    if numbers is not None:
        return _whole("group_sizes", numbers)
    within = [g for g in SIZES if 8 < g <= most]
    if not within:
        raise ValueError(
            f"trials: {most} trials a prompt are too few to plan with: sample 16 or more, or give "
            "group_sizes and pre_rollouts within them"
        )
    return within


def _whole(name: str, numbers: Sequence[int]) -> list[int]:
    if not len(numbers):
        raise ValueError(f"{name} is empty")
    return [check_whole(f"{name}[{i}]", number, 1) for i, number in enumerate(numbers)]


def _rule(i: int, text: str) -> tuple[str, str]:
    """(rule, stop) of `hit_utility/hit`."""
    rule, _, stop = text.partition("/")
    if (stop or "none") not in STOPS:
        raise ValueError(f"rules[{i}] = {text!r}: stop {stop!r} is none of {', '.join(STOPS)}")
    try:
        get_rule(rule)
    except ValueError as error:
        raise ValueError(f"rules[{i}] = {text!r}: {error}") from None
    return rule, stop or "none"


def arms(
    rules: Sequence[tuple[str, str]],
    rounds: Sequence[int],
    pre_rollouts: Sequence[int],
    group_sizes: Sequence[int],
) -> list[Arm]:
    """All valid combinations: G0 < G, and uniform once per G."""
    return [
        Arm(rule, stop, r if needs_counts(rule) else 1, g0, g)
        for g in sorted(set(group_sizes))
        for g0 in (sorted(set(pre_rollouts)))
        for rule, stop in rules
        for r in sorted(set(rounds))
        if g0 < g and (needs_counts(rule) or (r == min(rounds) and g0 == min(pre_rollouts)))
    ]


def _check(most: int, chosen: Sequence[Arm]) -> None:
    """Raise ValueError for an arm that is impossible, or beyond `most` trials per prompt."""
    if not chosen:
        raise ValueError("no arm to plan: every pre_rollouts must leave some group_sizes above it")
    for arm in chosen:
        if arm.group_size > most:
            raise ValueError(
                f"group size {arm.group_size} is beyond these counts: of {most} trials a prompt nothing is "
                f"known beyond {most}; sample more, or ask for group size {most}"
            )
        rule = get_rule(arm.rule)
        if not isinstance(rule, Division) and arm.pre_rollouts < rule.least_trials:
            raise ValueError(
                f"rule {arm.rule} needs {rule.least_trials} pre-rollouts, not {arm.pre_rollouts}"
            )
