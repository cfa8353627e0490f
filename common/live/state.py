"""The typed hash in Redis that actors, learner and views share: its fields, units and writers. Write with
`redis.hset(keys.state, mapping=changed(step=7))`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import redis
import redis.asyncio
from pydantic import Json, TypeAdapter, ValidationError

from hora_rl.common.config import Config
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import Answer, text_of
from hora_rl.common.load import without_gone

Value = bytes | bytearray | memoryview | str | int | float
"""The types that redis-py accepts as a hash's field or value."""


@dataclass(frozen=True, slots=True)
class PromptsUsed:
    """Number and fingerprint (16 hex digits) of the prompts, and schema of the groups, 0 for older runs."""

    n: int
    fingerprint: str
    rows: tuple[int, ...] = ()
    """With several data sources, the number of prompts from each."""
    schema: int = 0


@dataclass(frozen=True, slots=True)
class SharedState:
    """A snapshot of the run's hash. An unwritten field has its default."""

    version: int = 0
    """Newest published weight version; written by learner rank 0, never falls."""
    step: int = 0
    """Optimizer steps done; written by learner rank 0."""
    durable_step: int = 0
    """Number of steps whose groups were acknowledged; written by learner rank 0, never falls."""
    republished: int = 0
    """Versions published again because a replica found the file damaged; written by learner rank 0."""
    paused: bool = False
    """Whether coordinators start no new shard; written by the page."""
    unpaused: float = 0.0
    """When the last pause ended, seconds since the epoch; written by the page."""
    error: str | None = None
    """Why the run stopped; written by a coordinator that gives up, removed by one that starts."""
    gate_open: bool = False
    """Whether the warm-up is over; written by the coordinators, for views."""
    gate_seen: int = 0
    """Generation cycles that the warm-up gate has observed; written by the coordinators, for views."""
    gate_mean: float | None = None
    """Mean reward of the newest cycle; written by the coordinators, for views."""
    resting: int = 0
    """Prompts that rest (`data.rest`) as of the newest batch; written by the coordinators, for views."""
    token_sha256: str | None = None
    """SHA-256 (hex) of the token for pause and resume; written by the launcher."""
    prompts: Json[PromptsUsed] | None = None
    """Written once, by the first coordinator."""
    unplaced: str = ""
    """Parts that do not fit on the cluster, as text; written by the launcher of the learner."""
    device: str = ""
    """Name of the learner's GPU, or `cpu`; written by learner rank 0."""

    @classmethod
    def parse(cls, raw: Mapping[Answer, Answer]) -> SharedState:
        """The state in `raw`, as HGETALL returns it. Unknown fields are ignored."""
        return _STATE.validate_python({text_of(name): text_of(value) for name, value in raw.items()})


_STATE = TypeAdapter(SharedState)
BY_SCRIPTS = {"version", "prompts"}
"""Fields that only Redis scripts write, which compare before they do."""


def changed(**changes: bool | float | str) -> dict[Value, Value]:
    """`changes` as the mapping of an HSET. Raises TypeError for unknown fields and those of scripts."""
    if foreign := changes.keys() - (SharedState.__dataclass_fields__.keys() - BY_SCRIPTS):
        raise TypeError(f"no field of the shared state to write here: {min(foreign)}")
    return {name: int(value) if isinstance(value, bool) else value for name, value in changes.items()}


def read_state(client: redis.Redis, run: str) -> SharedState:
    """The current state of `run`; `client` blocks and returns bytes."""
    return SharedState.parse(client.hgetall(Keys(run).state))


async def read_state_async(client: redis.asyncio.Redis, run: str) -> SharedState:
    return SharedState.parse(await client.hgetall(Keys(run).state))


def read_config(text: Answer | None, run: str) -> Config:
    """The configuration stored by the coordinator. Raises RunError if missing or of another version."""
    if text is None:
        raise RunError(f"this Redis knows no run {run!r}: check run.name and queue.url, or start it first")
    try:
        return Config.model_validate(without_gone(json.loads(text)))
    except (ValidationError, ValueError):
        raise RunError(
            f"run {run!r} is served by another version of hora, whose configuration this one does not "
            "understand: use the same version for all parts"
        ) from None
