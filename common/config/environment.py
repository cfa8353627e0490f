"""Multi-turn episodes instead of single completions."""

from typing import Literal, Self

from pydantic import Field, JsonValue, model_validator

from hora_rl.common.config.base import Count, PerPart, PerStart, Seconds, Section
from hora_rl.common.user_code import is_user_function

BUILT_IN = ("guess", "python")
LIBRARY = "verifiers"
"""Value of `environment.path` for an environment of that library."""
ATTEMPTS = 5
"""Tries of an episode whose environment fails or hangs, before the run stops."""
EPISODES = 256
"""Concurrent episodes per replica; more wait outside."""


class VerifiersConfig(Section):
    """An environment of the library `verifiers`, which runs in a separate Python."""

    taskset: str = Field(description="Task set, by its id in the library: a module's name.")
    env: str | None = Field(
        None, description="Environment, by its id; none: the task set's default, or one agent that plays it."
    )
    config: dict[str, JsonValue] = Field(
        {}, description="Further keys of the environment's configuration, named as in the library."
    )
    python: str = Field(
        ".venv-verifiers/bin/python",
        description="A Python with requirements/verifiers.txt, not `hora`'s: vLLM needs other versions.",
    )
    variables: tuple[str, ...] = Field(
        (), description="Environment variables passed on, such as the key of a judge; others are removed."
    )


class EnvironmentConfig(Section):
    """An environment talks with the policy for several turns; without `path` a rollout is one completion."""

    path: str | None = Field(
        None,
        description="guess, python, verifiers or `package.module:function`; null: one completion a rollout.",
    )
    verifiers: VerifiersConfig | None = Field(
        None, description="Environment of `verifiers`, if that is path."
    )
    max_turns: int = Field(8, ge=1, le=4096, description="Maximum number of policy turns in an episode.")
    max_turn_tokens: Count | None = Field(
        None, description="Sampled tokens of a turn at most; none: the rest of rollout.max_response_tokens."
    )
    max_given_tokens: Count = Field(
        1024, description="Tokens between turns of an episode at most: messages and the template's additions."
    )
    history: Literal["append", "render"] = Field(
        "append",
        description="Context of later turns. append: all sampled tokens with reasoning; a rollout is one "
        "sequence. render: earlier turns as the chat template shows them, perhaps without reasoning; each "
        "turn is a sequence.",
    )
    time_limit_s: PerStart[Seconds] = Field(
        60.0,
        description="Seconds of an environment in an episode, without the policy's; after that the episode "
        "is sampled again.",
    )
    replicas: PerPart[Count] = Field(1, description="Replicas of the deployment at the start.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.path == LIBRARY) != (self.verifiers is not None):
            raise ValueError(
                f"environment.path ({self.path}) and environment.verifiers go together: set path: verifiers "
                "and verifiers.taskset, or neither"
            )
        named = (*BUILT_IN, LIBRARY)
        if self.path is not None and self.path not in named and not is_user_function(self.path):
            raise ValueError(
                f"environment.path ({self.path!r}) is none of {', '.join(named)}; your own is "
                "package.module:function"
            )
        return self
