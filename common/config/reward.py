"""Rewards, and the processes that compute them."""

from __future__ import annotations

from pydantic import Field, field_validator

from common.config.base import Count, Seconds, Section


class Reward(Section):
    weights: dict[str, float] = Field(
        {"format": 0.5, "accuracy": 0.5},
        description="Weight of each reward by name; `package.module:function` adds your own.",
    )
    time_limit_s: Seconds = Field(
        5.0,
        description="Time math-verify gets for one answer; then its process is killed and the answer counts as wrong.",
    )
    max_answer_chars: Count = Field(2000, description="A longer answer is wrong without being parsed.")

    @field_validator("weights")
    @classmethod
    def _weights(cls, value: dict[str, float]) -> dict[str, float]:
        if not any(value.values()):
            raise ValueError("at least one weight must not be zero, or no rollout can teach anything")
        unknown = [name for name in value if name not in ("format", "accuracy") and ":" not in name]
        if unknown:
            raise ValueError(
                f"unknown reward {unknown[0]!r}: use format, accuracy or package.module:function"
            )
        return value


class Verifier(Section):
    replicas: Count = Field(1, description="Replicas at the start.")
    processes: Count = Field(1, description="Killable worker processes of one replica.")
    cpus: float = Field(0.25, ge=0, description="CPUs reserved per replica, for Ray's placement.")
