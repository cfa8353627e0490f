"""Reads this rank's groups of each step: planned by rank 0, fixed in the ledger, read from Redis by id.

Rank 0 claims entries, validates each once, selects the step's Γ groups by the staleness rule and writes them
to the ledger before any rank trains. Each rank computes the same division of them and reads its part. After a
crash the ledger repeats the same steps; groups that no ledgered step took are still in the stream."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import MappingProxyType

import redis

from hora_rl.common.config import Config
from hora_rl.common.errors import RunError, WireError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.queue import Consumer, Ledger, Row
from hora_rl.common.live.staleness import Entry, select_for_step
from hora_rl.common.live.state import read_state
from hora_rl.common.live.telemetry import LEADER, Heartbeat
from hora_rl.common.types import Group
from hora_rl.common.wire import decode_group
from hora_rl.learner.feed.admission import Foreign, Vocabulary, admitted
from hora_rl.learner.rows.packing import spread

POLL_S = 0.05
CLAIM_S = 0.5
UNUSABLE_IN_A_ROW = 10
"""So many unusable groups in a row stop the run."""


class Planner:
    """Rank 0's planning from the restored step `start`. `cost` of a group, in any unit, balances the
    ranks."""

    def __init__(
        self,
        client: redis.Redis,
        config: Config,
        vocabulary: Vocabulary,
        start: int,
        cost: Callable[[Group], int] = lambda group: group.tokens,
    ) -> None:
        self._config, self._cost = config, cost
        self._redis = client
        self._consumer = Consumer(client, config.run.name)
        self._keys = Keys(config.run.name)
        self._ledger = Ledger(client, config.run.name)
        self._vocabulary = vocabulary
        self._prompts_known: int | None = None
        self._dead_in_a_row = 0
        self.kept: dict[str, Group] = {}  # validated groups by entry, until their step has ended
        self._training: list[Row] = []  # the step planned last
        self._ready: dict[str, tuple[Entry, int]] = {}
        self._planned = self._ledger.steps()
        self._trained: Counter[int] = Counter(r.batch for rows in self._planned.values() for r in rows)
        self._durable = read_state(client, config.run.name).durable_step
        self._take_up(start)

    def _take_up(self, start: int) -> None:
        """Sort the groups that a crash left: in the checkpoint, to be repeated, or free. Raises RunError when
        this Redis did not plan the checkpoint's steps."""
        if start < self._durable:
            raise RunError(
                f"the newest checkpoint here that can be used contains {start} steps, but the groups of the "
                f"first {self._durable} were dropped: bring back a checkpoint of step {self._durable} or "
                "later (run.folder; what was damaged there is named refused-step-*), or start again under "
                "another run.name"
            )
        missing = [s for s in range(start) if s not in self._planned]
        if missing:
            raise RunError(
                f"the checkpoint contains {start} steps, but this Redis has not planned step {missing[0]}: "
                "it lost data, or is another run's; resume with the Redis of this run, or start again "
                "under another run.name"
            )
        planned = {r.entry for rows in self._planned.values() for r in rows}
        for entry in self._consumer.pending():
            if entry.id not in planned:
                self._admit(entry)
        self._planned = {step: rows for step, rows in self._planned.items() if step >= self._durable}

    def plan(self, step: int, waiting: Callable[[], None]) -> float:
        """Fix step `step` in the ledger, waiting for groups if needed; returns the seconds waited. Raises
        RunError when nothing usable arrives within learner.wait_limit_s, or the coordinator stopped."""
        for row in self._training:
            self.kept.pop(row.entry, None)
        self._training = []
        if step in self._planned:
            return 0.0
        rollout, began, heard = self._config.rollout, time.monotonic(), time.monotonic()
        limit, looked = step - rollout.max_staleness, False
        while True:
            overdue = sum(n for batch, n in self._trained.items() if batch <= limit)
            ready = [r for r, _ in self._ready.values()]
            chosen = select_for_step(step, ready, rollout.prompts_per_batch, rollout.max_staleness, overdue)
            if chosen is not None:
                break
            if looked:  # the first look does not wait
                waiting()
            looked = True
            entries = self._consumer.claim(CLAIM_S) or self._unheard()
            for entry in entries:
                self._admit(entry)
            if entries or self._check(step, time.monotonic() - heard):
                heard = time.monotonic()
        rows = [Row(r.group, r.id, r.batch, self._ready.pop(r.id)[1]) for r in chosen]
        self._ledger.record(step, rows)
        self._planned[step] = self._training = rows
        self._trained.update(r.batch for r in rows)
        return time.monotonic() - began

    def look(self) -> None:
        """Claim newly arrived entries without waiting."""
        for entry in self._consumer.claim(0.0):
            self._admit(entry)

    def missing(self, step: int) -> tuple[int, int]:
        """Return (minimum missing groups, oldest incomplete batch) for `step`."""
        per_batch, limit = self._config.rollout.prompts_per_batch, step - self._config.rollout.max_staleness
        held = self._trained + Counter(r.batch for r, _ in self._ready.values())
        # The step before took the rest of the batches before `limit`.
        overdue = per_batch - held[limit] if limit >= 0 else 0
        oldest = next(b for b in count(max(0, limit)) if held[b] < per_batch)
        return max(overdue, per_batch - len(self._ready)), oldest

    def _unheard(self) -> list[Entry]:
        """Entries claimed in Redis but unknown here, because the reply to a claim was lost."""
        planned = [r.entry for rows in self._planned.values() for r in rows]
        if self._consumer.claimed() <= len(self._ready) + len(planned):
            return []
        known = {*self._ready, *planned}
        return [entry for entry in self._consumer.pending() if entry.id not in known]

    def durable(self, step: int) -> None:
        """Acknowledge the entries of the first `step` steps, which are durable."""
        if step <= self._durable:
            return
        done = [s for s in self._planned if s < step]
        self._consumer.acknowledge({r.entry: r.group for s in done for r in self._planned[s]}, step)
        for s in done:
            del self._planned[s]
        self._durable = step

    def _admit(self, entry: Entry) -> None:
        try:
            messages = self._consumer.read(entry.id, entry.group)
            group = admitted(self._config, self._vocabulary, self._prompts(), entry, messages)
        except WireError as error:
            self._consumer.dead_letter(entry, str(error), again=not isinstance(error, Foreign))
            self._dead_in_a_row += 1
            if self._dead_in_a_row >= UNUSABLE_IN_A_ROW:
                raise RunError(
                    f"{self._dead_in_a_row} unusable groups in a row; last: "
                    f"entry {entry.id} of {self._keys.groups}: {error}. Remove the cause (stream "
                    f"{self._keys.dead} has all reasons) and resume: the groups are sampled again"
                ) from error
            return
        self._dead_in_a_row = 0
        self._ready[entry.id] = (Entry(entry.id, group.id, group.batch), self._cost(group))
        self.kept[entry.id] = group

    def _prompts(self) -> int | None:
        """The run's number of prompts, which the first coordinator writes before the first group."""
        if self._prompts_known is None:
            prompts = read_state(self._redis, self._config.run.name).prompts
            self._prompts_known = prompts.n if prompts else None
        return self._prompts_known

    def _check(self, step: int, silent: float) -> bool:
        """Whether waiting has no limit now: the run is paused, or the initial policy is being evaluated.
        Raises RunError when the coordinator stopped or groups are overdue."""
        state = read_state(self._redis, self._config.run.name)
        if state.error:
            raise RunError(f"the coordinator stopped: {state.error}")
        if state.paused or self._redis.exists(self._keys.hold):
            return True
        if silent > self._config.learner.wait_limit_s:
            raise RunError(
                f"step {step} has waited {silent:.0f} s for groups (learner.wait_limit_s): "
                "see `hora monitor` for the part that is down or slow"
            )
        return False


