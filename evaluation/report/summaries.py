"""Statistics of one run: its cost, and its prompts with a hit by Phase A's count."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaln

from hora_rl.evaluation.phase_b import PhaseB, Share, classes
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


@dataclass(frozen=True, slots=True)
class HitRow:
    """Groups of one class of c_i: number, mean size, shares with a hit in the group and in Phase B."""

    title: str
    groups: int
    size: float
    expected: float
    realised: float
    phase_b_expected: float
    phase_b_realised: float


def hits_by_difficulty(run: Run) -> list[HitRow]:
    """One row per non-empty class of c_i (`evaluation.phase_b.classes`), and one for all. All cycles count,
    including warm-up: the expectation holds for any division."""
    if not len(run.rules):
        return []
    c, trials, size = (run.groups[name] for name in ("successes", "trials", "size"))
    promised = np.array(
        [
            promise(alpha + hits, beta + n - hits, rounds)
            for (alpha, beta), hits, n, rounds in zip(run.priors, c, trials, run.rounds, strict=True)
        ]
    )
    more = run.groups["hits"] > c
    rows = []
    top = int(trials.max())
    for low, high in [*classes(top), (0, top)]:
        title = "all" if high - low == top else Share(low, high, None, None).name
        of = (low <= c) & (c <= high)
        if of.any():
            expected, realised = np.where(c > 0, 1.0, promised)[of], (run.groups["hits"] > 0)[of]
            means = (float(x.mean()) for x in (size[of], expected, realised, promised[of], more[of]))
            rows.append(HitRow(title, int(of.sum()), *means))
    return rows


def promise(alpha: float, beta: float, rounds: Sequence[tuple[int, int]]) -> float:
    """Posterior probability of a Phase B hit, from Beta(alpha, beta) after Phase A and (Δ, hits) per round.

    Over several rounds: the sum, up to the first round with a hit, of the probability of a hit in that round
    given none before. Its mean is the share of prompts with a hit, although later rounds depend on earlier
    ones.
    """
    total = 0.0
    for extra, hits in rounds:
        total += 1.0 - float(np.exp(betaln(alpha, beta + extra) - betaln(alpha, beta)))
        if hits:
            break
        beta += extra
    return total
