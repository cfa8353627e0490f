"""Episodes of several turns in place of single completions."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from common.config.base import Count, Seconds, Section
from common.user_code import is_user_function

BUILT_IN = ("guess", "calculator", "python")


class Environment(Section):
    """An environment talks with the policy for several turns; without `path` a rollout is one completion."""

    path: str | None = Field(
        None,
        description="guess, calculator, python, or `package.module:function` for your own. null: a rollout "
        "is one completion.",
    )
    max_turns: int = Field(
        8, ge=1, le=4096, description="An episode that wants more turns of the policy ends there."
    )
    max_turn_tokens: Count | None = Field(
        None,
        description="Most tokens that the policy samples in one turn; none: what is left of "
        "rollout.max_response_tokens, which is for all turns together.",
    )
    max_given_tokens: Count = Field(
        1024,
        description="Most tokens between the turns of an episode: what the environment says and what the "
        "chat template writes around it.",
    )
    history: Literal["append", "render"] = Field(
        "append",
        description="What a turn sees of those before. append: everything that was sampled, thoughts "
        "included; a rollout is one sequence. render: what the chat template shows of them, which may leave "
        "thoughts out; each turn is a sequence.",
    )
    time_limit_s: Seconds = Field(
        60.0,
        description="Seconds of its own that an environment may take for one episode, waiting for the policy "
        "left out. One that takes longer hangs, and the episode is sampled again.",
    )
    attempts: Count = Field(
        5,
        description="Tries of one episode whose environment fails or hangs, before the run stops with the "
        "reason.",
    )
    replicas: Count = Field(1, description="Replicas of the deployment at the start.")
    max_replicas: Count | None = Field(
        None, description="More replicas are started up to so many as episodes need them; none: no more."
    )
    episodes: Count = Field(
        256, description="Episodes that one replica runs at a time; more wait outside, in no order."
    )
    cpus: float = Field(0.25, ge=0, description="CPUs reserved per replica, for Ray's placement.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.path is not None and self.path not in BUILT_IN and not is_user_function(self.path):
            raise ValueError(
                f"environment.path ({self.path!r}) is none of {', '.join(BUILT_IN)}; your own is "
                "package.module:function"
            )
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"environment.max_replicas ({self.max_replicas}) must be at least environment.replicas "
                f"({self.replicas})"
            )
        return self
