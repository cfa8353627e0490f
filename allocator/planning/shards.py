"""The loss of small shards: with few prompts, a budget divides coarsely."""

from __future__ import annotations

import numpy as np

from hora_rl.allocator.mixture import GRID
from hora_rl.allocator.planning.outcome import Arm, Outcome
from hora_rl.allocator.posterior import Float, Int
from hora_rl.allocator.session import Session

PROMPTS = 6000  # simulated for an arm: a standard error of about 0.3 points


def shift(arm: Arm, found: Outcome, weights: Float, shard: int, seed: int = 0) -> tuple[float, float]:
    """Difference in hits and mixed groups between shards of `shard` prompts and a large batch (`found`).

    Simulates the allocator on rates drawn from the mixture `weights` (K,). The large batch is evaluated at
    the same rates.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.choice(len(GRID), size=(max(1, PROMPTS // shard), shard), p=weights)
    budget, hits, signal = shard * (arm.group_size - arm.pre_rollouts), 0, 0
    for rates in GRID[drawn]:
        session = Session(shard, budget, arm.rule, rounds=arm.rounds, stop=arm.stop)
        c, n = simulate(session, rates, arm.pre_rollouts, rng)
        hits += int((c > 0).sum())
        signal += int(((c > 0) & (c < n)).sum())
    return (
        hits / drawn.size - float(found.hits[drawn].mean()),
        signal / drawn.size - float(found.signal[drawn].mean()),
    )


def simulate(session: Session, rates: Float, pre_rollouts: int, rng: np.random.Generator) -> tuple[Int, Int]:
    """Sample all rollouts of a session from prompts with these success `rates` (n,); returns successes and
    group sizes, both (n,)."""
    session.tell(rng.binomial(pre_rollouts, rates), pre_rollouts)
    while not session.done:
        extra = session.ask()
        session.tell(rng.binomial(extra, rates), extra)
    return session.successes, session.trials
