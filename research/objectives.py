"""Bias of advantages, by success rate and by the rule that sizes a prompt's group.

    python -m research.objectives [--shards 4000]

A shard of 15 prompts with rates of the paper's mix, Beta(0.323, 0.143); the first has the rate of the column,
and its update is (1/n) Σ_j A_j ∂log π(outcome j)/∂logit. G0 = 8 of G = 32 are given to all, the rest by hit
utility: at once (the paper), or in four rounds that stop at a hit. Pure numpy and the allocator: no model is
run.
"""

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator import Session
from hora_rl.common.advantages import Formula, formula
from hora_rl.evaluation.report.tables import markdown_table

PROMPTS, G0, G = 15, 8, 32
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.9, 0.99)
ALLOCATIONS = {"one round": (1, "none"), "stop at a hit, 4 rounds": (4, "hit")}  # rounds, stop
ADVANTAGES: dict[str, Formula] = {
    **{name: formula(name) for name in ("rloo", "max_rl", "likelihood", "weighted_reinforce")},
    "likelihood, baseline wald": formula("likelihood", baseline=1 / G),
    "pkpo, k = 4": formula("pkpo", 4),
}
# Target of an estimator in each group, over p(1 - p), given which groups hold a hit.
Aim = Callable[[float, NDArray[np.bool_]], NDArray[np.float64]]
TARGETS: dict[str, Aim] = {
    "rloo": lambda p, hit: np.ones(len(hit)),
    "max_rl": lambda p, hit: hit / p,
    "likelihood": lambda p, hit: hit / p,
    "likelihood, baseline wald": lambda p, hit: hit / p,
    "pkpo, k = 4": lambda p, hit: np.full(len(hit), 4 * (1 - p) ** 3),
    "weighted_reinforce": lambda p, hit: np.full(len(hit), 1.1),
}


def group(rate: float, rule: tuple[int, str], rng: np.random.Generator) -> NDArray[np.float64]:
    """Successes (n,) of the first prompt's group, Phase A first."""
    rates = np.concatenate([[rate], rng.beta(0.323, 0.143, PROMPTS - 1)])
    session = Session(PROMPTS, PROMPTS * (G - G0), rounds=rule[0], stop=rule[1])
    mine, extra = [], np.full(PROMPTS, G0)
    while True:
        outcomes = rng.random(extra[0]) < rate
        mine.append(outcomes)
        hits = rng.binomial(extra, rates)
        hits[0] = outcomes.sum()
        session.tell(hits, extra)
        if session.done:
            return np.concatenate(mine).astype(np.float64)
        extra = session.ask()


def updates(
    rate: float, allocation: str, shards: int
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]:
    """Over p(1 - p): each advantage's update (shards,), and which groups hold a hit (shards,)."""
    rng = np.random.default_rng(0)
    groups = [group(rate, ALLOCATIONS[allocation], rng) for _ in range(shards)]
    scale = rate * (1 - rate)
    # Unbiased phase weights need a rollout of Phase B in every group, and refuse several rounds.
    values = {
        name: np.array([float((advantage(s) * (s - rate)).mean()) for s in groups]) / scale
        for name, advantage in ADVANTAGES.items()
    }
    return values, np.array([s.any() for s in groups])


def ratio(values: NDArray[np.float64], aims: NDArray[np.float64]) -> str:
    """Ratio of the two means, with its standard error over shards."""
    share = values.mean() / aims.mean()
    error = (values - share * aims).std() / np.sqrt(len(values)) / aims.mean()
    return f"{share:.2f} ±{error:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=4000)
    shards = parser.parse_args().shards
    rows = []
    for title in ALLOCATIONS:
        cells = [updates(p, title, shards) for p in RATES]
        for name in cells[0][0]:
            aims = [TARGETS[name](p, hit) for p, (_, hit) in zip(RATES, cells, strict=True)]
            shares = [ratio(values[name], aim) for (values, _), aim in zip(cells, aims, strict=True)]
            rows.append([f"`{name}`", title, *shares])
    print("Expected update over the target of the advantage (± one standard error)\n")
    heads = ["advantage", "allocation", *(f"p = {p:g}" for p in RATES)]
    print(*markdown_table(heads, sorted(rows)), sep="\n")


if __name__ == "__main__":
    main()
