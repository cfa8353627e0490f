"""Rules whose gain is a prompt's next hits under its posterior; l counts the extra rollouts already given.

`hit_utility`, HORA's: the expected probability of a hit, 1 - (1-p)^Δ. Its marginal gain is E[p(1-p)^l] =
B(α+1, β+l)/B(α, β): one more rollout after l misses (paper, section 3.2).
`probe_aware`: the same, counting the n rollouts so far: E[p(1-p)^(n+l)] (the mass-aware marginal of
linjiw/curriculum-maxrl, where n is G0). Often-solved prompts are left sooner.
`first_hit`: the first success, E[p(1-p)^l] while c = 0, then 0. Under a maximum-likelihood objective
Σ_i P(c_i >= 1) is the realised share of the likelihood's gradient, and this is its marginal gain.
`mixed`: the group becomes mixed, so that a group-relative advantage is not zero. E[p(1-p)^l] for an all-wrong
group, E[(1-p)p^l] for an all-right one, 0 for a mixed one. `hit_or_miss`: as `mixed`, with a first success
worth `weight` first failures.
In rounds the last three sample until the outcome. `rest` divides rollouts that no prompt gains from.

Rules with a worth w(c) of a group's hits: one more rollout gains E[p (w(c+1) - w(c))].
`expected_worth(r, overlap)`: w = c/(c + r'), r' = r/(1 - overlap). The mean score of c hits estimates ∇log p
with noise r/c, where r is the variance of one hit's score over |∇log p|². c/(c + r) is the best weight of
such a group and the share of |∇log p|² that it keeps. If the gradients of any two of Γ prompts, all of one
length, overlap by ρ, the best weights keep κ²A/(1 + ρA) of |Σ ∇log p|², with κ = 1 - ρ + ρΓ and A = Σ c/((1 -
ρ)c + r). That rises with A, so the worth of a group is c/(c + r'). r = 0 is `first_hit`. `first_hit(k)`: w =
min(c, k), the first k hits. Rollouts that prompts below k cannot take are divided as by `first_hit`.
The hits X among l further rollouts are Beta-binomial. w is concave and X grows with l, so gains fall.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from hora_rl.allocator.posterior import Float, Posterior
from hora_rl.allocator.rules.base import Division, Marginal, Mask, Rule, Sampled
from hora_rl.allocator.rules.published import EVEN_SIZES

Step = Callable[[Any], Any]
"""w(c+1) - w(c) of hits c: an array, or one integer as a Fraction."""


def hit_table(posterior: Posterior, depth: int) -> Float:
    """(n, depth) by the paper's recurrence M(0) = α/(α+β), M(l+1) = M(l)(β+l)/(α+β+l+1), in logarithms."""
    alpha, beta = posterior.alpha[:, None], posterior.beta[:, None]
    missed = beta + np.arange(depth - 1)
    steps = np.empty((len(posterior), depth))
    steps[:, :1] = alpha / (alpha + beta)
    np.divide(missed, missed + (alpha + 1), out=steps[:, 1:])
    return np.cumsum(np.log(steps, out=steps), axis=1, out=steps)


def hit_exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    """E[p(1-p)^level] as a Fraction."""
    if alpha.denominator == 1 and alpha < level:
        # For a whole α all but α+1 factors cancel: α · Π_{j<α}(β+j) / Π_{j<=α}(β+l+j).
        return _product(alpha, beta, int(alpha)) / _product(Fraction(1), beta + level, int(alpha) + 1)
    rising = _product(Fraction(1), beta, level)
    return alpha * rising / _product(Fraction(1), alpha + beta, level + 1)


def _product(start: Fraction, first: Fraction, count: int) -> Fraction:
    """start · first · (first+1) · … with `count` factors, in integers: Fractions reduce at every step."""
    numerator, step = 1, first.denominator
    for j in range(count):
        numerator *= first.numerator + j * step
    return start * Fraction(numerator, step**count)


HIT_UTILITY = Marginal("hit_utility", hit_table, hit_exact)


def _probe_aware_table(posterior: Posterior, depth: int) -> Float:
    """Hit utility's gains from level n on."""
    gains = hit_table(posterior, int(posterior.trials.max()) + depth)
    return np.take_along_axis(gains, posterior.trials[:, None] + np.arange(depth), axis=1)


def _probe_aware_exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    return hit_exact(alpha, beta, successes, trials, trials + level)


PROBE_AWARE = Marginal("probe_aware", _probe_aware_table, _probe_aware_exact)


def no_success(sampled: Sampled) -> Mask:
    """(n,) prompts without a success, including those without rollouts."""
    return sampled.successes == 0


def no_failure(sampled: Sampled) -> Mask:
    """(n,) prompts with rollouts and no failure."""
    return (sampled.successes == sampled.trials) & (sampled.trials > 0)


def one_kind(sampled: Sampled) -> Mask:
    """(n,) prompts without mixed outcomes."""
    return no_success(sampled) | no_failure(sampled)


def _variance_table(posterior: Posterior, depth: int) -> Float:
    mean = posterior.mean[:, None]
    hits = posterior.successes[:, None] + np.arange(depth) * mean
    return np.log(mean) - np.log(hits) - np.log(hits + 1)


def _variance_exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
    mean = alpha / (alpha + beta)
    hits = successes + level * mean
    return mean / (hits * (hits + 1))


