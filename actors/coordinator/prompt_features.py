"""The configured prior over the prompts of a run, and the frozen features that learned priors need.

Features depend only on the prompt. They are computed once and stored in the run's folder, so a restarted
coordinator needs no model.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import structlog
from numpy.typing import NDArray

from hora_rl.allocator.priors import UNCONDITIONED, kind_of, make_prior
from hora_rl.allocator.priors.base import Prior, load_state
from hora_rl.allocator.priors.features import hidden_state_features, sentence_features
from hora_rl.common.config import AllocationConfig, RunConfig
from hora_rl.common.errors import ConfigError, any_error_as, one_line
from hora_rl.common.files import alone, replacing
from hora_rl.common.types import Prompt

log = structlog.get_logger(__name__)


def prior_of(allocation: AllocationConfig, run: RunConfig, model: str, prompts: Sequence[Prompt]) -> Prior:
    """The prior that `allocation` names, restored from `prior_state` if set. `model` is the policy. Raises
    ConfigError for the state of another prior and for unusable features."""
    unconditioned = allocation.prior.startswith(UNCONDITIONED)
    features = None if unconditioned else features_of(allocation, run, model, prompts)
    try:
        saved = allocation.prior_state and load_state(allocation.prior_state, kind_of(allocation.prior))
        return make_prior(
            allocation.prior,
            n=len(prompts),
            features=features,
            state=saved or None,
            seed=run.seed,
        )
    except (OSError, ValueError, BadZipFile) as error:
        state = f", allocation.prior_state={allocation.prior_state}" if allocation.prior_state else ""
        raise ConfigError(f"allocation.prior={allocation.prior}{state}: {error}") from error


def feature_model(allocation: AllocationConfig, model: str) -> str:
    """The model of a prior's features; `model` is the policy. Raises ConfigError if none is configured."""
    if allocation.prior.startswith("hidden"):
        return model
    if not allocation.features:
        raise ConfigError(
            f"allocation.features is not set: prior {allocation.prior} needs a sentence-embedding model, by "
            "name or folder (the paper's: sentence-transformers/all-mpnet-base-v2)"
        )
    return allocation.features


def features_of(
    allocation: AllocationConfig, run: RunConfig, policy: str, prompts: Sequence[Prompt]
) -> NDArray[np.float32]:
    """Features (n, d) of all prompts, from RUN/features-KIND.npz. Computes the file if it is missing,
    damaged, or from another model or other prompts. Raises ConfigError if the model gives none."""
    hidden = allocation.prior.startswith("hidden")
    model = feature_model(allocation, policy)
    tokens, texts = [p.tokens.tolist() for p in prompts], [p.text for p in prompts]
    seen = json.dumps(tokens if hidden else texts)
    origin = f"{model} {hashlib.sha256(seen.encode()).hexdigest()}"
    path = run.path / f"features-{'hidden' if hidden else 'text'}.npz"

    def unusable(reason: str) -> ConfigError:
        return ConfigError(f"allocation.prior={allocation.prior}: no features of {model}: {one_line(reason)}")

    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path, log.info):  # a run may have several coordinators
        if (kept := _kept(path, origin)) is not None:
            return kept
        with any_error_as(unusable):  # transformers raises a dozen types
            features = hidden_state_features(model, tokens) if hidden else sentence_features(model, texts)
        with replacing(path) as new, new.open("wb") as file:
            np.savez(file, features=features, origin=np.array(origin))
    return np.asarray(features)


def _kept(path: Path, origin: str) -> NDArray[np.float32] | None:
    """The features in a file of this origin; None if it is missing or damaged."""
    damaged = (BadZipFile, EOFError, KeyError, ValueError)
    with suppress(FileNotFoundError, *damaged), np.load(path, allow_pickle=False) as kept:
        return np.asarray(kept["features"]) if str(kept["origin"]) == origin else None
    return None
