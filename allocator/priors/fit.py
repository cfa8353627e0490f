"""Pretrain a learned prior on recorded rollouts, such as the groups.jsonl of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from hora_rl.allocator.posterior import Float, Int
from hora_rl.allocator.priors.base import LearnedPrior, Prior


@dataclass(frozen=True, slots=True)
class Fit:
    """Log-losses on held-out prompts, in nats per rollout, of the fitted prior and of the mean rate."""

    fitted_on: int
    held_out: int
    log_loss: float
    mean_rate_log_loss: float


def outcomes(records: Iterable[Mapping[str, object]]) -> tuple[Int, Int, Int]:
    """(prompts, successes, trials), each (m,), from records with prompt_index, successes and trials."""
    rows = [(r["prompt_index"], r["successes"], r["trials"]) for r in records]
    if not rows:
        raise ValueError("records: there are none to fit a prior on; let the run train a few steps first")
    prompts, successes, trials = np.array(rows, dtype=np.int64).T
    return prompts, successes, trials


def log_loss(rate: Float, successes: Int, trials: Int) -> float:
    """Mean negative log-likelihood per rollout, in nats; a fair coin's is 0.693. rate (n,) in (0, 1)."""
    if not np.all((rate > 0) & (rate < 1)):
        raise ValueError("rate: every p̂ must be strictly between 0 and 1, or its log-loss is not finite")
    nll = -successes * np.log(rate) - (trials - successes) * np.log1p(-rate)
    return float(np.sum(nll) / np.sum(trials))


def fit_prior(
    prior: Prior, prompts: Int, successes: Int, trials: Int, held_out: float = 0.1, seed: int = 0
) -> Fit:
    """Fit `prior` in place to all prompts except a held-out share, then evaluate it there; arrays (m,).

    The split is by prompt, so a prompt seen in two epochs is on one side. Raises ValueError for a prior that
    does not learn, and for fewer than two prompts.
    """
    if not isinstance(prior, LearnedPrior):
        raise ValueError(f"prior {prior.name}: has nothing to fit")
    different = np.unique(prompts)
    if len(different) < 2:
        raise ValueError("prompts: a fit needs at least two different ones, one of them to judge it by")
    kept_out = np.random.default_rng(seed).permutation(different)[: max(1, round(held_out * len(different)))]
    out = np.isin(prompts, kept_out)
    prior.fit(prompts[~out], successes[~out], trials[~out])
    alpha, beta = prior.predict(prompts[out])
    # Half a success and half a failure are added, so the loss is always finite.
    mean = (successes[~out].sum() + 0.5) / (trials[~out].sum() + 1)
    return Fit(
        fitted_on=len(different) - len(kept_out),
        held_out=len(kept_out),
        log_loss=log_loss(alpha / (alpha + beta), successes[out], trials[out]),
        mean_rate_log_loss=log_loss(np.full(int(out.sum()), mean), successes[out], trials[out]),
    )
