"""Whether the cells of a study spent the same, counted again from their records."""

from collections.abc import Mapping

import numpy as np

from hora_rl.evaluation.run_folders import Run

TOKENS_APART = 0.05
"""Share of the median by which totals in tokens may differ: a budget in tokens is met in expectation."""


def matched(runs: Mapping[str, Run]) -> str:
    """A sentence on runs of which `unmatched` finds nothing."""
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
            b, more = wrong[0], f" ({wrong.size} such batches)" if wrong.size > 1 else ""
            problems.append(
                f"{name}: batch {batches[b]:.0f} holds {sizes[b]:.0f} rollouts, not Γ·G = {budget}{more}"
            )
        totals[name] = (len(batches), int(sizes.sum()))
    common = max(set(totals.values()), key=list(totals.values()).count, default=(0, 0))
    return problems + [
        f"{name}: {rollouts} rollouts in {steps} batches, the others {common[1]} in {common[0]}"
        for name, (steps, rollouts) in totals.items()
        if (steps, rollouts) != common
    ]


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
