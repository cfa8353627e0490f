"""Scores completions: accuracy in worker processes that are killed at a time limit, the rest at once.

    score_batch ─► format reward, answer tag; programs and their tests (`code/pool.py`)
                   ├─ plain text decides ──────────────► verdict
                   ├─ seen (gold, answer) before ──────► verdict
                   └─ math-verify in a worker process ─► verdict, or killed: wrong

A hostile answer costs its worker, never the replica: over time, over memory or a crash of the interpreter is
one wrong answer. Time is the worker's own processor time, which a busy machine does not use up: an answer
that is over it is to blame and is not tried again. A fault of ours is no wrong answer: when no worker can be
started, or the pool breaks, `score_batch` raises `VerifierUnavailable`, nothing is scored and the caller asks
again.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import resource
import signal
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from pebble import ProcessExpired, ProcessPool

from actors.verifier.code.pool import ProgramPool
from actors.verifier.errors import VerifierUnavailable
from actors.verifier.own_rewards import OwnRewards
from common import answers, equality
from common.config import Reward
from common.processes import die_with_parent
from common.user_rewards import Answer

MEMORY_BYTES = 2**30
"""Address space a worker may add to what it has after start-up: math-verify needs tens of MiB for real
answers."""

TASKS_PER_WORKER = 5000
"""A worker is replaced after so many answers, so that sympy's caches cannot fill its memory limit."""

CACHE_SIZE = 100_000
"""Verdicts remembered. Groups repeat their answers: most of a trained model's are the same few."""

MOST_PROCESSES = 8
"""Workers of one replica where the configuration names no number: one for each processor, at most so many."""

STALLED = 10.0
"""A call that takes so many times its processor time by the clock hangs on the machine, not on the answer."""

START_LIMIT_S = 60.0
"""Time beyond the limit of an answer after which a call that no worker took counts as a fault of ours."""

_log = logging.getLogger(__name__)

Item = Answer | tuple[str, str, str]
"""An answer, or its (problem, completion, gold) alone."""


@dataclass(frozen=True, slots=True, eq=False)
class _Court:
    """What judges the answers of sources with the same rewards."""

    reward: Reward
    own: OwnRewards
    programs: ProgramPool | None

    def close(self) -> None:
        self.own.close()
        if self.programs is not None:
            self.programs.close()


