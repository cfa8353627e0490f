"""Scores completions: accuracy in worker processes with a time limit, the rest at once.

    score_batch ─► format reward, answer tag; programs and their tests (`code/pool.py`)
                   ├─ plain text decides ──────────────► verdict
                   ├─ seen (gold, answer) before ──────► verdict
                   ├─ math-verify in a worker process ─► verdict, or killed: wrong
                   └─ a task's own scorer (`gym/pool.py`)

A hostile answer costs its worker, never the replica: exceeding time or memory, or crashing the interpreter,
is one wrong answer. Time is the worker's own processor time, which a busy machine does not use up, so such an
answer is not tried again. Our own failures are not wrong answers: when no worker can be started, or the pool
breaks, `score_batch` raises `VerifierUnavailable`, scores nothing, and the caller retries.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pebble import ProcessExpired, ProcessPool

from hora_rl.actors.verifier.code.pool import ProgramPool
from hora_rl.actors.verifier.errors import VerifierUnavailable
from hora_rl.actors.verifier.gym.pool import ScorerPool
from hora_rl.actors.verifier.own_rewards import OwnRewards
from hora_rl.actors.verifier.remembered import Remembered
from hora_rl.common import answers, equality
from hora_rl.common.config import Reward
from hora_rl.common.data import gym
from hora_rl.common.data.user_rewards import Answer
from hora_rl.common.errors import ConfigError
from hora_rl.common.processes import die_with_parent, processors
from hora_rl.common.user_code import load_function

MEMORY_BYTES = 2**30
"""Address space a worker may use in addition to its start-up: math-verify needs tens of MiB for real
answers."""

TASKS_PER_WORKER = 5000
"""A worker is replaced after this many answers, so that sympy's caches cannot fill its memory."""

CACHE_SIZE = 100_000
"""Verdicts kept. Groups repeat their answers: most answers of a trained model are the same few."""

MOST_PROCESSES = 8
"""Most workers of a replica without a configured number; it has one per processor."""

STALLED = 10.0
"""A call that takes this many times its processor time by the clock is delayed by the machine, not by the
answer."""

START_LIMIT_S = 60.0
"""A call that no worker took this long after the limit of an answer counts as our failure."""

_log = logging.getLogger(__name__)

