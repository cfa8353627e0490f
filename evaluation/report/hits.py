"""Prompts with a hit by Phase A's count: expected by the posterior before Phase B, and realised.

All cycles count, including warm-up: the expectation holds for any division.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma

import numpy as np

from hora_rl.evaluation.phase_b import Share, classes
from hora_rl.evaluation.run_folders import Run


@dataclass(frozen=True, slots=True)
class HitRow:
    """Groups of one class of c_i: number, mean size, shares with a hit in the group and in Phase B."""

    title: str
    groups: int
    size: float
    expected: float
    realised: float
    phase_b_expected: float
    phase_b_realised: float


def hits_by_difficulty(run: Run) -> list[HitRow]:
    """One row per non-empty class of c_i (`evaluation.phase_b.classes`), and one for all."""
    if not len(run.rules):
        return []
    c, trials, size = (run.groups[name] for name in ("successes", "trials", "size"))
    promised = np.array(
        [
            promise(alpha + hits, beta + n - hits, rounds)
            for (alpha, beta), hits, n, rounds in zip(run.priors, c, trials, run.rounds, strict=True)
        ]
    )
    more = run.groups["hits"] > c
    rows = []
    top = int(trials.max())
    for low, high in [*classes(top), (0, top)]:
        title = "all" if high - low == top else Share(low, high, None, None).name
        of = (low <= c) & (c <= high)
        if of.any():
            expected, realised = np.where(c > 0, 1.0, promised)[of], (run.groups["hits"] > 0)[of]
            means = (float(x.mean()) for x in (size[of], expected, realised, promised[of], more[of]))
            rows.append(HitRow(title, int(of.sum()), *means))
    return rows


def promise(alpha: float, beta: float, rounds: Sequence[tuple[int, int]]) -> float:
    """Posterior probability of a Phase B hit, from Beta(alpha, beta) after Phase A and (Δ, hits) per round.

    Over several rounds: the sum, up to the first round with a hit, of the probability of a hit in that round
    given none before. Its mean is the share of prompts with a hit, although later rounds depend on earlier
    ones.
    """
    total = 0.0
    for extra, hits in rounds:
        total += 1.0 - exp(_log_beta(alpha, beta + extra) - _log_beta(alpha, beta))
        if hits:
            break
        beta += extra
    return total


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
