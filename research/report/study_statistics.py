"""Arms of a study compared: Pass@K over seeds and problems, paired differences, and the check of equal
compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hora_rl.evaluation.pass_at_k import Estimate, pass_at_k
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import Run, check_same_problems

Array = NDArray[np.float64]
TOKENS_APART = 0.05
"""Share of the median by which totals in tokens may differ: a budget in tokens is met in expectation."""


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
    half = float(stats.t.ppf(0.975, data.size - 1) * stats.sem(data))
    return Mean(float(data.mean()), float(data.mean()) - half, float(data.mean()) + half)


def per_problem(results: Sequence[Result], ks: Sequence[int]) -> Array:
    """Pass@K (S, P, K) of S seeds evaluated on the same P problems. Raises RunFolderError where they were
    not."""
    check_same_problems(results)
    return np.stack([np.stack([pass_at_k(r.correct, r.samples, k) for k in ks], axis=1) for r in results])


def estimate(values: Array, ks: Sequence[int]) -> list[Estimate]:
    """Mean Pass@K of `values` (S, P, K) with its 95% interval over seeds and problems."""
    return _estimates(values, ks, floor=0.0)


def paired(values: Array, baseline: Array, ks: Sequence[int]) -> list[Estimate]:
    """Differences to the baseline on the same seeds and problems; `value` may be negative.

    Pairs by seed: both (S, P, K) must hold the same seeds in the same order. Raises ValueError otherwise.
    """
    if values.shape != baseline.shape:
        raise ValueError(f"arms of {values.shape} and {baseline.shape} (seeds, problems, K) cannot be paired")
    return _estimates(values - baseline, ks, floor=-1.0)


def _estimates(values: Array, ks: Sequence[int], floor: float) -> list[Estimate]:
    means, halves = values.mean(axis=(0, 1)), half_widths(values)
    return [
        Estimate(k, float(m), float(max(floor, m - half)), float(min(1.0, m + half)))
        for k, m, half in zip(ks, means, halves, strict=True)
    ]


def half_widths(values: Array) -> Array:
    """Half of the 95% interval (K,) of the mean of `values` (S, P, K) over crossed random seeds and problems.

        half² = t(S-1)²·V_S + t(P-1)²·max(V_P - V_SP, 0)

    V_S and V_P are the variances of that mean as its S seeds and its P problems show them. What is peculiar
    to a seed on a problem is in both; V_SP, from the residuals, is that part, so it counts once. Each part
    has its own quantile (Banerjee, Sankhyā 22, 1960): of two or three seeds one cannot know how far they
    spread, and t says so. With one seed the interval is over problems alone.
    """
    seeds, problems, _ = values.shape
    mean, of_seeds, of_problems = values.mean(axis=(0, 1)), values.mean(axis=1), values.mean(axis=0)
    residuals = values - of_seeds[:, None] - of_problems + mean
    free_s, free_p = max(1, seeds - 1), max(1, problems - 1)  # one value deviates from its mean by nothing
    v_seeds = ((of_seeds - mean) ** 2).sum(axis=0) / (seeds * free_s)
    v_problems = ((of_problems - mean) ** 2).sum(axis=0) / (problems * free_p)
    v_both = (residuals**2).sum(axis=(0, 1)) / (seeds * problems * free_s * free_p)
    t_seeds, t_problems = stats.t.ppf(0.975, [free_s, free_p])
    return np.sqrt(t_seeds**2 * v_seeds + t_problems**2 * np.maximum(v_problems - v_both, 0))


def _by_tokens(runs: Mapping[str, Run]) -> bool:
    return any(run.setting("allocation.budget", "rollouts") == "tokens" for run in runs.values())


def _unequal_tokens(runs: Mapping[str, Run]) -> list[str]:
    totals = {name: float(run.groups["tokens"].sum()) for name, run in runs.items()}
    middle = float(np.median(list(totals.values())))
    return [
        f"{name}: {tokens:,.0f} completion tokens, the median is {middle:,.0f}"
        for name, tokens in totals.items()
        if abs(tokens - middle) > TOKENS_APART * middle
    ]


def matched(runs: Mapping[str, Run]) -> str:
    """What holds of runs of which `unmatched` finds nothing, as the report says it."""
    if _by_tokens(runs):
        return (
            f"The completion tokens of every cell are within {TOKENS_APART:.0%} of the median (counted from "
            "their records)."
        )
    return (
        "Every batch of every cell holds its Γ·G rollouts, and all cells the same total (counted from their "
        "records)."
    )


def unmatched(runs: Mapping[str, Run]) -> list[str]:
    """Where the records of runs show unequal compute: a batch without its Γ·G rollouts, or unequal totals;
    with a budget in tokens, totals that are not equal within `TOKENS_APART`.

    Counted from groups.jsonl, by the batch that each group was generated for.
    """
    if _by_tokens(runs):
        return _unequal_tokens(runs)
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
