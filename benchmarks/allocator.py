"""Processor time of one allocation: ours and a heap, in one run.

    python -m benchmarks.allocator [--million]

Prints medians and ratios; inputs are shards whose counts follow the paper's mix. Input checks are included.
Then the longest of four rounds of a `Session` (`ask` and `tell`).
"""

import argparse
import heapq
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from hora_rl.allocator import Session, allocate

ROUNDS = (("hit_utility", "none"), ("hit_utility", "hit"), ("hit_or_miss", "mixed"), ("knapsack", "none"))


def heap(successes: np.ndarray, trials: int, budget: int, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The paper's Algorithm 1: the largest marginal gain, one rollout after the other."""
    a, b = (alpha + successes).tolist(), (beta + trials - successes).tolist()
    queue = [(-x / (x + y), i) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    heapq.heapify(queue)
    level = [0] * len(a)
    for _ in range(budget):
        gain, i = queue[0]
        k = level[i]
        level[i] = k + 1
        heapq.heapreplace(queue, (gain * (b[i] + k) / (a[i] + b[i] + k + 1), i))
    return np.array(level)


def longest_round(n: int, g: int, rule: str, stop: str, seed: int) -> float:
    """Seconds of the longest of four rounds."""
    rng, times = np.random.default_rng(seed), []
    rates = rng.beta(0.323, 0.143, n)
    session = Session(n, n * (g - 8), rule, rounds=4, stop=stop)
    session.tell(rng.binomial(8, rates), 8)
    while not session.done:
        began = time.process_time()
        extra = session.ask()
        asking_s = time.process_time() - began
        successes = rng.binomial(extra, rates)
        began = time.process_time()
        session.tell(successes, extra)
        times.append(asking_s + time.process_time() - began)
    return max(times)


def median(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times[1:] or times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million", action="store_true", help="also a million prompts, in minutes")
    options = parser.parse_args()
    sizes = [(15, 32), (60, 32), (4096, 64)] + ([(1_000_000, 32)] if options.million else [])
    print(f"{'prompts':>8} {'G':>3} {'prior':>10} {'ours':>10} {'heap':>10} {'heap/ours':>10}")
    rng = np.random.default_rng(0)
    for n, g in sizes:
        c = rng.binomial(8, rng.beta(0.323, 0.143, n))
        budget, repeats = n * (g - 8), max(3, min(1000, 200_000 // n))
        each = (rng.uniform(0.5, 2.0, n), rng.uniform(0.5, 2.0, n))
        ones = np.ones(n)
        for name, prior, full in (("shared", (1.0, 1.0), (ones, ones)), ("per prompt", each, each)):
            ours = median(partial(allocate, c, 8, budget, prior), repeats)
            slow = median(partial(heap, c, 8, budget, *full), repeats // 10 if n <= 1000 else 0)
            print(f"{n:>8} {g:>3} {name:>10} {ours * 1e6:>8.0f}us {slow * 1e6:>8.0f}us {slow / ours:>9.1f}x")
    print(f"\n{'prompts':>8} {'G':>3} {'rule':>12} {'stop':>6} {'a round':>10}")
    for n, g in sizes:
        for rule, stop in ROUNDS:
            longest = statistics.median(longest_round(n, g, rule, stop, seed) for seed in range(5))
            print(f"{n:>8} {g:>3} {rule:>12} {stop:>6} {longest * 1e6:>8.0f}us")


if __name__ == "__main__":
    main()
