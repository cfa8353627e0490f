"""The reward `code_tests`: 1.0 if a completion's program passes all tests of its row, else 0.0; and the
reward `accuracy` for rows of `reasoning-gym`, whose task's scorer judges the answer.

    completion ─► code blocks ─► seen before ───────────────────► verdict
                                 └─ a free runner, in a thread ─► verdict

A completion is wrong if it has no code block, or if its program fails a test, crashes or exceeds a limit.
Tests that cannot run raise an error that names the row. An answer is wrong if the scorer fails or exceeds a
limit. After a failure of the sandbox the caller retries (`VerifierUnavailable`).

Pairs of stdin and stdout: one process for each pair, until one fails. Expected outputs stay in this process.
Assertions and calls: two processes, one for the program and one for the tests, connected by pipes
(`judge.py`). Of several code blocks one is chosen first (`choice.py`).
"""

import json
import logging
import math
import os
import pickle
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hora_rl.actors.verifier.sandbox.pool import SandboxPool
from hora_rl.actors.verifier.sandbox.sandbox import Limits, Outcome, Sandbox
from hora_rl.common.config.reward import CodeTestsConfig
from hora_rl.common.data.code import RowTests, candidates, same_output
from hora_rl.common.data.gym import PINNED, TASK, packages
from hora_rl.common.data.layouts import tests_of
from hora_rl.common.data.rewards import Answer
from hora_rl.common.errors import ConfigError

_log = logging.getLogger(__name__)

PRELOAD = (f"{__package__}.judge", f"{__package__}.program", f"{__package__}.choice")
JUDGE, PROGRAM, CHOICE = (f"from {module} import main; main()" for module in PRELOAD)
TRIES = 2
"""Number of runs if a program exceeds its wall-clock time: the machine may be busy."""
SCORER = f"{__package__}.task_scorer"
MEMORY = 2 << 30
"""Address space of a scorer in bytes, of which the library takes 0.2 GiB."""


class CannotJudge(ValueError):
    """The tests cannot run. The program is not at fault."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a program passed all tests, and the reason if not. `judge_ended`: the tests exceeded a limit,
    perhaps because of the program's results. That counts as wrong."""

    right: bool
    why: str = ""
    judge_ended: bool = False


class Runner:
    """Two sandboxes, one only for assertions. Use from one thread at a time. Raises SandboxError."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._box = Sandbox(PRELOAD)
        self._judge: Sandbox | None = None

    def judge(self, blocks: Sequence[str], tests: RowTests) -> Verdict:
        """Judge the program among a completion's code blocks. Raises CannotJudge, and SandboxLost."""
        program = self._program(blocks, tests)
        return self._pairs(program, tests) if tests.pairs else self._calls(program, tests)

    def close(self) -> None:
        self._box.close()
        if self._judge is not None:
            self._judge.close()

    def _program(self, blocks: Sequence[str], tests: RowTests) -> str:
        """The blocks that are the program, as one; the last one if they cannot be parsed."""
        if len(blocks) > 1:
            request = json.dumps([list(blocks), tests.entry, tests.asserts, bool(tests.pairs)]).encode()
            outcome = self._box.run(CHOICE, request, self._limits)
            if outcome.kind == "ok":
                return "\n\n".join(blocks[number] for number in json.loads(outcome.out))
        return blocks[-1]

    def _pairs(self, program: str, tests: RowTests) -> Verdict:
        for number, pair in enumerate(tests.pairs, start=1):
            stdin = pair.stdin.encode("utf-8", "surrogatepass")
            outcome = self._box.run(program, stdin, self._limits, TRIES)
            if outcome.kind != "ok":
                return Verdict(False, f"test {number}: {ended(outcome)}")
            if not same_output(pair.stdout, outcome.out.decode("utf-8", "replace")):
                return Verdict(False, f"test {number}: wrong output")
        return Verdict(True)

    def _calls(self, program: str, tests: RowTests) -> Verdict:
        for _ in range(TRIES):
            nonce = secrets.token_hex(8)
            outcome, by_program = self._both(program, tests, nonce)
            if outcome.kind != "wall":
                break
        if outcome.kind in ("time", "wall", "output") or outcome.status < 0:
            # On a busy machine both may be over the clock, one waiting for the other.
            waited = by_program.kind == "wall" and by_program.cpu_s < outcome.cpu_s
            over = by_program.kind in ("time", "wall", "output") and not waited
            why = f"the program: {ended(by_program)}" if over else f"the tests: {ended(outcome)}"
            return Verdict(False, why, judge_ended=not over)
        verdict = _parsed(outcome.out)
        if verdict is None or verdict[0] != nonce:
            raise CannotJudge(f"the process of the tests ended without a verdict: {ended(outcome)}")
        if verdict[1] == "cannot":
            raise CannotJudge(verdict[2])
        return Verdict(verdict[1] == "pass", verdict[2])

    def _both(self, program: str, tests: RowTests, nonce: str) -> tuple[Outcome, Outcome]:
        """Outcomes of the tests and of the program. The program is stopped when the tests end."""
        if self._judge is None:
            self._judge = Sandbox(PRELOAD)
        calls = [(json.loads(call.arguments), list(map(json.loads, call.results))) for call in tests.calls]
        task = {"program": program, "tests": tests.asserts, "calls": calls, "nonce": nonce}
        task |= {"entry": tests.entry, "before": tests.before}
        ask_read, ask_write = os.pipe()
        tell_read, tell_write = os.pipe()
        try:
            self._box.start(PROGRAM, b"", self._limits, [ask_read, tell_write])
            self._judge.start(JUDGE, json.dumps(task).encode(), self._limits, [ask_write, tell_read])
        finally:
            for end in (ask_read, ask_write, tell_read, tell_write):
                os.close(end)
        try:
            outcome = self._judge.wait()
        finally:
            self._box.stop()
            by_program = self._box.wait()
        return outcome, by_program


