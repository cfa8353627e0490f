"""The table of allocation rules in docs/performance.md: what each assumes, where Phase B goes, what a batch
finds.

    python -m benchmarks.rules [--batches 500]

Simulated: batches of 60 prompts, G = 32, G0 = 8, Beta(1, 1), rates drawn from five distributions. Shares of
Phase B are by the successes c that Phase A found, on the paper's mix. `1/c` is the mean over prompts with a
hit: the variance of the hits' mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from allocator import Session
from allocator.posterior import Float

PROMPTS, G, G0 = 60, 32, 8


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to allocate, and what it is for."""

    rule: str
    objective: str
    assumes: str
    stop: str = "none"
    rounds: int = 1
    cap: int | None = None

    @property
    def name(self) -> str:
        stop = f", stop at {self.stop}" if self.stop != "none" else ""
        rounds = f" ×{self.rounds}" if self.rounds > 1 else ""
        return f"`{self.rule}`{stop}{rounds}" + (f", G_i ≤ {self.cap}" if self.cap else "")


POSTERIOR, EMPIRICAL = "Beta posterior", "rates are c/n of Phase A"
KINDS = (
    Kind("uniform", "none (GRPO)", "nothing"),
    Kind("hit_utility", "an additional hit", POSTERIOR),
    Kind("hit_utility", "an additional hit", POSTERIOR, rounds=4),
    Kind("hit_utility", "a hit", POSTERIOR, "hit", 4),
    Kind("hit_utility", "a hit", POSTERIOR, "hit", 4, 256),
    Kind("first_hit", "likelihood", POSTERIOR),
    Kind("first_hit", "likelihood", POSTERIOR, rounds=4),
    Kind("first_hit", "likelihood; leftovers by 1/c", POSTERIOR, rounds=4, cap=96),
    Kind("first_hit(hit_utility)", "likelihood; leftovers by hit utility", POSTERIOR, rounds=4, cap=96),
    Kind("mixed", "a mixed group", POSTERIOR, rounds=4),
    Kind("hit_or_miss", "a mixed group, a hit worth two misses", POSTERIOR, rounds=4),
    Kind("hard_first", "a hit", "nothing"),
    Kind("ar3po", "a hit (AR3PO; Reinforce-Ada, positive)", "nothing", rounds=4),
    Kind("reinforce_ada(4)", "4 of either outcome (Reinforce-Ada, balanced)", "nothing", rounds=4),
    Kind("variance", "low variance under RLOO (VIP)", POSTERIOR),
    Kind("variance(dr_grpo)", "low variance under Dr. GRPO (VIP)", POSTERIOR),
    Kind("knapsack", "mixed groups × p(1−p)²", EMPIRICAL),
    Kind("coba_rl", "value by the model's capability", EMPIRICAL),
)
MIXES: dict[str, Callable[[np.random.Generator, int], Float]] = {
    "Beta(.323, .143)": lambda rng, n: rng.beta(0.323, 0.143, n),
    "7B base": lambda rng, n: rng.beta(0.439, 0.609, n),
    "3B base": lambda rng, n: rng.beta(0.504, 1.322, n),
    "log-uniform": lambda rng, n: np.exp(rng.uniform(np.log(1 / 300), 0, n)),
    "AIME-like": lambda rng, n: rng.beta(0.255, 9.549, n),
}


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Counts after all rounds of all prompts, (n,) each: Phase A's successes, all successes, group sizes."""

    first: np.ndarray
    successes: np.ndarray
    sizes: np.ndarray


def simulate(kind: Kind, rates: Float, rng: np.random.Generator) -> Found:
    """Allocate batches of PROMPTS prompts with these rates (batches, PROMPTS)."""
    first, successes, sizes = [], [], []
    for p in rates:
        budget = len(p) * (G - G0)
        session = Session(
            len(p), budget, kind.rule, rounds=kind.rounds, stop=kind.stop, max_group_size=kind.cap
        )
        c = rng.binomial(G0, p)
        session.tell(c, G0)
        while not session.done:
            extra = session.ask()
            session.tell(rng.binomial(extra, p), extra)
        first.append(c)
        successes.append(session.successes)
        sizes.append(session.trials)
    assert int(np.concatenate(sizes).sum()) == rates.size * G  # every rule keeps Γ·G
    return Found(*(np.concatenate(x) for x in (first, successes, sizes)))


def row(kind: Kind, batches: int) -> str:
    cells = [kind.name, kind.objective, kind.assumes, "yes"]
    for i, draw in enumerate(MIXES.values()):
        rng = np.random.default_rng(i)
        found = simulate(kind, draw(rng, batches * PROMPTS).reshape(batches, PROMPTS), rng)
        if i == 0:
            extra, hit = found.sizes - G0, found.successes > 0
            where = [found.first == 0, (found.first > 0) & (found.first < G0), found.first == G0]
            cells.append("/".join(f"{100 * extra[w].sum() / extra.sum():.0f}" for w in where))
            cells.append(f"{(1 / found.successes[hit]).mean():.3f}")
        mixed = (found.successes > 0) & (found.successes < found.sizes)
        cells.append(f"{100 * (found.successes > 0).mean():.1f}/{100 * mixed.mean():.1f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=500)
    batches = parser.parse_args().batches
    heads = [
        "rule",
        "for",
        "assumes",
        "keeps Γ·G",
        "Phase B % to c=0/1..7/8",
        "1/c",
        *(f"{m}, hits/signal %" for m in MIXES),
    ]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for kind in KINDS:
        print(row(kind, batches), flush=True)


if __name__ == "__main__":
    main()
