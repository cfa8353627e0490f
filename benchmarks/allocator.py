"""Time of one allocation: ours, a heap and the naive loop, in one run.

    python -m benchmarks.allocator [--million]

Prints medians and ratios; inputs are shards whose counts follow the paper's mix. Input checks are included.
Then the longest of four rounds of a `Session` (`ask` and `tell`), with the ratio to a heap that takes the
same posteriors. Times are those of the processor.
"""

from __future__ import annotations

import argparse
import heapq
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from hora_rl.allocator import Session, allocate

ROUNDS = (
    ("hit_utility", "none"),
    ("hit_utility", "hit"),
    ("hit_or_miss", "mixed"),
    ("knapsack", "none"),
    ("coba_rl", "none"),
)


def naive(successes: np.ndarray, trials: int, budget: int, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The paper's Algorithm 1 as it stands: the largest marginal gain, one rollout after the other."""
    a, b = alpha + successes, beta + trials - successes
    gain, level = a / (a + b), np.zeros(len(successes), dtype=np.int64)
    for _ in range(budget):
        i = int(np.argmax(gain))
        gain[i] *= (b[i] + level[i]) / (a[i] + b[i] + level[i] + 1)
        level[i] += 1
    return level


def heap(successes: np.ndarray, trials: int, budget: int, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
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


def heap_round(session: Session, share: int) -> list[int]:
    """One round of hit utility by a heap, from what a session was told under Beta(1, 1)."""
    c, n = session.successes.tolist(), session.trials.tolist()
    queue = [(-(1 + hits) / (2 + size), i) for i, (hits, size) in enumerate(zip(c, n, strict=True))]
    heapq.heapify(queue)
    level = [0] * len(c)
    for _ in range(share):
        gain, i = queue[0]
        k, missed = level[i], 1 + n[i] - c[i]
        level[i] = k + 1
        heapq.heapreplace(queue, (gain * (missed + k) / (3 + n[i] + k), i))
    return level


def rounds(n: int, g: int, rule: str, stop: str, by_heap: bool, repeats: int = 5) -> tuple[float, float]:
    """(median over repeats of the longest round, time of its heap) in seconds."""
    rng, longest, heaps = np.random.default_rng(1), [], [0.0]
    rates = rng.beta(0.323, 0.143, n)
    for repeat in range(repeats):
        session = Session(n, n * (g - 8), rule, rounds=4, stop=stop)
        session.tell(rng.binomial(8, rates), 8)
        times = []
        while not session.done:
            if by_heap and repeat == 0:
                heaps.append(once(partial(heap_round, session, n * (g - 8) // 4)))
            began = time.process_time()
            extra = session.ask()
            asked = time.process_time() - began
            successes = rng.binomial(extra, rates)
            began = time.process_time()
            session.tell(successes, extra)
            times.append(asked + time.process_time() - began)
        longest.append(max(times))
    return statistics.median(longest), max(heaps) or float("nan")


def median(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


def once(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--million", action="store_true", help="also a million prompts (the heap takes minutes)"
    )
    options = parser.parse_args()
    sizes = [(15, 32), (60, 32), (4096, 64)] + ([(1_000_000, 32)] if options.million else [])
    print(f"{'prompts':>8} {'G':>3} {'prior':>10} {'ours':>10} {'heap':>10} {'naive':>10} {'heap/ours':>10}")
    rng = np.random.default_rng(0)
    for n, g in sizes:
        c = rng.binomial(8, rng.beta(0.323, 0.143, n))
        budget, repeats = n * (g - 8), max(3, min(1000, 200_000 // n))
        each = (rng.uniform(0.5, 2.0, n), rng.uniform(0.5, 2.0, n))
        ones = np.ones(n)
        for name, prior, full in (("shared", (1.0, 1.0), (ones, ones)), ("per prompt", each, each)):
            ours = median(partial(allocate, c, 8, budget, prior), repeats)
            timed = once if n > 1000 else partial(median, repeats=max(3, repeats // 10))
            by_heap = timed(partial(heap, c, 8, budget, *full))
            slow = timed(partial(naive, c, 8, budget, *full)) if n <= 5000 else float("nan")
            print(
                f"{n:>8} {g:>3} {name:>10} {ours * 1e6:>8.0f}us {by_heap * 1e6:>8.0f}us {slow * 1e6:>8.0f}us "
                f"{by_heap / ours:>9.1f}x"
            )
    print(
        f"\n{'prompts':>8} {'G':>3} {'rule':>12} {'stop':>6} {'a round':>10} {'heap':>10} {'heap/ours':>10}"
    )
    for n, g in sizes:
        for rule, stop in ROUNDS:
            with_heap = (rule, stop) == ("hit_utility", "none") and n < 100_000
            ours, slow = rounds(n, g, rule, stop, by_heap=with_heap)
            print(
                f"{n:>8} {g:>3} {rule:>12} {stop:>6} {ours * 1e6:>8.0f}us {slow * 1e6:>8.0f}us "
                f"{slow / ours:>9.1f}x"
            )


if __name__ == "__main__":
    main()
