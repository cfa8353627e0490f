"""Judges one program against one row's tests, in separate sandboxes.

Pairs of stdin and stdout: one process for each pair, until one fails. Expected outputs stay in this process.
Assertions and calls: two processes, one for the program and one for the tests, connected by pipes
(`judge.py`). Of several code blocks one is chosen first (`choice.py`).
"""

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from hora_rl.actors.verifier.sandbox.sandbox import Limits, Outcome, Sandbox
from hora_rl.common.data.code import RowTests, same_output

PRELOAD = (f"{__package__}.judge", f"{__package__}.program", f"{__package__}.choice")
JUDGE, PROGRAM, CHOICE = (f"from {module} import main; main()" for module in PRELOAD)
TRIES = 2
"""Number of runs if a program exceeds its wall-clock time: the machine may be busy."""


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
    """Two sandboxes; the second is created only for assertions. Use from one thread at a time. Raises
    SandboxError if none can be created."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._box = Sandbox(PRELOAD)
        self._judge: Sandbox | None = None

    def judge(self, blocks: Sequence[str], tests: RowTests) -> Verdict:
        """Judge the program among the code blocks of a completion. Raises CannotJudge, and SandboxLost if the
        sandbox failed."""
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
            over = by_program.kind in ("time", "wall", "output")
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
