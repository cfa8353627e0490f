"""HORA in a plain training loop, with numpy alone: prompts are logits that a policy gradient raises.

python -m examples.allocate_alone
"""

import numpy as np

from hora_rl.allocator import allocate

GAMMA, G, G0, STEPS = 15, 32, 8, 60


def train(rule: str, seed: int = 0) -> float:
    """Mean success rate after STEPS steps."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-3, 3, GAMMA)
    for _ in range(STEPS):
        rate = 1 / (1 + np.exp(-logits))
        successes = rng.binomial(G0, rate)  # Phase A
        extra = allocate(successes, trials=G0, budget=GAMMA * (G - G0), rule=rule)
        hits, size = successes + rng.binomial(extra, rate), G0 + extra  # Phase B
        spread = np.sqrt(hits * (size - hits) / size**2)
        # The group-relative gradient of a Bernoulli policy: Σ_j A_j (r_j - rate) / G_i = the rewards'
        # deviation.
        logits += 0.5 * spread
    return float(np.mean(1 / (1 + np.exp(-logits))))


if __name__ == "__main__":
    for rule in ("uniform", "hit_utility"):
        print(f"{rule:12} {np.mean([train(rule, seed) for seed in range(20)]):.3f}")