def ended(outcome: Outcome) -> str:
    """A short description of how a program ended, with the end of its stderr."""
    words = {
        "time": "over its processor time",
        "wall": "over its time by the clock",
        "output": "too much output",
    }
    last = outcome.err.decode("utf-8", "replace").strip().splitlines()[-1:]
    return ": ".join([words.get(outcome.kind, f"exit status {outcome.status}"), *last])[:200]


def _parsed(out: bytes) -> list | None:
    try:
        message = json.loads(out)
    except ValueError:
        return None
    return message if isinstance(message, list) and len(message) == 3 else None


class ProgramPool(SandboxPool[Runner]):
    """Judges up to `processes` programs at a time. Use from one event loop; `close()` ends the pool."""

    def __init__(self, settings: CodeTestsConfig, processes: int) -> None:
        limits = limits_of(settings)
        super().__init__(lambda: Runner(limits), processes)
        self._settings, self.judged = settings, 0

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
        return await self.verdicts.of((blocks, tests), partial(self._judge, blocks, tests, answer))

    async def _judge(self, blocks: Sequence[str], tests: RowTests, answer: Answer) -> float:
        try:
            verdict = await self.use(lambda runner: runner.judge(blocks, tests))
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
    return Limits(seconds=settings.seconds, memory=settings.memory_mib << 20)


class ScorerPool(SandboxPool[Sandbox]):
    """Scores up to `processes` answers at a time. Use from one event loop; `close()` ends the pool."""

    def __init__(self, processes: int) -> None:
        super().__init__(_box, processes)

    async def score(self, answer: Answer, text: str, seconds: float) -> float:
        """The score of the answer `text` in `seconds` of processor time. Raises as `ProgramPool.score`."""
        key = answer.row, text, seconds
        return await self.verdicts.of(key, partial(self._score, answer, text, seconds))

    async def _score(self, answer: Answer, text: str, seconds: float) -> float:
        entry = {name: value for name, value in answer.row.items() if name != TASK}
        task: dict[str, Any] = {**answer.row[TASK], "entry": entry, "answer": text}
        score, why = await self.use(lambda box: _ask(box, task, seconds))
        if why:
            _log.warning("the scorer of %s: %s, counted as wrong (%s)", task["task"], why, answer.place)
        return score


def _box() -> Sandbox:
    folder = packages()
    if folder is None:
        raise ConfigError(f"reasoning-gym is not installed: run `make setup`, or pip install {PINNED}")
    return Sandbox([SCORER], packages=folder)


def _ask(box: Sandbox, task: dict[str, Any], seconds: float) -> tuple[float, str]:
    """The score, and the reason if the scorer failed (then the score is 0)."""
    nonce = secrets.token_hex(8)
    message = pickle.dumps({**task, "nonce": nonce})
    limits = Limits(seconds=seconds, memory=MEMORY, output=1 << 16)
    outcome = box.run(f"from {SCORER} import main; main()", message, limits, TRIES)
    try:
        reply, score = json.loads(outcome.out) if outcome.kind == "ok" else ("", 0.0)
    except (TypeError, ValueError):
        reply, score = "", 0.0
    if reply != nonce or not isinstance(score, float) or not math.isfinite(score):
        return 0.0, ended(outcome)
    return min(1.0, max(0.0, score)), ""  # a sum of parts may round to slightly more than 1