class Reader:
    """Reads one rank's share of a ledgered step. Groups in `kept` are not read again."""

    def __init__(
        self,
        client: redis.Redis,
        config: Config,
        rank: int,
        world: int,
        kept: Mapping[str, Group] = MappingProxyType({}),
    ) -> None:
        self._config, self._rank, self._world, self._kept = config, rank, world, kept
        self._redis = client
        self._ledger = Ledger(client, config.run.name)
        self._consumer = Consumer(client, config.run.name)

    def read(self, step: int, waiting: Callable[[], None] = lambda: None) -> list[Group]:
        """This rank's groups of step `step`. Waits until rank 0 has written the step to the ledger."""
        parts, heard = Keys(self._config.run.name).parts, time.monotonic()
        last: object = None
        while (rows := self._ledger.step(step)) is None:
            # A separate thread writes rank 0's heartbeat. So a beat counts as life while rank 0 waits; in any
            # other state only a change counts.
            beat = json.loads(self._redis.hget(parts, LEADER) or "{}")
            state = beat if beat.get("state") == "waiting" else (beat.get("state"), beat.get("step"))
            if state != last:
                heard, last = time.monotonic(), state
            if time.monotonic() - heard > self._config.learner.wait_limit_s:
                raise RunError(
                    f"rank {self._rank} waited for step {step} in the ledger: rank 0 is gone or stands still"
                )
            waiting()
            time.sleep(POLL_S)
        return self._groups(divide(rows, self._world)[self._rank])

    def read_all(self, step: int) -> list[Group]:
        return self._groups(self._ledger.step(step) or [])

    def _groups(self, rows: Sequence[Row]) -> list[Group]:
        return [self._kept.get(r.entry) or decode_group(*self._consumer.read(r.entry, r.group)) for r in rows]


def divide(rows: Sequence[Row], ranks: int) -> list[list[Row]]:
    """Divide whole groups among ranks, balanced by cost, in the ledger's order: all ranks agree."""
    return [[rows[i] for i in share] for share in spread([r.cost for r in rows], ranks)]


def wait_while_held(client: redis.Redis, run: str, heart: Heartbeat) -> None:
    """Wait while the launcher evaluates the initial policy: generators must keep its weights."""
    while client.exists(Keys(run).hold):
        heart.update(state="ready", waiting_for="the evaluation of the initial policy")
        time.sleep(POLL_S)
