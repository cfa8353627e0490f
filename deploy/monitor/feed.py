"""One reader of a run per process: a snapshot per second, shared by all clients, and the history for charts.

A failed snapshot (Redis down, no such run, wrong password) is also an event. Clients show its message with
the last state. The history is read incrementally, with a bounded number of points: series by step from the
learner's stream, flows from a coordinator's samples, and the share of Phase B by c_i (the paper's allocation
figure) from shard reports. `evaluation.phase_b` defines which batches count.
"""

import asyncio
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import redis
import structlog

from hora_rl.common.config import RolloutConfig
from hora_rl.common.errors import HoraError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import Redis, connect, hidden
from hora_rl.common.live.state import read_config, read_state
from hora_rl.common.live.telemetry import FLOWS
from hora_rl.common.records import ShardReport
from hora_rl.deploy.monitor.reading import numbers, rate, read_run
from hora_rl.deploy.monitor.run_state import RunState
from hora_rl.evaluation.phase_b import PhaseB, Share, classes, counted, total

log = structlog.get_logger(__name__)
PERIOD_S = 1.0
COLUMNS_S = 2.0
Observer = Callable[[RunState], None]
Read = Callable[[Redis, str], RunState]
T = TypeVar("T")
POINTS = 400
KEPT = 4 * POINTS
CHUNK = 2000
SMOOTH = 5
TIMES, LENGTHS = ("time/step", "time/wait"), ("length/mean", "length/max")
BY_STEP = ("reward", "reward/format", "success", "entropy", *LENGTHS, *TIMES)
CHARTED = re.compile(f"{'|'.join(BY_STEP)}|source/.*/(reward|success)")
"""Metrics of steps that have a chart, also of each data source."""


@dataclass(frozen=True, slots=True)
class Event:
    """Result of one attempt to read the run: a state, or the reason of the failure. `number` counts
    attempts."""

    number: int
    state: RunState | None
    problem: str | None

    def to_json(self) -> str:
        state = None if self.state is None else self.state.to_dict()
        return json.dumps({"state": state, "problem": self.problem}, separators=(",", ":"))