Item = Answer | tuple[str, str, str]
"""An answer, or its (problem, completion, gold) alone."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceRewards:
    """What judges the answers of sources with the same rewards."""

    reward: Reward
    own: OwnRewards
    programs: ProgramPool | None

    @property
    def in_workers(self) -> tuple[str, ...]:
        """A user's functions that worker processes call."""
        extract = () if self.reward.answer in answers.ANSWERS else (self.reward.answer,)
        return (*self.own.in_workers, *extract)

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
        self._source_rewards: list[SourceRewards] = []
        self._by_source = {name: self._rewards_of(r) for name, r in (sources or {"": reward}).items()}
        self._functions = tuple(
            dict.fromkeys(name for rewards in self._source_rewards for name in rewards.in_workers)
        )
        self._scorers = ScorerPool(processes)
        self._verdicts = Remembered[tuple[str, str, float], bool](CACHE_SIZE)
        self._waiting = 0
        self._counts = {"scored": 0, "plain": 0, "cached": 0, "verified": 0, "killed": 0, "rebuilt": 0}
        # Only a few calls are in the pool at a time. The others are not lost with it, and start on the next
        # pool.
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
        for result in results:  # all have ended, so nothing of this batch still runs when it raises
            if isinstance(result, BaseException):
                raise result
        self._counts["scored"] += len(items)
        return [result for result in results if not isinstance(result, BaseException)]

    async def score_group(self, items: Sequence[Answer]) -> list[dict[str, float]]:
        """The rewards of one whole group by comparison of its completions. Raises as `score_batch` does."""
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
        return {name: why for rewards in self._source_rewards for name, why in rewards.own.away.items()}

    def stats(self) -> dict[str, int]:
        """Counters since the start: completions scored, and how their answers were decided."""
        return {
            **self._counts,
            "programs": sum(c.programs.judged for c in self._source_rewards if c.programs),
        }

    def close(self) -> None:
        """End the worker processes, also busy ones. Calls that wait for a verdict are cancelled."""
        self._verdicts.cancel()
        for rewards in self._source_rewards:
            rewards.close()
        self._scorers.close()
        self._pool.stop()
        self._pool.join()

    async def _score(self, item: Item) -> dict[str, float]:
        answer = Answer(*item)
        rewards = self._by_source[answer.source]
        reward, scored = rewards.reward, {}
        if "format" in reward.names:
            scored["format"] = answers.format_reward(answer.completion, reward.answer)
        if "accuracy" in reward.names:
            scored["accuracy"] = await self._accuracy(rewards, answer)
        if rewards.programs is not None:
            scored["code_tests"] = await rewards.programs.score(answer)
        return scored | await rewards.own.score(answer)

    def _rewards_of(self, reward: Reward) -> SourceRewards:
        """What judges by `reward`: sources with the same rewards share it."""
        for rewards in self._source_rewards:
            if rewards.reward == reward:
                return rewards
        codes = "code_tests" in reward.names
        programs = ProgramPool(reward.code_tests, self._processes) if codes else None
        answers.load_extract(reward.answer)
        self._source_rewards.append(SourceRewards(reward, OwnRewards(reward, self._run), programs))
        return self._source_rewards[-1]

    async def _accuracy(self, rewards: SourceRewards, judged: Answer) -> float:
        own, gold, seconds = gym.TASK in judged.row, judged.gold, rewards.reward.time_limit_s
        if not own and not isinstance(gold, str):
            raise ValueError(f"reward 'accuracy': the gold answer is no text: {gold!r:.60} ({judged.place})")
        answer = await self._answer(rewards, judged.completion)
        most = rewards.reward.max_answer_chars
        if answer is None or (len(answer) > most if own else not equality.bounded(answer, most)):
            self._counts["plain"] += 1
            return 0.0
        if own:
            return await self._scorers.score(judged, answer, seconds)
        verdict = equality.quick_verdict(gold, answer)
        if verdict is not None:
            self._counts["plain"] += 1
        else:
            verdict = await self._remembered(gold, answer, seconds)
        return 1.0 if verdict else 0.0

    async def _answer(self, rewards: SourceRewards, completion: str) -> str | None:
        name = rewards.reward.answer
        if (extract := answers.ANSWERS.get(name)) is not None:
            return extract(completion)
        return await rewards.own.call("reward.answer", answers.user_answer, name, completion)

    async def _remembered(self, gold: str, answer: str, seconds: float) -> bool:
        key = (equality.bare(gold), equality.bare(answer), seconds)
        self._counts["cached"] += key in self._verdicts
        return await self._verdicts.of(key, partial(self._verify, *key))

    async def _verify(self, gold: str, answer: str, seconds: float) -> bool:
        try:
            verdict = await self._equal(gold, answer, seconds)
        except ProcessExpired:
            # Try once more, because another process may have taken the memory. An answer that ends two
            # workers is wrong.
            try:
                verdict = await self._equal(gold, answer, seconds)
            except ProcessExpired:
                verdict = self._killed(gold, "ended its process twice")
        self._counts["verified"] += 1
        return verdict

    async def _equal(self, gold: str, answer: str, seconds: float) -> bool:
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
        """One call in a worker. TimeoutError: killed at the limit. ProcessExpired: the worker died."""
        async with self._slots:
            pool = self._pool
            try:
                future = asyncio.wrap_future(pool.schedule(function, args=args, timeout=limit_s))
            except RuntimeError as error:
                raise self._broken(pool, str(error)) from error
            # Two calls per worker: this one may wait for the other.
            done, _ = await asyncio.wait((future,), timeout=2 * limit_s + START_LIMIT_S)
            if not done:
                raise self._broken(pool, f"no worker process started within {START_LIMIT_S:g} s")
            try:
                return future.result()
            except BrokenProcessPool as error:
                raise self._broken(pool, str(error)) from error

    def _broken(self, pool: ProcessPool, why: str) -> VerifierUnavailable:
        """Replace a failed pool, and return the error to raise."""
        if pool is self._pool:  # the first of several callers that noticed it
            self._counts["rebuilt"] += 1
            pool.stop()
            pool.join()
            self._pool = self._start()
        return VerifierUnavailable(f"the verifier's process pool broke ({why}); a new one was started")

    def _start(self) -> ProcessPool:
        # Not fork: the parent has threads (Ray, this pool's own). Not a fork server: a busy worker would keep
        # it alive after its replica was killed.
        context = multiprocessing.get_context("spawn")
        return ProcessPool(
            max_workers=self._processes,
            max_tasks=TASKS_PER_WORKER,
            initializer=_initialize,
            initargs=(self._memory_bytes, self._functions),
            context=context,
        )


def default_processes() -> int:
    """Workers without a configured number: as many as this machine can run at once."""
    return max(1, min(MOST_PROCESSES, processors()))


def _judge(seconds: float, gold: str, answer: str) -> bool:
    """In a worker: `math_equal`; the kernel ends the process after that much processor time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF's default action, which C code cannot delay
    try:
        return equality.math_equal(gold, answer)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _initialize(memory_bytes: int, functions: Sequence[str]) -> None:
    """In a new worker: die with the replica, die at once on a signal, import before the clock runs and memory
    is bounded. A user's module may import torch, which takes seconds and gigabytes of address space."""
    # The signal comes when the thread that started this worker ends: the event loop's, or the pool manager's.
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler would run only after 9**9**9 ends
    equality.math_equal(r"\frac{1}{2}", "0.5")
    for name in functions:
        with suppress(ConfigError):  # its first call raises it again, with the row
            load_function("reward", name)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
