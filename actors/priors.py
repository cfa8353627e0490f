"""The configured prior over the prompts of a run, with the frozen features that the learned ones need.

Features depend on the prompt alone, so they are computed once and kept in the run's folder; the coordinator then
needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from allocator.priors import Prior, make_prior
from allocator.priors.features import hidden_state_features, sentence_features
from allocator.priors.files import load_state
from common.config import Config
from common.errors import ConfigError
from common.types import Prompt


def prior_of(config: Config, prompts: Sequence[Prompt]) -> Prior:
    """The prior that `config.allocation` names, fitted offline when `prior_state` says so."""
    allocation = config.allocation
    state = load_state(allocation.prior_state, allocation.prior) if allocation.prior_state else None
    features = None if allocation.prior == "fixed" else features_of(config, prompts)
    return make_prior(
        allocation.prior,
        n=len(prompts),
        alpha=allocation.alpha,
        beta=allocation.beta,
        features=features,
        state=state,
        seed=config.run.seed,
    )


def features_of(config: Config, prompts: Sequence[Prompt]) -> NDArray[np.float32]:
    """(n, d) features of all prompts: RUN/features-KIND.npy, made when it is not there."""
    hidden = config.allocation.prior.startswith("hidden")
    path = Path(config.run.folder) / config.run.name / f"features-{'hidden' if hidden else 'text'}.npy"
    if path.exists():
        return np.asarray(np.load(path, allow_pickle=False))
    if hidden:
        found = hidden_state_features(config.model.path, [p.tokens.tolist() for p in prompts])
    else:
        if not config.allocation.features:
            raise ConfigError(
                f"allocation.features is not set: prior {config.allocation.prior} needs a sentence-embedding model, by name "
                "or folder (the paper's: sentence-transformers/all-mpnet-base-v2)"
            )
        found = sentence_features(config.allocation.features, [p.text for p in prompts])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npy")
    np.save(partial, found, allow_pickle=False)
    partial.replace(path)
    return np.asarray(found)