class Feed:
    """Reads the run on a running event loop after `start`. `observer` is called with every state."""

    def __init__(
        self, redis_url: str, run: str, observer: Observer | None = None, read: Read = read_run
    ) -> None:
        self.run = run
        self._url, self._observer, self._state = redis_url, observer, read
        self._client: Redis | None = None
        self.streams = 0
        """Clients of the event stream."""
        self._history, self._building = History(run), asyncio.Lock()
        self._columns, self._columns_at = b"", -COLUMNS_S
        self.event = Event(0, None, "the first snapshot is under way")
        self.text = self.event.to_json()
        """The newest event, and its JSON for all clients."""
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def history(self) -> bytes:
        """JSON columns for charts, read on request at most every COLUMNS_S seconds. Raises HoraError if
        Redis is down or has no such run."""
        async with self._building:
            if time.monotonic() - self._columns_at >= COLUMNS_S:
                self._columns = await self.call(self._history.columns)
                self._columns_at = time.monotonic()
            return self._columns

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def after(self, number: int) -> Event:
        """Wait for an event after `number`. Returns the newest event."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.event.number > number)
            return self.event

    async def call(self, work: Callable[[Redis], T]) -> T:
        """Run `work(client)` with the feed's blocking client in a thread. Raises HoraError if Redis is
        down."""
        return await asyncio.to_thread(self._guarded, work)

    async def _work(self) -> None:
        while True:
            number = self.event.number + 1
            # A view must survive any content of a run, so errors are values here.
            [result] = await asyncio.gather(self._look(), return_exceptions=True)
            event = Event(number, result, None) if isinstance(result, RunState) else _failed(number, result)
            text = event.to_json()
            async with self._changed:
                self.event, self.text = event, text
                self._changed.notify_all()
            await asyncio.sleep(PERIOD_S)

    async def _look(self) -> RunState:
        state = await self.call(lambda client: self._state(client, self.run))
        if os.environ.get("HORA_TOKEN"):
            state = replace(state, controls=True)
        if self._observer is not None:
            self._observer(state)
        return state

    def _guarded(self, work: Callable[[Redis], T]) -> T:
        try:
            if self._client is None:
                self._client = connect(self._url, retries=0)
            return work(self._client)
        except redis.exceptions.RedisError as error:
            self._client = None
            raise HoraError(
                f"Redis at {hidden(self._url)} does not answer ({error}); the views continue when it does"
            ) from None


def _failed(number: int, error: BaseException) -> Event:
    if isinstance(error, HoraError):
        return Event(number, None, str(error))
    log.error("the run cannot be read", exc_info=error)
    return Event(number, None, f"the run cannot be read: {type(error).__name__}: {error}")


class History:
    """Grows with every reading. `client` is blocking."""

    def __init__(self, run: str) -> None:
        self._run, self._keys = run, Keys(run)
        self._steps: dict[int, dict[str, float]] = {}
        self._samples: list[dict[str, float]] = []
        self._every, self._seen = 1, 0
        self._phase_b: dict[int, tuple[str, PhaseB]] = {}
        self._last_step = self._last_sample = "0"
        self._next_batch = 0

    def columns(self, client: Redis) -> bytes:
        """JSON columns for the charts of the page, with at most POINTS points per series."""
        rollout = read_config(client.get(self._keys.config), self._run).rollout
        self._read(client, rollout)
        steps = sorted(self._steps)
        names = dict.fromkeys(name for metrics in self._steps.values() for name in metrics)
        columns = {
            "steps": {
                "step": _thin([float(s) for s in steps]),
                **{name: _thin([self._steps[s].get(name) for s in steps]) for name in names},
            },
            "flow": self._flow(),
            "shares": self._share_columns(classes(rollout.pre_rollouts)),
        }
        return json.dumps(columns, separators=(",", ":")).encode()

    def _read(self, client: Redis, rollout: RolloutConfig) -> None:
        for entry, fields in _since(client, self._keys.steps, self._last_step):
            metrics = numbers(fields[b"metrics"])
            # A resumed run repeats steps; the later record counts.
            self._steps[int(metrics["step"])] = {k: v for k, v in metrics.items() if CHARTED.fullmatch(k)}
            self._last_step = entry
        for entry, fields in _since(client, self._keys.history, self._last_sample):
            self._keep(json.loads(fields[b"sample"]))
            self._last_sample = entry
        self._read_shares(client, rollout)

    def _keep(self, sample: dict[str, float]) -> None:
        """Keep every n-th sample, and double n if too many are kept. Rates of counters stay exact."""
        if self._seen % self._every == 0:
            self._samples.append(sample)
        self._seen += 1
        if len(self._samples) > KEPT:
            self._samples = self._samples[::2]
            self._every *= 2

    def _read_shares(self, client: Redis, rollout: RolloutConfig) -> None:
        shards, trials = rollout.shards, rollout.pre_rollouts
        last = read_state(client, self._run).step + rollout.max_staleness
        for batch in range(self._next_batch, last + 1):
            stored = client.hmget(self._keys.shards, [f"{batch}:{s}" for s in range(shards)])
            if not all(stored):
                return
            reports: list[ShardReport] = [json.loads(f) for f in stored if f]
            of_shards = [(r["rule"], PhaseB.count(r["successes"], r["extra"], trials)) for r in reports]
            self._phase_b[batch] = (reports[0]["rule"], total(of_shards, trials))
            self._next_batch = batch + 1

    def _flow(self) -> dict[str, list[float | None]]:
        samples = self._samples
        # Groups come in bursts, so average rates over a few seconds.
        step = max(SMOOTH if len(samples) > 12 * SMOOTH else 1, -(-len(samples) // POINTS))
        picked = samples[::step]
        pairs = list(itertools.pairwise(picked))
        return {
            "time": [round(b["time"], 1) for _, b in pairs],
            **{k: [b.get(k) for _, b in pairs] for k in ("depth", "version", "oldest_replica")},
            **{flow: [_short(rate(flow, *pair)) for pair in pairs] for flow in FLOWS},
        }

    def _share_columns(self, buckets: list[tuple[int, int]]) -> dict[str, object]:
        cycles = sorted(self._phase_b.items())
        chosen = counted([rule for _, (rule, _) in cycles])
        shown = [(batch, phase_b) for (batch, (_, phase_b)), yes in zip(cycles, chosen, strict=True) if yes]
        columns = list(zip(*(phase_b.shares(buckets) for _, phase_b in shown), strict=True))
        return {
            "batch": _thin([float(batch) for batch, _ in shown]),
            "classes": [Share(low, high, None, None).name for low, high in buckets],
            "phase_b": [_thin([share.phase_b for share in column]) for column in columns],
        }


def _since(client: Redis, stream: str, last: str) -> Iterator[tuple[str, dict[bytes, bytes]]]:
    entries: Any = [()]
    while entries:
        entries = client.xrange(stream, min=f"({last}" if last != "0" else "-", count=CHUNK)
        for entry, fields in entries:
            last = entry.decode()
            yield last, fields


def _thin(values: Sequence[float | None]) -> list[float | None]:
    """Reduce `values` to at most POINTS means of neighbours; None if all neighbours are None."""
    width = max(1, -(-len(values) // POINTS))
    groups = (values[i : i + width] for i in range(0, len(values), width))
    known = ([v for v in group if v is not None] for group in groups)
    return [_short(sum(group) / len(group)) if group else None for group in known]


def _short(value: float) -> float:
    """Round to five digits, which halves the bytes."""
    return float(f"{value:.5g}")
