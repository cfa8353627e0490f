"""Arms of a study compared: Pass@K over seeds and problems, paired differences, and the check of equal compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from evaluation.pass_at_k import Estimate, pass_at_k
from evaluation.results import Result
from evaluation.runs import Run, RunFolderError

Array = NDArray[np.float64]
RESAMPLES = 4000
TAILS = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class Mean:
    """Mean over seeds with the 95% interval of Student's t; low and high are NaN for one seed."""

    value: float
    low: float
    high: float


def mean_over_seeds(values: Sequence[float]) -> Mean:
    """Raises ValueError for no value."""
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        raise ValueError("no seed to take a mean over")
    if data.size == 1:
        return Mean(float(data[0]), float("nan"), float("nan"))
    half = float(stats.t.ppf(TAILS[1], data.size - 1) * stats.sem(data))
    return Mean(float(data.mean()), float(data.mean()) - half, float(data.mean()) + half)


def per_problem(results: Sequence[Result], ks: Sequence[int]) -> Array:
    """Pass@K (S, P, K) of S seeds evaluated on the same P problems. Raises RunFolderError where they were not."""
    if any(r.problems != results[0].problems for r in results):
        raise RunFolderError(f"{results[0].title}: the seeds of an arm were evaluated on different problems")
    return np.stack([np.stack([pass_at_k(r.correct, r.samples, k) for k in ks], axis=1) for r in results])


def estimate(values: Array, ks: Sequence[int], seed: int = 0) -> list[Estimate]:
    """Means of `values` (S, P, K) with 95% intervals: seeds and problems are both drawn with replacement."""
    drawn = _resampled(values, seed)
    low, high = np.quantile(drawn, TAILS, axis=0)
    means = values.mean(axis=(0, 1))
    return [Estimate(k, *map(float, row)) for k, *row in zip(ks, means, low, high, strict=True)]


def paired(values: Array, baseline: Array, ks: Sequence[int], seed: int = 0) -> list[Estimate]:
    """Differences to the baseline on the same seeds and problems; `value` may be negative.

    Pairs by seed: both (S, P, K) must hold the same seeds in the same order. Raises ValueError otherwise.
    """
    if values.shape != baseline.shape:
        raise ValueError(f"arms of {values.shape} and {baseline.shape} (seeds, problems, K) cannot be paired")
    return estimate(values - baseline, ks, seed)


def _resampled(values: Array, seed: int) -> Array:
    """(RESAMPLES, K) means over seeds and problems drawn with replacement, each on its own.

    Of S seeds S - 1 are drawn (one, of one): S would make the spread between few seeds too small by (S - 1)/S.
    """
    seeds, problems, _ = values.shape
    random = np.random.default_rng(seed)
    draws = max(1, seeds - 1)
    of_seeds = random.multinomial(draws, np.full(seeds, 1 / seeds), size=RESAMPLES) / draws
    of_problems = random.multinomial(problems, np.full(problems, 1 / problems), size=RESAMPLES) / problems
    return np.einsum("rs,spk,rp->rk", of_seeds, values, of_problems, optimize=True)


def unmatched(runs: Mapping[str, Run]) -> list[str]:
    """Where the records of runs show unequal compute: a batch without its Γ·G rollouts, or unequal totals.

    Counted from groups.jsonl, by the batch that each group was generated for.
    """
    problems, totals = [], dict[str, tuple[int, int]]()
    for name, run in runs.items():
        budget = int(run.setting("rollout.prompts_per_batch", 0)) * int(run.setting("rollout.group_size", 0))
        batches, place = np.unique(run.groups["batch"], return_inverse=True)
        sizes = np.bincount(place, weights=run.groups["size"], minlength=len(batches))
        wrong = np.flatnonzero(sizes != budget)
        if wrong.size:
            b = wrong[0]
            problems.append(
                f"{name}: batch {batches[b]:.0f} holds {sizes[b]:.0f} rollouts, not Γ·G = {budget}"
                + (f" ({wrong.size} such batches)" if wrong.size > 1 else "")
            )
        totals[name] = (len(batches), int(sizes.sum()))
    common = max(set(totals.values()), key=list(totals.values()).count, default=(0, 0))
    for name, (steps, rollouts) in totals.items():
        if (steps, rollouts) != common:
            problems.append(
                f"{name}: {rollouts} rollouts in {steps} batches, the others {common[1]} in {common[0]}"
            )
    return problems
