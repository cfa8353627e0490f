"""Rewards, the definition of success, and the processes that compute them."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from hora_rl.common.answer_format import MODES
from hora_rl.common.config.base import Count, PerPart, PerStart, Seconds, Section
from hora_rl.common.user_code import OWN, is_user_function

WAIT_LIMIT_S = 600.0
"""A reward that raises `Unavailable` is retried for this long; then the run stops."""
MAX_ANSWER_CHARS = 2000
"""A longer answer is wrong without being parsed."""
BUILT_IN = ("format", "accuracy", "code_tests")
EPISODE = "episode."
"""Prefix of rewards that an environment returns: `episode.solved` is its reward `solved`."""


class CodeTestsConfig(Section):
    """The reward `code_tests`: a program's limits, and the columns of its tests."""

    seconds: float = Field(
        4.0,
        gt=0,
        le=600,
        description="Processor time of a program for one test; on the clock three times that plus 2 s.",
    )
    memory_mib: int = Field(512, ge=64, le=65536, description="Memory of a program, including Python.")
    columns: dict[Literal["tests", "entry_point", "solution"], str] = Field(
        {},
        description="Columns with other names: `tests` ({input, output} pairs or assertions), `entry_point` "
        "(the function for `check(candidate)`), `solution` (a correct program, for `hora check`).",
    )

    def column(self, name: Literal["tests", "entry_point", "solution"]) -> str:
        return self.columns.get(name, name)


class RewardConfig(Section):
    weights: dict[str, float] = Field(
        {"format": 0.5, "accuracy": 0.5},
        description="Weight of each reward by name: format, accuracy, code_tests, `package.module:function` "
        "for your own, or `episode.NAME` for an environment's.",
    )
    success: str | None = Field(
        "accuracy",
        description="Reward that decides whether a rollout is a success, which Phase A counts; computed even "
        "without a weight. Default: accuracy; code_tests if only that has a weight; null if neither has one "
        "and one of your own or an environment's has. null: no successes.",
    )
    success_at: float = Field(1.0, description="A rollout is a success if that reward is at least this.")
    answer: str = Field(
        "tags",
        description="Place of a completion's answer: tags (`<answer>`), boxed (last `\\boxed{}`), final "
        '(after "answer is", or the last line), auto (the first of these that exists), lenient (as auto, '
        "and in natural text the last number or expression) or `package.module:function`.",
    )
    time_limit_s: PerStart[Seconds] = Field(
        5.0,
        description="Processor time of math-verify for one answer; then its process is killed and the answer "
        "is wrong. Wall-clock time of a call of your reward.",
    )
    code_tests: CodeTestsConfig = CodeTestsConfig()

    @field_validator("weights")
    @classmethod
    def _weights(cls, value: dict[str, float]) -> dict[str, float]:
        if not any(value.values()):
            raise ValueError("at least one weight must not be zero, or no rollout can teach anything")
        for name in value:
            check_reward_name(name)
        return value

    @field_validator("success")
    @classmethod
    def _success(cls, value: str | None) -> str | None:
        return value if value is None else check_reward_name(value)

    @field_validator("answer")
    @classmethod
    def _answer(cls, value: str) -> str:
        if value not in MODES and not is_user_function(value):
            raise ValueError(f"{value!r} is none of {', '.join(MODES)}; your own is package.module:function")
        return value

    @model_validator(mode="before")
    @classmethod
    def _own_rewards_need_a_name(cls, data: object) -> object:
        """Default of `success` without accuracy: none for a user's rewards, which are ambiguous."""
        if isinstance(data, Mapping) and "success" not in data and isinstance(data.get("weights"), Mapping):
            names = [str(name) for name in data["weights"]]
            if "accuracy" not in names and "code_tests" in names:
                return {**data, "success": "code_tests"}
            ambiguous = any(is_user_function(name) or name.startswith(EPISODE) for name in names)
            if "accuracy" not in names and ambiguous:
                return {**data, "success": None}
        return data

    @model_validator(mode="after")
    def _some_succeed_and_some_fail(self) -> Self:
        if self.success in BUILT_IN and not 0 < self.success_at <= 1:
            every = "every" if self.success_at <= 0 else "no"
            raise ValueError(
                f"reward.success_at ({self.success_at}) makes {every} rollout a success: {self.success} "
                "gives 0 to 1, so choose a number above 0 and at most 1"
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All computed rewards: those with a weight, and the one for success."""
        return tuple(dict.fromkeys([*self.weights, *([self.success] if self.success else [])]))

    @property
    def judged(self) -> tuple[str, ...]:
        """The rewards that verifiers compute; an environment returns the rest."""
        return tuple(name for name in self.names if not name.startswith(EPISODE))

    @property
    def reads_rows(self) -> bool:
        """Whether a reward may read more of a row than its answer: tests, or columns for a user's reward."""
        return any(name not in ("format", "accuracy") for name in self.names)

    def succeeded(self, rewards: Mapping[str, float]) -> bool:
        """Whether a completion with these rewards is a success. Always False if `success` is null."""
        return self.success is not None and rewards[self.success] >= self.success_at


def check_reward_name(name: str) -> str:
    """The name. Raises ValueError unless built in, an environment's, or package.module:function."""
    of_episode = name.startswith(EPISODE) and name.removeprefix(EPISODE).isidentifier()
    if name not in BUILT_IN and not OWN.fullmatch(name) and not of_episode:
        raise ValueError(
            f"unknown reward {name!r}: use {', '.join(BUILT_IN)}, package.module:function, "
            "package.module:function[part] for one of the numbers that it returns by name, or "
            f"{EPISODE}NAME for one that the environment gives"
        )
    return name


class VerifierConfig(Section):
    replicas: PerPart[Count] = Field(1, description="Replicas at the start.")
    processes: Count | None = Field(
        None, description="Killable worker processes per replica; none: one per processor, at most 8."
    )
    cpus: float = Field(0.25, ge=0, description="CPUs reserved per replica, for Ray's placement.")
