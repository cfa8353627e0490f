"""Priors of prompts' success rates before Phase A, by name, and their fit to recorded rollouts.

`fixed(2, 5)` is Beta(2, 5) for all prompts, `fixed`, the default, Beta(1, 1); `empirical(2, 5)` begins with
Beta(2, 5).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator.posterior import Float, Int
from hora_rl.allocator.priors.base import (
    EmpiricalPrior,
    FixedPrior,
    GaussianProcessPrior,
    LearnedPrior,
    Prior,
    State,
)

# name: (two heads, learns during training)
PROBES = {
    "hidden-static": (False, False),
    "hidden-online": (False, True),
    "hidden-dual": (True, True),
    "mpnet-dual": (True, True),
}
UNCONDITIONED = ("fixed", "empirical")
"""Priors without features: all prompts have the same one."""
NAMES = (*UNCONDITIONED, *PROBES, GaussianProcessPrior.name)


def make_prior(
    name: str,
    n: int,
    features: NDArray | None = None,
    state: State | None = None,
    seed: int = 0,
) -> Prior:
    """The prior `name` for a data set of n prompts. features: (n, d), for learned priors (see `features`).
    state: of an earlier `state_dict()`. Raises ValueError for an unknown name and unusable features."""
    kind, (alpha, beta) = kind_of(name), beta_of(name)
    if kind == "fixed":
        return FixedPrior(alpha, beta)
    prior: LearnedPrior
    if kind == "empirical":
        prior = EmpiricalPrior(alpha, beta)
    elif kind == GaussianProcessPrior.name:
        prior = GaussianProcessPrior(_features(name, n, features), seed)
    else:
        # Imports torch; the rest of the allocator needs only numpy.
        from hora_rl.allocator.priors.probe import ProbePrior

        prior = ProbePrior(name, _features(name, n, features), *PROBES[name], seed)
    if state is not None:
        prior.load_state_dict(state)
    return prior


def kind_of(name: str) -> str:
    """The name without its numbers. Raises ValueError for an unknown one."""
    kind, parenthesis, _ = name.partition("(")
    if kind not in NAMES or (parenthesis and kind not in UNCONDITIONED):
        raise ValueError(f"prior: {name!r} is none of {', '.join(NAMES)}")
    return kind


def beta_of(name: str) -> tuple[float, float]:
    """(α0, β0) in the parentheses of `name`; (1, 1) without them. Raises ValueError."""
    _, parenthesis, numbers = name.partition("(")
    if not parenthesis:
        return 1.0, 1.0
    try:
        alpha, beta = map(float, numbers.removesuffix(")").split(","))
    except ValueError:
        raise ValueError(f"prior: {name!r}: give two numbers, as in fixed(2, 5)") from None
    if not (0 < alpha < math.inf and 0 < beta < math.inf):
        raise ValueError(f"prior: {name!r}: both numbers must be positive")
    return alpha, beta


def _features(name: str, n: int, features: NDArray | None) -> NDArray:
    if features is None:
        raise ValueError(
            f"prior {name}: needs features, one row per prompt: hora_rl.allocator.priors.features"
        )
    if features.ndim != 2 or len(features) != n:
        raise ValueError(f"prior {name}: features must have shape ({n}, d), not {features.shape}")
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if bad.size:
        raise ValueError(f"prior {name}: features of prompt {bad[0]} are not finite")
    return features


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
    """Fit `prior` in place to all prompts except a held-out share, then evaluate it there; arrays (m,). A
    prompt of two epochs is on one side. Raises ValueError for a fixed prior and less than two prompts."""
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