# The mean over c hits has variance σ²/c. One more hit lowers it by 1/(c(c+1)) and has probability p̂. After l
# more rollouts, c is replaced by its expectation c + l·p̂.
HITS_VARIANCE = Marginal("hits_variance", _variance_table, _variance_exact)


def first_hit(rest: Rule = HITS_VARIANCE) -> Marginal:
    name = "first_hit" if rest is HITS_VARIANCE else f"first_hit({rest.name})"
    least = 0 if isinstance(rest, Division) else rest.least_trials
    return replace(HIT_UTILITY, name=name, useful=no_success, rest=rest, least_trials=least)


def hit_or_miss(weight: float = 2.0) -> Marginal:
    """A first success is worth `weight` first failures. Raises ValueError unless positive and finite."""
    if not (np.isfinite(weight) and weight > 0):
        raise ValueError(f"rule hit_or_miss: the weight of a hit must be positive and finite, not {weight}")
    name = "mixed" if weight == 1 else "hit_or_miss" if weight == 2 else f"hit_or_miss({weight:g})"
    # An empty group becomes mixed at its second rollout, so its gain would rise first: it needs one trial.
    made = _first_outcome(name, weight, lambda successes: successes == 0)
    return replace(made, least_trials=1, useful=one_kind, rest=EVEN_SIZES)


def _first_outcome(name: str, weight: float, misses_hit: Callable[[Any], Any]) -> Marginal:
    """The gain of a first success, times `weight`, where `misses_hit(successes)`; else of a first failure."""
    bonus, ratio = float(np.log(weight)), Fraction(weight)

    def table(posterior: Posterior, depth: int) -> Float:
        wrong = misses_hit(posterior.successes)
        alpha = np.where(wrong, posterior.alpha, posterior.beta)
        beta = np.where(wrong, posterior.beta, posterior.alpha)
        gains = hit_table(Posterior(alpha, beta, posterior.successes, posterior.trials), depth)
        return gains + np.where(wrong, bonus, 0.0)[:, None]

    def exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
        if misses_hit(successes):
            return ratio * hit_exact(alpha, beta, successes, trials, level)
        return hit_exact(beta, alpha, successes, trials, level)

    return Marginal(name, table, exact)


FIRST_HIT = first_hit()
MIXED = hit_or_miss(1.0)
HIT_OR_MISS = hit_or_miss(2.0)
FIRST_MISS = _first_outcome("first_miss", 1.0, lambda successes: successes < 0)
"""The gain of a first failure, E[(1-p)p^l]."""


def expected_worth(noise: float, overlap: float = 0.0) -> Marginal:
    """The rule with w = c/(c + r'), of the noise r >= 0 and the overlap ρ in [0, 1). Raises ValueError."""
    if not (np.isfinite(noise) and noise >= 0):
        raise ValueError(f"rule expected_worth: r must be finite and not negative, not {noise}")
    if not 0 <= overlap < 1:
        raise ValueError(f"rule expected_worth: the overlap must be from 0 to below 1, not {overlap}")
    r = noise / (1 - overlap)
    if r == 0:
        return FIRST_HIT
    ratio = Fraction(r)
    return _of_worth(
        f"expected_worth({noise:g}, {overlap:g})" if overlap else f"expected_worth({noise:g})",
        lambda c: r / ((c + r) * (c + 1 + r)),
        lambda c: ratio / ((c + ratio) * (c + 1 + ratio)),
    )


def first_hits(k: int, rest: Rule = HITS_VARIANCE) -> Marginal:
    """`first_hit(k)` for an integer k >= 1."""
    if k == 1:
        return FIRST_HIT
    made = _of_worth(f"first_hit({k})", lambda c: (c < k) * 1.0, lambda c: Fraction(c < k))
    return replace(made, useful=lambda sampled: sampled.successes < k, rest=rest)


def _of_worth(name: str, step: Step, exact_step: Step) -> Marginal:
    def table(posterior: Posterior, depth: int) -> Float:
        """By the probability of j hits among l rollouts, updated per rollout (Pólya's urn)."""
        alpha, beta = posterior.alpha[:, None], posterior.beta[:, None]
        j = np.arange(depth)
        steps = step(posterior.successes[:, None] + j)
        chance, gains = np.zeros((len(posterior), depth + 1)), np.empty((len(posterior), depth))
        chance[:, 0] = 1.0
        for level in range(depth):
            now = chance[:, : level + 1]
            hit = now * (alpha + j[: level + 1]) / (alpha + beta + level)
            gains[:, level] = (hit * steps[:, : level + 1]).sum(1)
            now -= hit
            chance[:, 1 : level + 2] += hit
        return np.log(np.maximum(gains, np.finfo(np.float64).tiny))

    def exact(alpha: Fraction, beta: Fraction, successes: int, trials: int, level: int) -> Fraction:
        # C(l, j) · (α)_{j+1} (β)_{l-j} / (α+β)_{l+1}, from j = 0 on.
        term = alpha
        for i in range(level):
            term *= (beta + i) / (alpha + beta + i)
        term /= alpha + beta + level
        total = Fraction(0)
        for j in range(level + 1):
            total += term * exact_step(successes + j)
            if j < level:
                term *= Fraction(level - j, j + 1) * (alpha + 1 + j) / (beta + level - j - 1)
        return total

    return Marginal(name, table, exact)
