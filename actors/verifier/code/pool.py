"""The reward `code_tests`: 1.0 if a completion's program passes all tests of its row, else 0.0.

    completion ─► code blocks ─► seen before ───────────────────► verdict
                                 └─ a free runner, in a thread ─► verdict

A completion is wrong if it has no code block, or if its program fails a test, crashes or exceeds a limit.
Tests that cannot run raise an error that names the row. After a failure of the sandbox the caller retries
(`VerifierUnavailable`).
"""

import logging
from collections.abc import Sequence
from functools import partial

from hora_rl.actors.verifier.cache import VerdictCache
from hora_rl.actors.verifier.code.runner import TRIES, CannotJudge, Runner
from hora_rl.actors.verifier.sandbox.pool import SandboxPool
from hora_rl.actors.verifier.sandbox.sandbox import Limits
from hora_rl.common.config.reward import CodeTestsConfig
from hora_rl.common.data.code import RowTests, candidates
from hora_rl.common.data.layouts import tests_of
from hora_rl.common.data.rewards import Answer

_log = logging.getLogger(__name__)


class ProgramPool:
    """Judges up to `processes` programs at a time. Use from one event loop; `close()` ends the pool."""

    def __init__(self, settings: CodeTestsConfig, processes: int) -> None:
        self._settings, self._limits = settings, limits_of(settings)
        self._boxes = SandboxPool(lambda: Runner(self._limits), processes)
        self._verdicts = VerdictCache[float]()
        self.judged = 0

    async def score(self, answer: Answer) -> float:
        """The reward of one completion. Raises ValueError if the row's tests cannot run, SandboxError if this
        machine has no sandbox, and VerifierUnavailable if a sandbox failed: retry."""
        try:
            tests = tests_of(self._settings, answer.row)
        except ValueError as error:
            raise ValueError(f"reward 'code_tests': {error} ({answer.place})") from None
        blocks = candidates(answer.completion, tests)
        if not blocks:
            return 0.0
        return await self._verdicts.of((blocks, tests), partial(self._judge, blocks, tests, answer))

    def close(self) -> None:
        """End the sandboxes, including busy ones."""
        self._verdicts.cancel()
        self._boxes.close()

    async def _judge(self, blocks: Sequence[str], tests: RowTests, answer: Answer) -> float:
        try:
            verdict = await self._boxes.use(lambda runner: runner.judge(blocks, tests))
        except CannotJudge as error:
            raise ValueError(
                f"reward 'code_tests' cannot run the tests in {self._settings.column('tests')!r}: {error} "
                f"({answer.place})"
            ) from None
        self.judged += 1
        if verdict.judge_ended:
            _log.warning("code_tests: %s, counted as wrong (%s)", verdict.why, answer.place)
        return float(verdict.right)


def longest_s(settings: CodeTestsConfig, runs: int) -> float:
    """The longest that so many runs of programs take, with all tries."""
    return TRIES * runs * limits_of(settings).wall


def limits_of(settings: CodeTestsConfig) -> Limits:
    return Limits(
        seconds=settings.seconds,
        memory=settings.memory_mib << 20,
    )
