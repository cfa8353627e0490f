"""Scores completions: accuracy in worker processes with a time limit, cheap rewards directly.

    score_batch ─► format reward, answer tag; programs and their tests (`code/runner.py`)
                   ├─ plain text decides ──────────────► verdict
                   ├─ (gold, answer) seen before ──────► verdict
                   ├─ math-verify in a worker process ─► verdict, or killed: wrong
                   └─ a task's scorer (`code/runner.py`)

A hostile answer can kill its worker, never the replica. Exceeding time or memory, or crashing the
interpreter, is one wrong answer. Time is the worker's processor time, which does not depend on load, so such
an answer is not retried. A failure of the verifier is not a wrong answer: if no worker starts or the pool
breaks, `score_batch` raises `VerifierUnavailable`, scores nothing, and the caller retries.
"""

import asyncio
import logging
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial

from pebble import ProcessExpired, ProcessPool

from hora_rl.actors.verifier import answers, equality
from hora_rl.actors.verifier.code.runner import ScorerPool
from hora_rl.actors.verifier.sandbox.pool import VerdictCache
from hora_rl.actors.verifier.user_rewards import UserRewards
from hora_rl.common.config import RewardConfig
from hora_rl.common.config.reward import MAX_ANSWER_CHARS
from hora_rl.common.data import gym
from hora_rl.common.data.rewards import Answer
from hora_rl.common.errors import ConfigError, VerifierUnavailable
from hora_rl.common.processes import die_with_parent, processors
from hora_rl.common.user_code import load_function

MEMORY_BYTES = 2**30
"""Address space of a worker in bytes, beyond its start-up. Real answers need tens of MiB in math-verify."""

TASKS_PER_WORKER = 5000
"""A worker is replaced after this many answers, so that sympy's caches cannot fill its memory."""

MOST_PROCESSES = 8
"""Maximum workers of a replica if no number is configured. The default is one per processor."""

STALLED = 10.0
"""If a call takes this many times its processor time limit on the clock, the machine is overloaded."""

START_LIMIT_S = 60.0
"""Seconds beyond an answer's limit after which a call without a worker counts as a failure of the pool."""

_log = logging.getLogger(__name__)

Item = Answer | tuple[str, str, str]
"""An answer, or only (problem, completion, gold)."""


