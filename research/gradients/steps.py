"""The step of each rule and objective at equal rollouts, against M, the sum of ∇log p over the prompts.

Rules are simulated on the bank's success rates; given the counts, a step's moments follow from those of the
scores. Drawing scores from the bank again would take the noise of its means for signal: with m hits |μ|²
would grow by r/m.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from hora_rl.allocator import Session
from hora_rl.allocator.priors.base import fit_beta
from hora_rl.allocator.session import simulate
from hora_rl.common.advantages import formula
from research.gradients.design import Design
from research.gradients.noise import Array, Index, Moments

Weights = Callable[[int, int], tuple[float, float]]
"""Weight of one hit's and of one miss's score in the step, of a group with c hits among n."""
FITTED_ON = 1000
"""Trials of each prompt that a success rate stands for where a prior is fitted to the rates."""


class Step(NamedTuple):
    """A step x, scaled so that E[x]·M = |M|²; `bias2` and `variance` (a trace) are over |M|².

    cosine: E[x·M] over √(E|x|² |M|²), that is 1/√(1 + bias2 + variance). snr: |E[x]|² over the variance.
    """

    cosine: float
    bias2: float
    variance: float
    snr: float


class Played(NamedTuple):
    """The arguments of a session."""

    rule: str
    rounds: int = 1
    stop: str = "none"
    prior: tuple[float, float] = (1.0, 1.0)


def rules(r: float, rounds: int, rate: Array) -> dict[str, Played]:
    """By name. The last has the prior that is fitted to the success rates (n,)."""
    worths = {name: Played(name, rounds) for name in (f"expected_worth({x:.3g})" for x in (r / 2, r, 2 * r))}
    fitted = fit_beta(np.rint(rate * FITTED_ON).astype(int), np.full(len(rate), FITTED_ON))
    worth = f"expected_worth({r:.3g})"
    return {
        "uniform": Played("uniform"),
        "hora": Played("hit_utility"),
        "first_hit, stop": Played("first_hit", rounds, "hit"),
        **worths,
        f"{worth}, prior Beta({fitted[0]:.2g}, {fitted[1]:.2g})": Played(worth, rounds, prior=fitted),
    }


def objectives(r: float) -> dict[str, Weights]:
    """Those of the learner by name; the last weighs a group's hits by their noise."""
    return {name: _learners(name) for name in ("grpo", "rloo", "max_rl", "likelihood", f"shrunken({r:.3g})")}


def _learners(objective: str) -> Weights:
    of_group = formula(objective)

    @cache
    def weights(c: int, n: int) -> tuple[float, float]:
        each = of_group((np.arange(n) < c).astype(float)) / n
        return float(each[0]) if c else 0.0, float(each[-1]) if c < n else 0.0

    return weights


def counts(rate: Array, design: Design, by: Played) -> tuple[Index, Index]:
    """Successes and sizes (batches, n) of groups, sampled by a rule; n · G rollouts in every batch."""
    random, n = np.random.default_rng(design.seed), len(rate)
    groups = []
    for _ in range(design.batches):
        budget = n * (design.group_size - design.pre_rollouts)
        session = Session(n, budget, **by._asdict())
        groups.append(simulate(session, rate, design.pre_rollouts, random))
    c, size = zip(*groups, strict=True)
    return np.array(c), np.array(size)


def step(m: Moments, c: Index, size: Index, weights: Weights) -> Step:
    """Of the counts (batches, n)."""
    of_groups = [
        [weights(int(a), int(b)) for a, b in zip(*row, strict=True)] for row in zip(c, size, strict=True)
    ]
    hit, miss = np.moveaxis(np.array(of_groups), -1, 0)
    along = hit * c - miss * (size - c) * m.rate / (1 - m.rate)  # of each μ_i, given the counts
    noise = (hit**2 * c * m.hit_noise + miss**2 * (size - c) * m.miss_noise).sum(1).mean()
    mean, target = along.mean(0), m.signal.sum()
    square = float(np.einsum("bi,ij,bj->b", along, m.signal, along).mean() + noise)
    of_mean, reach = float(mean @ m.signal @ mean), float((mean @ m.signal).sum())
    scale = target / reach**2
    return Step(
        cosine=float(reach / np.sqrt(square * target)),
        bias2=float(of_mean * scale - 1),
        variance=float((square - of_mean) * scale),
        snr=of_mean / (square - of_mean),
    )


def steps(m: Moments, by_rule: list[tuple[Index, Index]], r: float) -> Array:
    """(rules, objectives, 4) the figures of `Step`."""
    return np.array([[step(m, *c, weights) for weights in objectives(r).values()] for c in by_rule])
