"""What each kind of part writes about itself once a second, in the hash `Keys.parts`. Every field is
optional: a part may be of another version, and some fields hold only at times."""

from typing_extensions import TypedDict  # pydantic refuses the one of `typing` before Python 3.12


class Beat(TypedDict, total=False):
    """Fields of every kind. `state` and `notice` are text for users."""

    telemetry: int
    """Schema version of the writer; missing: 1."""
    seen: float
    """When it was written, seconds since the epoch."""
    host: str
    pid: int
    state: str
    notice: str


class EngineBeat(Beat, total=False):
    """An engine that starts in a generator replica: `state` is its stage."""


class GeneratorBeat(Beat, total=False):
    """`damaged`: version and mark of a published file that differs from its announcement."""

    version: int
    checksum: str
    """16 hex digits of the weights' checksum; empty at version 0 and while it is computed."""
    pause_s: float
    checksum_s: float
    damaged: tuple[int, str]
    running: int
    waiting: int
    cache: float
    """Used share of the KV cache."""
    prefix_hits: int
    prefix_queries: int


class VerifierBeat(Beat, total=False):
    """`away`: names of unavailable rewards, with the reasons."""

    answers_per_s: float
    waiting: int
    scored: int
    killed: int
    processes: int
    away: str


class EnvironmentBeat(Beat, total=False):
    running: int
    counts: dict[str, int]


class CoordinatorBeat(Beat, total=False):
    waiting_for: str


class LearnerBeat(Beat, total=False):
    """A rank that waits for groups names its `step`, the number of `missing` groups, and the oldest
    incomplete `batch`."""

    started: float
    waiting_for: str
    step: int
    missing: int
    batch: int


class EvaluatorBeat(Beat, total=False):
    """`late`: why the next evaluations are left out."""

    step: int
    done: int
    total: int
    late: str


class PartBeat(
    EngineBeat,
    GeneratorBeat,
    VerifierBeat,
    EnvironmentBeat,
    CoordinatorBeat,
    LearnerBeat,
    EvaluatorBeat,
    total=False,
):
    """A heartbeat as readers get it: of any kind."""
