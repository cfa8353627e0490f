"""One reading of a run behind every view, and the few calls by which its parts report.

Parts write: monotone counters (one Redis hash), a heartbeat each (what it is, when it was last alive), and the learner
one record per step. `read_run` turns these into a `RunState`. It needs Redis and nothing else: whatever is down shows
as silent, with a warning that says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import redis

from common.config import Config
from common.errors import RunError
from common.keys import Keys
from common.types import Group

SILENT_S = 10.0
GONE_S = 60.0
WINDOW_S = 60.0
SAMPLE_S = 1.0
HISTORY = 100_000


class Telemetry:
    """Counters of one part, added up here and written by `flush`. `redis` is an asyncio client."""

    def __init__(self, redis: Any, run: str) -> None:
        self._redis = redis
        self._keys = Keys(run)
        self._added: dict[str, int] = {}

    def add(self, name: str, amount: int) -> None:
        self._added[name] = self._added.get(name, 0) + amount

    def group_in(self, group: Group) -> None:
        """One complete group was pushed."""
        old, new = group.versions
        for name, amount in (
            ("groups_in", 1),
            ("rollouts_in", group.size),
            ("tokens_in", group.tokens),
            ("mixed_groups", int(old != new)),
        ):
            self.add(name, amount)

    def allocation(self, successes: Sequence[int], extra: Sequence[int], trials: int) -> None:
        """One shard was allocated: Phase A counts c_i, and what each received of Phase B."""
        self.add("trials", 0)
        for c, e in zip(successes, extra, strict=True):
            self.add(f"phase_a:{c}", 1)
            self.add(f"phase_b:{c}", e)

    async def flush(self) -> None:
        added, self._added = self._added, {}
        if added:
            async with self._redis.pipeline(transaction=True) as pipe:
                for name, amount in added.items():
                    pipe.hincrby(self._keys.counters, name, amount)
                await pipe.execute()


async def heartbeat(client: Any, run: str, part: str, state: Mapping[str, Any]) -> None:
    """`part` (kind/name) is alive and in this state."""
    await client.hset(Keys(run).parts, part, json.dumps({**state, "seen": time.time()}))


def heartbeat_now(client: redis.Redis, run: str, part: str, state: Mapping[str, Any]) -> None:
    """`heartbeat` for a blocking client."""
    client.hset(Keys(run).parts, part, json.dumps({**state, "seen": time.time()}))


def count_now(client: redis.Redis, run: str, amounts: Mapping[str, int]) -> None:
    """Add to counters with a blocking client: the learner's `groups_out`, `rollouts_out`, `tokens_out`."""
    with client.pipeline(transaction=True) as pipe:
        for name, amount in amounts.items():
            pipe.hincrby(Keys(run).counters, name, amount)
        pipe.execute()


def record_step(client: redis.Redis, run: str, metrics: Mapping[str, float]) -> None:
    """Append one optimizer step's metrics to the run's stream."""
    client.xadd(Keys(run).steps, {"metrics": json.dumps(dict(metrics))}, maxlen=HISTORY, approximate=True)