class VerifierPool:
    """Worker processes, their verdicts, and the rewards of a batch. `sources` are the rewards of each data
    source where a run has several. Use from one event loop; `close()` ends it."""

    def __init__(
        self,
        reward: Reward,
        processes: int = 1,
        memory_bytes: int = MEMORY_BYTES,
        sources: Mapping[str, Reward] | None = None,
    ) -> None:
        self._reward = reward
        self._processes = processes
        self._memory_bytes = memory_bytes
        self._courts: list[_Court] = []
        self._by_source = {name: self._court(r) for name, r in (sources or {"": reward}).items()}
        self._verdicts: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._pending: dict[tuple[str, str], asyncio.Task[bool]] = {}
        self._waiting = 0
        self._counts = {"scored": 0, "plain": 0, "cached": 0, "verified": 0, "killed": 0, "rebuilt": 0}
        # Few calls are in the pool at a time: what waits here is lost with no pool, and starts on the next.
        self._slots = asyncio.Semaphore(2 * processes)
        self._pool = self._start()

    async def score_batch(self, items: Sequence[Item]) -> list[dict[str, float]]:
        """Rewards by name of each (problem, completion, gold): those in use (`Reward.names`).

        Raises VerifierUnavailable when the pool failed and ValueError when a user's reward did.
        """
        self._waiting += len(items)
        try:
            results = await asyncio.gather(*(self._score(item) for item in items), return_exceptions=True)
        finally:
            self._waiting -= len(items)
        for result in results:  # all have ended: nothing of this batch is still running when it raises
            if isinstance(result, BaseException):
                raise result
        self._counts["scored"] += len(items)
        return [result for result in results if not isinstance(result, BaseException)]

    async def score_group(self, items: Sequence[Answer]) -> list[dict[str, float]]:
        """The rewards that the completions of one whole group get among each other. Raises as `score_batch`
        does."""
        self._waiting += len(items)
        try:
            return await self._by_source[items[0].source].own.score_group(items)
        finally:
            self._waiting -= len(items)

    @property
    def waiting(self) -> int:
        """Completions of batches that are not wholly scored yet."""
        return self._waiting

    @property
    def away(self) -> dict[str, str]:
        """Rewards that are unavailable, with the reason of each."""
        return {name: why for court in self._courts for name, why in court.own.away.items()}

    def stats(self) -> dict[str, int]:
        """Counters since the start: completions scored, and how their answers were decided."""
        return {**self._counts, "programs": sum(c.programs.judged for c in self._courts if c.programs)}

    def close(self) -> None:
        """End the worker processes, also busy ones. Whoever still waits for a verdict is cancelled."""
        for task in self._pending.values():
            task.cancel()
        for court in self._courts:
            court.close()
        self._pool.stop()
        self._pool.join()

    async def _score(self, item: Item) -> dict[str, float]:
        answer = Answer(*item)
        completion, gold, court = answer.completion, answer.gold, self._by_source[answer.source]
        reward, scored = court.reward, {}
        if "format" in reward.names:
            scored["format"] = answers.format_reward(completion, reward.answer)
        if "accuracy" in reward.names:
            if not isinstance(gold, str):
                raise ValueError(
                    f"reward 'accuracy': the gold answer is no text: {gold!r:.60} ({answer.place})"
                )
            scored["accuracy"] = await self._accuracy(court, completion, gold)
        if court.programs is not None:
            scored["code_tests"] = await court.programs.score(answer)
        return scored | await court.own.score(answer)

    def _court(self, reward: Reward) -> _Court:
        """What judges by `reward`: sources with the same rewards share it."""
        for court in self._courts:
            if court.reward == reward:
                return court
        codes = "code_tests" in reward.names
        programs = ProgramPool(reward.code_tests, self._processes) if codes else None
        answers.load_extract(reward.answer)
        self._courts.append(_Court(reward, OwnRewards(reward, self._run), programs))
        return self._courts[-1]

    async def _accuracy(self, court: _Court, completion: str, gold: str) -> float:
        answer = await self._answer(court, completion)
        if answer is None or not equality.bounded(answer, court.reward.max_answer_chars):
            self._counts["plain"] += 1
            return 0.0
        verdict = equality.quick_verdict(gold, answer)
        if verdict is not None:
            self._counts["plain"] += 1
        else:
            verdict = await self._remembered(gold, answer)
        return 1.0 if verdict else 0.0

    async def _answer(self, court: _Court, completion: str) -> str | None:
        name = court.reward.answer
        if (extract := answers.ANSWERS.get(name)) is not None:
            return extract(completion)
        return await court.own.call("reward.answer", answers.user_answer, name, completion)

    async def _remembered(self, gold: str, answer: str) -> bool:
        key = (equality.bare(gold), equality.bare(answer))
        if key in self._verdicts:
            self._counts["cached"] += 1
            self._verdicts.move_to_end(key)
            return self._verdicts[key]
        if key not in self._pending:
            task = asyncio.create_task(self._verify(*key))
            self._pending[key] = task
            task.add_done_callback(lambda _: self._pending.pop(key, None))
        else:
            self._counts["cached"] += 1
        # Shielded: a caller that gives up must not cancel the verdict that others wait for.
        return await asyncio.shield(self._pending[key])

    async def _verify(self, gold: str, answer: str) -> bool:
        try:
            verdict = await self._equal(gold, answer)
        except ProcessExpired:
            # Once more: another process may have taken the memory. An answer that costs two workers is to
            # blame.
            try:
                verdict = await self._equal(gold, answer)
            except ProcessExpired:
                verdict = self._killed(gold, "ended its process twice")
        self._counts["verified"] += 1
        self._verdicts[gold, answer] = verdict
        if len(self._verdicts) > CACHE_SIZE:
            self._verdicts.popitem(last=False)
        return verdict

    async def _equal(self, gold: str, answer: str) -> bool:
        seconds = self._reward.time_limit_s
        try:
            return bool(await self._run(_judge, seconds, gold, answer, limit_s=STALLED * seconds))
        except (MemoryError, RecursionError) as error:
            return self._killed(gold, f"ended by {type(error).__name__}")
        except ProcessExpired as error:
            if error.exitcode != -signal.SIGPROF:
                raise
            return self._killed(gold, f"over its {seconds:g} s of processor time")
        except TimeoutError as error:
            raise VerifierUnavailable(
                f"an answer did not get {seconds:g} s of processor time within {STALLED * seconds:g} s: the "
                "machine has too little for verifier.processes"
            ) from error

    def _killed(self, gold: str, why: str) -> bool:
        self._counts["killed"] += 1
        _log.warning("an answer to a problem with the gold answer %.40r was %s: counted as wrong", gold, why)
        return False

    async def _run(self, function: Callable[..., Any], *args: object, limit_s: float) -> Any:
        """One call in a worker. TimeoutError: killed at the limit. ProcessExpired: the worker died of it."""
        async with self._slots:
            pool = self._pool
            try:
                future = asyncio.wrap_future(pool.schedule(function, args=args, timeout=limit_s))
            except RuntimeError as error:
                raise self._broken(pool, str(error)) from error
            # Two calls to a worker: this one may wait for the other.
            done, _ = await asyncio.wait((future,), timeout=2 * limit_s + START_LIMIT_S)
            if not done:
                raise self._broken(pool, f"no worker process started within {START_LIMIT_S:g} s")
            try:
                return future.result()
            except BrokenProcessPool as error:
                raise self._broken(pool, str(error)) from error

    def _broken(self, pool: ProcessPool, why: str) -> VerifierUnavailable:
        """Put a new pool in the place of one that failed, and return the error to raise."""
        if pool is self._pool:  # the first of several callers that saw it break
            self._counts["rebuilt"] += 1
            pool.stop()
            pool.join()
            self._pool = self._start()
        return VerifierUnavailable(f"the verifier's process pool broke ({why}); a new one was started")

    def _start(self) -> ProcessPool:
        # Not fork: the parent has threads (Ray, this pool's own). Not a fork server: a busy worker would keep
        # it, and so itself, alive after a killed replica.
        context = multiprocessing.get_context("spawn")
        return ProcessPool(
            max_workers=self._processes,
            max_tasks=TASKS_PER_WORKER,
            initializer=_initialize,
            initargs=(self._memory_bytes,),
            context=context,
        )


def default_processes() -> int:
    """Workers where the configuration names no number: those that this machine can run at once."""
    return max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0))))


def _judge(seconds: float, gold: str, answer: str) -> bool:
    """In a worker: `math_equal`, ended by the kernel with this process after so much processor time."""
    signal.setitimer(
        signal.ITIMER_PROF, seconds
    )  # SIGPROF is left at its default, which no C code can put off
    try:
        return equality.math_equal(gold, answer)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _initialize(memory_bytes: int) -> None:
    """In a new worker: die with the replica, die at once when told to, import before the clock runs, bound
    memory."""
    # The signal comes when the thread that started this worker ends: the event loop's, or the pool's own
    # manager.
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler would wait for the end of 9**9**9
    equality.math_equal(r"\frac{1}{2}", "0.5")
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
