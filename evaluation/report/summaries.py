"""Cost and statistics of one run."""

from dataclasses import dataclass

import numpy as np

from hora_rl.evaluation.phase_b import PhaseB
from hora_rl.evaluation.run_folders import Run


@dataclass(frozen=True, slots=True)
class Summary:
    """Cost and statistics of a run. Shares are in 0..1; None if not recorded.

    `rollouts_per_batch` covers complete batches, `phase_b_…` groups outside a uniform warm-up.
    """

    name: str
    method: str
    started: str
    steps: int
    groups: int
    rollouts: int
    rollouts_per_batch: str
    tokens: int
    share_hit: float | None
    share_zero_signal: float | None
    share_mixed_phases: float | None
    phase_b_to_none: float | None
    phase_b_to_all: float | None


def summarise(name: str, run: Run) -> Summary:
    size, hits = run.groups["size"], run.groups["hits"]
    extra, counts, trials = (
        run.groups[field][run.outside_warm_up] for field in ("extra", "successes", "trials")
    )
    none, *_, all_right = PhaseB.count(counts, extra, int(trials.max(initial=1))).shares()
    return Summary(
        name=name,
        method=run.method,
        started=run.started or "–",
        steps=len(next(iter(run.steps.values()), np.unique(run.groups["step"]))),
        groups=len(size),
        rollouts=int(size.sum()),
        rollouts_per_batch=_per_batch(run),
        tokens=int(run.groups["tokens"].sum()),
        share_hit=float((hits > 0).mean()) if len(hits) else None,
        share_zero_signal=_mean_of(run, "groups/zero_signal"),
        share_mixed_phases=_mean_of(run, "groups/mixed_phases"),
        phase_b_to_none=none.phase_b,
        phase_b_to_all=all_right.phase_b,
    )


def _mean_of(run: Run, metric: str) -> float | None:
    """Mean over the steps that have the metric."""
    values = run.steps.get(metric, np.array([]))
    return float(np.nanmean(values)) if len(values) else None


def _per_batch(run: Run) -> str:
    """Rollouts of complete batches, `1920` or `1918 to 1920`.

    Per batch and not per step: Γ·G is allocated per batch, and a stale step mixes batches.
    """
    batches, index, groups = np.unique(run.groups["batch"], return_inverse=True, return_counts=True)
    sums = np.bincount(index, weights=run.groups["size"], minlength=len(batches)).astype(int)
    complete = sums[groups >= int(run.setting("rollout.prompts_per_batch", 0))]
    if not complete.size:
        return "–"
    low, high = complete.min(), complete.max()
    return str(low) if low == high else f"{low} to {high}"