@dataclass(frozen=True, slots=True)
class Part:
    """A replica, coordinator or learner rank: kind, name, seconds since it was seen, and what it said."""

    kind: str
    name: str
    silent_s: float
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunState:
    """One run at one moment. Rates are per second over the last minute; ages in seconds."""

    run: str
    time: float
    steps: int
    step: int
    version: int
    max_staleness: int
    paused: bool
    error: str | None
    warm_up: bool
    queue_depth: int
    queue_capacity: int
    oldest_group_s: float
    dead_letters: int
    rates: dict[str, float]
    totals: dict[str, int]
    lag: dict[str, float]
    phase_a: dict[int, int]
    phase_b: dict[int, int]
    learner: dict[str, Any]
    parts: tuple[Part, ...]
    sparks: dict[str, list[float]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def of(self, kind: str) -> list[Part]:
        return [p for p in self.parts if p.kind == kind]


FLOWS = ("groups_in", "groups_out", "rollouts_in", "rollouts_out", "tokens_in", "tokens_out")


def read_run(client: redis.Redis, run: str) -> RunState:
    """The state of `run` now. Raises RunError when this Redis knows no such run.

    Readers also keep the history that rates are computed from: the first to come in each second writes the sample.
    """
    keys, now = Keys(run), time.time()
    with client.pipeline(transaction=False) as pipe:
        pipe.get(keys.config)
        pipe.hgetall(keys.state)
        pipe.hgetall(keys.counters)
        pipe.hgetall(keys.parts)
        pipe.xlen(keys.groups)
        pipe.hlen(keys.ledger)
        pipe.xrevrange(keys.steps, count=1)
        pipe.xrevrange(keys.history, min=f"{int((now - WINDOW_S) * 1000)}", count=int(WINDOW_S * 2))
        pipe.xrange(keys.groups, count=1)
        text, state, counters, parts, length, taken, last, history, oldest = pipe.execute()
    if text is None:
        raise RunError(f"this Redis knows no run {run!r}: check run.name and queue.url, or start it first")
    config = Config.model_validate(json.loads(text))
    totals = {k.decode(): int(v) for k, v in counters.items()}
    durable = int(state.get(b"durable_step", 0))
    depth = max(0, length - (taken - durable) * config.rollout.prompts_per_batch)
    samples = _samples(history)
    _sample(client, keys, samples, now, totals, depth)
    learner = json.loads(last[0][1][b"metrics"]) if last else {}
    reading = RunState(
        run=run,
        time=now,
        steps=config.learner.steps,
        step=int(state.get(b"step", 0)),
        version=int(state.get(b"version", 0)),
        max_staleness=config.rollout.max_staleness,
        paused=state.get(b"paused") == b"1",
        error=state[b"error"].decode() if b"error" in state else None,
        warm_up=_warm_up(config, state),
        queue_depth=depth,
        queue_capacity=config.capacity,
        oldest_group_s=_age(oldest, now) if depth else 0.0,
        dead_letters=totals.get("dead_letters", 0),
        rates=_rates(samples, totals, now),
        totals={name: totals.get(name, 0) for name in (*FLOWS, "mixed_groups")},
        lag={"mean": learner.get("lag/mean", 0.0), "max": learner.get("lag/max", 0.0)},
        phase_a=_by_count(totals, "phase_a:"),
        phase_b=_by_count(totals, "phase_b:"),
        learner=learner,
        parts=_parts(parts, now),
        sparks=_sparks(samples),
    )
    return _with_warnings(reading, config)


def _samples(history: Any) -> list[dict[str, float]]:
    return [json.loads(fields[b"sample"]) for _, fields in reversed(history)]


def _sample(
    client: redis.Redis,
    keys: Keys,
    samples: list[dict[str, float]],
    now: float,
    totals: Mapping[str, int],
    depth: int,
) -> None:
    """Keep one sample a second, however many readers there are."""
    if samples and now - samples[-1]["time"] < SAMPLE_S:
        return
    if client.set(f"{keys.history}:lock", "1", nx=True, px=int(SAMPLE_S * 900)):
        sample = {"time": now, "depth": depth, **{f: totals.get(f, 0) for f in FLOWS}}
        client.xadd(keys.history, {"sample": json.dumps(sample)}, maxlen=HISTORY, approximate=True)


def _rates(samples: list[dict[str, float]], totals: Mapping[str, int], now: float) -> dict[str, float]:
    if not samples or now - samples[0]["time"] < SAMPLE_S:
        return dict.fromkeys(FLOWS, 0.0)
    first = samples[0]
    return {f: max(0.0, totals.get(f, 0) - first.get(f, 0)) / (now - first["time"]) for f in FLOWS}


def _sparks(samples: list[dict[str, float]]) -> dict[str, list[float]]:
    """The last minute as rates between neighbouring samples, and the queue's depth."""
    pairs = list(zip(samples, samples[1:], strict=False))
    sparks = {
        f: [max(0.0, b.get(f, 0) - a.get(f, 0)) / max(1e-3, b["time"] - a["time"]) for a, b in pairs]
        for f in FLOWS
    }
    return {**sparks, "depth": [s["depth"] for s in samples]}


def _by_count(totals: Mapping[str, int], prefix: str) -> dict[int, int]:
    found = {int(k.removeprefix(prefix)): v for k, v in totals.items() if k.startswith(prefix)}
    return dict(sorted(found.items()))


def _parts(raw: Mapping[bytes, bytes], now: float) -> tuple[Part, ...]:
    parts = []
    for name, text in sorted(raw.items()):
        state = json.loads(text)
        kind, _, own = name.decode().partition("/")
        silent = max(0.0, now - state.pop("seen"))
        if silent < GONE_S or kind in ("learner", "coordinator"):
            parts.append(Part(kind, own, silent, state))
    return tuple(parts)


def _warm_up(config: Config, state: Mapping[bytes, bytes]) -> bool:
    if not config.allocation.warmup.enabled:
        return False
    cycles = state.get(b"cycles")
    return not (cycles and json.loads(cycles)["gate"]["open"])


def _age(oldest: Any, now: float) -> float:
    return max(0.0, now - int(oldest[0][0].split(b"-")[0]) / 1000) if oldest else 0.0


def _with_warnings(state: RunState, config: Config) -> RunState:
    from dataclasses import replace

    if state.step >= state.steps:
        return state
    found = [f"stopped: {state.error}"] if state.error else []
    if state.paused:
        found.append("paused by an operator")
    for kind in ("generator", "coordinator", "learner"):
        parts = state.of(kind)
        if not [p for p in parts if p.silent_s < SILENT_S]:
            since = f" for {min(p.silent_s for p in parts):.0f} s" if parts else ""
            found.append(f"no {kind} is alive{since}")
    found += _flow_warnings(state, config)
    return replace(state, warnings=tuple(found))


def _flow_warnings(state: RunState, config: Config) -> list[str]:
    found = []
    waiting = any(p.state.get("state") == "waiting" for p in state.of("learner"))
    if waiting and state.queue_depth < config.rollout.prompts_per_batch and not state.paused:
        running = sum(p.state.get("running", 0) for p in state.of("generator"))
        found.append(f"learner starving: {'generators' if running else 'verifiers'} are the bottleneck")
    if state.queue_depth >= state.queue_capacity:
        found.append("queue full: the learner is the bottleneck")
    if state.dead_letters:
        found.append(f"{state.dead_letters} dead letters")
    behind = [
        p for p in state.of("generator") if state.version - p.state.get("version", 0) > state.max_staleness
    ]
    found += [
        f"generator {p.name} holds version {p.state.get('version', 0)} of {state.version}" for p in behind
    ]
    return found
