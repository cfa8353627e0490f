"""The allocation as it is defined: one rollout after the other, to the highest gain, in exact arithmetic."""

from collections.abc import Callable, Sequence
from fractions import Fraction

Gain = Callable[[Fraction, Fraction, int, int, int, int], tuple[int, Fraction]]
"""(α, β, successes, trials, Phase B's so far, level) -> (0 or a later place in line, gain)."""


def none_of(alpha: Fraction, beta: Fraction, rollouts: int) -> Fraction:
    """Probability of no success in so many rollouts, from the Beta-binomial."""
    value = Fraction(1)
    for j in range(rollouts):
        value *= (beta + j) / (alpha + beta + j)
    return value


def hit(a: Fraction, b: Fraction, c: int, n: int, extra: int, level: int) -> tuple[int, Fraction]:
    return 0, none_of(a, b, level) - none_of(a, b, level + 1)


def miss(a: Fraction, b: Fraction, c: int, n: int, extra: int, level: int) -> tuple[int, Fraction]:
    return 0, none_of(b, a, level) - none_of(b, a, level + 1)


def first_hit(a: Fraction, b: Fraction, c: int, n: int, extra: int, level: int) -> tuple[int, Fraction]:
    if c == 0:
        return hit(a, b, c, n, extra, level)
    hits = c + level * a / (a + b)
    return 1, a / (a + b) * (1 / hits - 1 / (hits + 1))


def hit_or_miss(weight: Fraction) -> Gain:
    def gain(a: Fraction, b: Fraction, c: int, n: int, extra: int, level: int) -> tuple[int, Fraction]:
        if c == 0:
            return 0, weight * hit(a, b, c, n, extra, level)[1]
        return miss(a, b, c, n, extra, level) if c == n else (1, Fraction(-(n + level)))

    return gain


def of_worth(worth: Callable[[int], Fraction], done: Callable[[int], bool] = lambda c: False) -> Gain:
    """E[w(hits after one more) - w(hits)] by the Beta-binomial of `level` rollouts, one outcome at a time."""

    def gain(a: Fraction, b: Fraction, c: int, n: int, extra: int, level: int) -> tuple[int, Fraction]:
        if done(c):
            return first_hit(a, b, c, n, extra, level)
        chance = {c: Fraction(1)}
        for i in range(level):
            moved: dict[int, Fraction] = {}
            for hits, part in chance.items():
                right = (a + hits - c) / (a + b + i)
                moved[hits + 1] = moved.get(hits + 1, Fraction(0)) + part * right
                moved[hits] = moved.get(hits, Fraction(0)) + part * (1 - right)
            chance = moved
        gains = ((a + h - c) * part * (worth(h + 1) - worth(h)) for h, part in chance.items())
        return 0, sum(gains, Fraction(0)) / (a + b + level)

    return gain


GAINS: dict[str, Gain] = {
    "hit_utility": hit,
    "uniform": lambda a, b, c, n, extra, level: (0, Fraction(-(extra + level))),
    "hard_first": lambda a, b, c, n, extra, level: (int(c > 0), Fraction(-(extra + level))),
    "first_hit": first_hit,
    "first_hit(hit_utility)": lambda a, b, c, *rest: (int(c > 0), hit(a, b, c, *rest)[1]),
    "mixed": hit_or_miss(Fraction(1)),
    "hit_or_miss": hit_or_miss(Fraction(2)),
    "hit_or_miss(0.75)": hit_or_miss(Fraction(3, 4)),
    "expected_worth(2.5)": of_worth(lambda c: Fraction(2 * c, 2 * c + 5)),
    "first_hit(2)": of_worth(lambda c: Fraction(min(c, 2)), lambda c: c >= 2),
    "probe_aware": lambda a, b, c, n, extra, level: hit(a, b, c, n, extra, n + level),
}
SERVED = {"none": lambda c, n: True, "hit": lambda c, n: c == 0, "mixed": lambda c, n: c in (0, n)}


def one_by_one(
    rule: str,
    successes: Sequence[int],
    trials: Sequence[int],
    extra: Sequence[int],
    prior: tuple[Sequence[float], Sequence[float]],
    budget: int,
    stop: str = "none",
    cap: int | None = None,
) -> list[int]:
    """Δ (n,) of one round."""
    given = [0] * len(successes)

    def place(i: int) -> tuple[int, int, Fraction, int, int]:
        c, n = successes[i], trials[i]
        a, b = Fraction(float(prior[0][i])) + c, Fraction(float(prior[1][i])) + n - c
        if SERVED[stop](c, n):
            tier, gain = 0, GAINS[rule]
        else:
            tier, gain = (1, miss) if c == n > 0 else (2, GAINS[rule])
        line, worth = gain(a, b, c, n, extra[i], given[i])
        return tier, line, -worth, c, i

    places = [place(i) for i in range(len(successes))]
    for _ in range(budget):
        i = min(p for p in places if cap is None or trials[p[-1]] + given[p[-1]] < cap)[-1]
        given[i] += 1
        places[i] = place(i)
    return given