class VerifierPool:
    """Computes the rewards of batches in worker processes. `sources` gives the rewards of each data source if
    a run has several. Use from one event loop; `close()` ends the pool."""

    def __init__(
        self,
        reward: RewardConfig,
        processes: int = 1,
        memory_bytes: int = MEMORY_BYTES,
        sources: Mapping[str, RewardConfig] | None = None,
    ) -> None:
        self._processes = processes
        self._memory_bytes = memory_bytes
        self._rewards: list[UserRewards] = []
        self._by_source = {name: self._rewards_of(r) for name, r in (sources or {"": reward}).items()}
        self._functions = tuple(
            dict.fromkeys(name for rewards in self._rewards for name in rewards.in_workers)
        )
        self._scorers = ScorerPool(processes)
        self._verdicts = VerdictCache()
        self.waiting = 0  # completions in unfinished batches
        self._counts = {"scored": 0, "plain": 0, "cached": 0, "verified": 0, "killed": 0, "rebuilt": 0}
        # Only a few calls are in the pool at a time. If it breaks, the rest start on the next pool.
        self._slots = asyncio.Semaphore(2 * processes)
        self._pool = self._start()

    async def score_batch(self, items: Sequence[Item]) -> list[dict[str, float]]:
        """The rewards in use (`Reward.names`), by name, of each (problem, completion, gold). Raises
        VerifierUnavailable if the pool fails, and ValueError if a user's reward fails."""
        self.waiting += len(items)
        try:
            results = await asyncio.gather(*(self._score(item) for item in items), return_exceptions=True)
        finally:
            self.waiting -= len(items)
        for result in results:  # raise only after all calls of this batch have ended
            if isinstance(result, BaseException):
                raise result
        self._counts["scored"] += len(items)
        return [result for result in results if not isinstance(result, BaseException)]

    async def score_group(self, items: Sequence[Answer]) -> list[dict[str, float]]:
        """Group rewards of each completion of one group. Raises as `score_batch` does."""
        self.waiting += len(items)
        try:
            return await self._by_source[items[0].source].score_group(list(items))
        finally:
            self.waiting -= len(items)

    @property
    def away(self) -> dict[str, str]:
        """The reason of each unavailable reward, by name."""
        return {name: why for rewards in self._rewards for name, why in rewards.away.items()}

    def stats(self) -> dict[str, int]:
        """Counters since the start: scored completions, and how answers were decided."""
        return {**self._counts, "programs": sum(r.programs.judged for r in self._rewards if r.programs)}

    def close(self) -> None:
        self._verdicts.cancel()
        for rewards in self._rewards:
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
        return scored | await rewards.score(answer)

    def _rewards_of(self, reward: RewardConfig) -> UserRewards:
        """The judge for `reward`, shared by all sources with the same rewards."""
        for rewards in self._rewards:
            if rewards.reward == reward:
                return rewards
        self._rewards.append(UserRewards(reward, self._run, self._processes))
        return self._rewards[-1]

    async def _accuracy(self, rewards: UserRewards, judged: Answer) -> float:
        has_scorer, gold, seconds = gym.TASK in judged.row, judged.gold, rewards.reward.time_limit_s
        if not has_scorer and not isinstance(gold, str):
            raise ValueError(
                f"reward 'accuracy': the gold answer is not a string: {gold!r:.60} ({judged.place})"
            )
        answer = await rewards.answer_in(judged.completion)
        most = MAX_ANSWER_CHARS
        if answer is None or (len(answer) > most if has_scorer else not equality.bounded(answer, most)):
            self._counts["plain"] += 1
            return 0.0
        if has_scorer:
            return await self._scorers.score(judged, answer, seconds)
        verdict = equality.equal(gold, answer)
        if verdict is not None:
            self._counts["plain"] += 1
        else:
            key = (equality.bare(gold), equality.bare(answer), seconds)
            self._counts["cached"] += key in self._verdicts
            verdict = bool(await self._verdicts.of(key, partial(self._verify, *key)))
        return float(verdict)

    async def _verify(self, gold: str, answer: str, seconds: float) -> bool:
        self._counts["verified"] += 1
        for _ in range(2):  # twice, because another process may have taken the memory
            try:
                return bool(await self._run(_judge, seconds, gold, answer, limit_s=STALLED * seconds))
            except (MemoryError, RecursionError) as error:
                return self._killed(gold, f"ended by {type(error).__name__}")
            except ProcessExpired as error:
                if error.exitcode == -signal.SIGPROF:
                    return self._killed(gold, f"over its {seconds:g} s of processor time")
            except TimeoutError as error:
                raise VerifierUnavailable(
                    f"an answer did not get {seconds:g} s of processor time within {STALLED * seconds:g} s: "
                    "the machine is overloaded; lower verifier.processes"
                ) from error
        return self._killed(gold, "ended its process twice")

    def _killed(self, gold: str, why: str) -> bool:
        self._counts["killed"] += 1
        _log.warning("an answer to a problem with the gold answer %.40r was %s: counted as wrong", gold, why)
        return False

    async def _run(self, function: Callable[..., object], *args: object, limit_s: float) -> object:
        """One call in a worker. Raises TimeoutError at the limit, ProcessExpired, or VerifierUnavailable."""
        async with self._slots:
            pool = self._pool
            try:
                future = asyncio.wrap_future(pool.schedule(function, args=args, timeout=limit_s))
            except RuntimeError as error:
                raise self._broken(pool, str(error)) from error
            # Each worker may have two calls: this one may have to wait for the other.
            done, _ = await asyncio.wait((future,), timeout=2 * limit_s + START_LIMIT_S)
            if not done:
                raise self._broken(pool, f"no worker process started within {START_LIMIT_S:g} s")
            try:
                return future.result()
            except BrokenProcessPool as error:
                raise self._broken(pool, str(error)) from error

    def _broken(self, pool: ProcessPool, why: str) -> VerifierUnavailable:
        if pool is self._pool:  # no other caller has replaced it
            self._counts["rebuilt"] += 1
            pool.stop()
            pool.join()
            self._pool = self._start()
        return VerifierUnavailable(f"the verifier's process pool broke ({why}); a new one was started")

    def _start(self) -> ProcessPool:
        # Not fork: the parent has threads. Not a fork server: a busy worker would keep it alive after its
        # replica was killed.
        context = multiprocessing.get_context("spawn")
        return ProcessPool(
            max_workers=self._processes,
            max_tasks=TASKS_PER_WORKER,
            initializer=_initialize,
            initargs=(os.getpid(), self._memory_bytes, self._functions),
            context=context,
        )


def default_processes() -> int:
    """The default number of workers: as many as this machine runs in parallel."""
    return max(1, min(MOST_PROCESSES, processors()))


def _judge(seconds: float, gold: str, answer: str) -> bool:
    """The verdict by mathematics, in a worker, which the kernel ends after `seconds` of processor time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF's default action, which C code cannot delay
    try:
        return bool(equality.equal(gold, answer, maths=True))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _initialize(replica: int, memory_bytes: int, functions: Sequence[str]) -> None:
    """In a new worker: die with the replica, die immediately on SIGTERM, then import, then limit the memory.
    A user's module may import torch, which takes seconds and gigabytes of address space."""
    # The kernel sends the signal when the thread that started this worker ends.
    die_with_parent(signal.SIGKILL, replica)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler would run only after 9**9**9 ends
    equality.equal(r"\frac{1}{2}", "0.5", maths=True)
    for name in functions:
        with suppress(ConfigError):  # the first call raises the error again, with the row
            load_function("reward", name)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
