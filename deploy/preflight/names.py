"""What a configuration names and the model allows, looked up before anything starts: a part that finds out by itself
is only started again, and meets the same wall."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from actors.coordinator.prompt_features import feature_model
from allocator.priors.make import NAMES
from allocator.rules import get_rule
from common.config import Config
from common.errors import ConfigError
from common.rewards import load_reward
from learner.user_advantage import try_advantage


def check_names(config: Config) -> None:
    """Raise ConfigError for a rule, prior or reward that cannot be loaded, a prior without its features, or limits
    beyond the model's positions."""
    allocation = config.allocation
    with _working_folder():
        try:
            get_rule(allocation.rule)
        except ValueError as error:
            raise ConfigError(f"allocation.{error}") from None
        try:
            for name in config.reward.names:
                if ":" in name:
                    load_reward(name)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if ":" in config.learner.objective.advantage:
            try_advantage(
                config.learner.objective.advantage, config.rollout.pre_rollouts, config.rollout.group_size
            )
    if allocation.prior not in NAMES:
        raise ConfigError(f"allocation.prior ({allocation.prior}): none of {', '.join(NAMES)}")
    if allocation.prior != "fixed":
        feature_model(config)
    check_context(config)


def check_context(config: Config) -> None:
    """Raise ConfigError when prompt and response limits exceed the model's positions: vLLM would not start."""
    from transformers import AutoConfig

    try:
        model = AutoConfig.from_pretrained(
            config.model.path, trust_remote_code=config.model.trust_remote_code
        )
    except (OSError, ValueError):
        return  # whoever loads the model says why it cannot be
    positions = getattr(model, "max_position_embeddings", None)
    rollout = config.rollout
    needed = rollout.max_prompt_tokens + rollout.max_response_tokens
    if positions is not None and needed > positions:
        raise ConfigError(
            f"rollout.max_prompt_tokens + rollout.max_response_tokens = {rollout.max_prompt_tokens} + "
            f"{rollout.max_response_tokens} = {needed} exceed the {positions} positions of {config.model.path}: lower one"
        )


@contextmanager
def _working_folder() -> Iterator[None]:
    """Ray's workers import from the folder of whoever started them; a console script does not."""
    before = list(sys.path)
    sys.path.append(os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before
