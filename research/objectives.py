"""Expected update of a prompt under each advantage, by success rate and by the rule that sizes its group.

    python -m research.objectives [--shards 4000]

A shard of 15 prompts with rates of the paper's mix, Beta(0.323, 0.143); the first has the rate of the column,
and its update is (1/n) Σ_j A_j ∂log π(outcome j)/∂logit. Uniform sampling gives G = 32; the others give G0 =
8 and divide the rest by hit utility: at once (the paper), or in four rounds that stop at a hit. Pure numpy
and the allocator: no model is run.
"""

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator import Session
from hora_rl.common.advantages import Formula, formula
from hora_rl.common.algorithms import ADVANTAGES as NAMES
from hora_rl.evaluation.report.markdown import markdown_table

PROMPTS, G0, G = 15, 8, 32
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.9, 0.99)
ALLOCATIONS: dict[str, tuple[int, str] | None] = {  # rounds, stop
    "uniform": None,
    "one round": (1, "none"),
    "stop at a hit, 4 rounds": (4, "hit"),
}
K = {"pass_at_k": 4, "pkpo": 4}
NAMED = [name if name != "shrunken" else "shrunken(10)" for name in NAMES]
ADVANTAGES: dict[str, Formula] = {
    **{f"{name}, k = {K[name]}" if name in K else name: formula(name, K.get(name)) for name in NAMED},
    "likelihood, baseline wald": formula("likelihood", baseline=1 / G),
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


def group(rate: float, how: tuple[int, str] | None, rng: np.random.Generator) -> NDArray[np.float64]:
    """Successes (n,) of the first prompt's group, Phase A first."""
    if how is None:
        return (rng.random(G) < rate).astype(np.float64)
    rates = np.concatenate([[rate], rng.beta(0.323, 0.143, PROMPTS - 1)])
    session = Session(PROMPTS, PROMPTS * (G - G0), rounds=how[0], stop=how[1])
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
    found = {title: [updates(p, title, shards) for p in RATES] for title in ALLOCATIONS}
    weights, bias = [], []
    for name in ADVANTAGES:
        for title, cells in found.items():
            weights.append([f"`{name}`", title, *(f"{values[name].mean():.2f}" for values, _ in cells)])
            if name in TARGETS and title != "uniform":
                both = zip(RATES, cells, strict=True)
                shares = [ratio(values[name], TARGETS[name](p, hit)) for p, (values, hit) in both]
                bias.append([f"`{name}`", title, *shares])
    head = ["advantage", "allocation", *(f"p = {p:g}" for p in RATES)]
    for title, rows in (
        ("Expected update over p(1 - p): the weight of ∇p", weights),
        ("Bias: expected update over the target of the advantage (± one standard error)", bias),
    ):
        print(f"\n{title}\n", *markdown_table(head, rows), sep="\n")


if __name__ == "__main__":
    main()
