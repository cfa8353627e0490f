"""How parts report: monotone counters (one Redis hash), a heartbeat each (`Keys.parts`), and one record per
step.

`deploy.monitor.run_state` turns these into the snapshot that views show. Every field of a heartbeat is
optional: a part may be of another version, and some fields hold only at times."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Unpack

import redis
import structlog
from typing_extensions import TypedDict  # pydantic refuses the one of `typing` before Python 3.12

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import Answer, AsyncRedis, text_of
from hora_rl.common.types import Group

log = structlog.get_logger(__name__)
HEARTBEAT_S = 1.0
HISTORY = 100_000
FLOWS = ("groups_in", "groups_out", "rollouts_in", "rollouts_out", "tokens_in", "tokens_out")
LOOKS = ("generator_looks", "generator_looks_idle")
"""Counters of a sample once a second: live generators, and those without a request."""
SILENT_S = 10.0
"""A part without a heartbeat for this long counts as down."""
LEADER = "learner/0"
"""The part that drives the learner's steps."""
ENGINE = "engine"
"""Kind of part: an engine that loads in a generator replica, until the replica has heartbeats of its own."""
STEPPING, TO_SLEEP = "training", "waiting for the generators to sleep"
"""Learner states during a step, and before a step for which engines sleep."""
TELEMETRY = 3
"""Heartbeat schema version; bump it on incompatible changes."""


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
    """A waiting rank names its `step`, the `missing` groups, and the oldest incomplete `batch`."""

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
    GeneratorBeat,
    VerifierBeat,
    EnvironmentBeat,
    CoordinatorBeat,
    LearnerBeat,
    EvaluatorBeat,
    total=False,
):
    """A heartbeat as readers get it: of any kind."""


class Telemetry:
    """Counters of one part. `add` adds in memory, `flush` writes. `redis` is an asyncio client."""

    def __init__(self, redis: AsyncRedis, run: str) -> None:
        self._redis = redis
        self._keys = Keys(run)
        self._added: dict[str, int] = {}

    def add(self, name: str, amount: int) -> None:
        self._added[name] = self._added.get(name, 0) + amount

    def group_in(self, group: Group) -> None:
        old, new = group.versions
        self.add("groups_in", 1)
        self.add("rollouts_in", group.size)
        self.add("tokens_in", group.tokens)
        self.add("mixed_groups", int(old != new))

    def allocation(self, rule: str, successes: Sequence[int], extra: Sequence[int]) -> None:
        """Count one allocation by `rule` over n prompts: c_i and Δ_i, both (n,)."""
        for c, e in zip(successes, extra, strict=True):
            self.add(f"phase_a:{rule}:{c}", 1)
            self.add(f"phase_b:{rule}:{c}", e)

    async def flush(self) -> None:
        added, self._added = self._added, {}
        if added:
            async with self._redis.pipeline(transaction=True) as pipe:
                for name, amount in added.items():
                    pipe.hincrby(self._keys.counters, name, amount)
                await pipe.execute()


async def repeat(seconds: float, work: Callable[[], Awaitable[None]], trouble: str) -> None:
    """Call `work` every `seconds` until cancelled. An error of Redis is logged as `trouble`."""
    while True:
        try:
            await work()
        except redis.exceptions.RedisError as error:
            log.warning(trouble, error=str(error)[:300])
        await asyncio.sleep(seconds)


async def keep_beating(client: AsyncRedis, run: str, part: str, state: Callable[[], Beat]) -> None:
    """Write the heartbeat of `part` (kind/name) once a second. Redis errors are logged and retried. A stopped
    part (`stop_beating`) disappears from views; a killed one is shown as silent."""

    async def beat() -> None:
        await client.hset(Keys(run).parts, part, _beat(state()))

    try:
        await repeat(HEARTBEAT_S, beat, f"no heartbeat of {part}")
    finally:
        with suppress(redis.exceptions.RedisError, OSError):
            await client.hdel(Keys(run).parts, part)


async def stop_beating(beat: asyncio.Task[None]) -> None:
    """End a heartbeat of `keep_beating`; returns within a second, also without Redis."""
    beat.cancel()
    await asyncio.wait({beat}, timeout=HEARTBEAT_S)


class Heartbeat:
    """Writes the learner's heartbeat once a second in a thread, because a step may take minutes."""

    def __init__(self, client: redis.Redis, run: str, part: str) -> None:
        self._client, self._run, self._part = client, run, part
        self._state: LearnerBeat = {}
        self._notice: Beat = {}
        self._started = time.time()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def update(self, **state: Unpack[LearnerBeat]) -> None:
        """Set the state of the following heartbeats; the first call starts them."""
        self._state = {**state, **self._notice, "started": self._started}
        if not self._thread.is_alive():
            self._thread.start()

    def note(self, notice: str) -> None:
        self._notice = {"notice": notice}

    def stop(self) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self) -> None:
        while True:
            over = self._done.is_set()  # the last state is written too, unless Redis is away
            try:
                heartbeat_now(self._client, self._run, self._part, self._state)
            except redis.exceptions.RedisError as error:
                log.warning("no heartbeat", part=self._part, error=str(error)[:300])
                over = self._done.is_set()
            if over:
                return
            self._done.wait(HEARTBEAT_S)


def beats(parts: Mapping[Answer, Answer], kind: str) -> list[PartBeat]:
    """The newest heartbeats of one kind of part, from the hash `Keys.parts`."""
    return [json.loads(text) for name, text in parts.items() if text_of(name).startswith(f"{kind}/")]


def living(parts: Mapping[Answer, Answer], kind: str, now: float) -> list[PartBeat]:
    """The heartbeats of one kind of part that are recent at `now`."""
    return [beat for beat in beats(parts, kind) if now - beat["seen"] < SILENT_S]


def heartbeat_now(client: redis.Redis, run: str, part: str, state: Beat) -> None:
    client.hset(Keys(run).parts, part, _beat(state))


def _beat(state: Beat) -> str:
    return json.dumps({**state, "telemetry": TELEMETRY, "seen": time.time()})


def count_now(client: redis.Redis, run: str, amounts: Mapping[str, int]) -> None:
    """Add to counters with a blocking client: the learner's `groups_out`, `rollouts_out`, `tokens_out`."""
    with client.pipeline(transaction=True) as pipe:
        for name, amount in amounts.items():
            pipe.hincrby(Keys(run).counters, name, amount)
        pipe.execute()


def record_step(client: redis.Redis, run: str, metrics: Mapping[str, float]) -> None:
    client.xadd(Keys(run).steps, {"metrics": json.dumps(dict(metrics))}, maxlen=HISTORY, approximate=True)


def record_evaluation(client: redis.Redis, run: str, version: int, values: Mapping[str, float]) -> None:
    """Pass@K of weight version `version` on held-out problems: {"pass@1": 0.31, "pass@8": 0.62, ...}."""
    client.hset(Keys(run).evaluations, str(version), json.dumps(dict(values)))
