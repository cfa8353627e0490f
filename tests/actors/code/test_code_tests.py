"""The reward `code_tests` in the verifier: right, wrong, remembered, and errors that name their row."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from hora_rl.actors.coordinator.calls import verifier_calls
from hora_rl.actors.verifier.code import pool as programs
from hora_rl.actors.verifier.code.pool import ProgramPool
from hora_rl.actors.verifier.errors import VerifierUnavailable
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.actors.verifier.sandbox.sandbox import SandboxError, SandboxLost
from hora_rl.common.config import Config
from hora_rl.common.config.reward import CodeTests, Reward
from hora_rl.common.data.code import code_block
from hora_rl.common.data.user_rewards import Answer
from hora_rl.common.types import Completion, Prompt, VersionSpan
from tests.support.attacks import ATTACKS, PRELUDE

PLUS_ONE = [{"input": "1\n", "output": "2\n"}, {"input": "41\n", "output": "42\n"}]
RIGHT = "print(int(input()) + 1)"
WRONG = "print(2)"


def answer(program: str | None, tests: object = PLUS_ONE, **row: object) -> Answer:
    text = "no block" if program is None else f"<think>so</think>{code_block(program)}"
    return Answer("add one", text, None, {"tests": tests, **row}, 7)  # type: ignore[arg-type]


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[ProgramPool]:
    pool = ProgramPool(CodeTests(**settings), 2)
    try:
        yield pool
    finally:
        pool.close()


def scores(*answers: Answer, **settings: Any) -> list[float]:
    async def run() -> list[float]:
        async with running(**settings) as pool:
            return list(await asyncio.gather(*map(pool.score, answers)))

    return asyncio.run(run())


def test_a_program_is_right_where_it_passes_every_test() -> None:
    crash, chatty = "int('x')", RIGHT + "\nprint('done')"
    given = [answer(p) for p in (RIGHT, WRONG, crash, chatty, None, "x" * 100_001, "\udc80")]
    assert scores(*given) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["pairs", "assertions"])
def test_every_hostile_program_is_a_wrong_answer(kind: str) -> None:
    """What each of them cannot do is tested in `tests/actors/sandbox/test_attacks.py`."""
    tests, right = (PLUS_ONE, RIGHT) if kind == "pairs" else (["assert f(1) == 2"], "def f(x): return x + 1")

    async def run() -> None:
        words = {"VICTIM": str(os.getpid()), "PORT": "9", "FOLDER": "/tmp"}
        async with running() as pool:
            for name, source in ATTACKS.items():
                for word, value in words.items():
                    source = source.replace(word, value)
                assert await pool.score(answer(PRELUDE + source, tests)) == 0.0, name
            assert await pool.score(answer(right, tests)) == 1.0

    asyncio.run(run())


def test_assertions_and_entry_points_are_read_from_the_row() -> None:
    check = "def check(candidate):\n    assert candidate(1) == 2"
    plus, minus = "def f(x): return x + 1", "def f(x): return x - 1"
    rows = [answer(plus, ["assert f(1) == 2"]), answer(minus, ["assert f(1) == 2"])]
    rows += [answer(plus, check, entry_point="f"), answer(minus, check, entry_point="f")]
    assert scores(*rows) == [1.0, 0.0, 1.0, 0.0]


def test_the_same_program_is_judged_once_for_the_same_tests() -> None:
    async def run() -> None:
        async with running() as pool:
            assert await asyncio.gather(*[pool.score(answer(RIGHT)) for _ in range(12)]) == [1.0] * 12
            assert await pool.score(answer(RIGHT)) == 1.0
            assert pool.judged == 1
            assert await pool.score(answer(RIGHT, PLUS_ONE[:1])) == 1.0
            assert pool.judged == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ([], "reward 'code_tests': 'tests' holds no tests"),
        (["assert f(print) == 1"], "cannot run the tests in 'tests': a builtin_function_or_method"),
        (["assert 1 == 1 and str(2)"], "the tests call nothing that the program defines"),
    ],
)
def test_tests_that_cannot_be_run_are_an_error_with_the_row_s_name(tests: object, words: str) -> None:
    with pytest.raises(ValueError, match="code_tests") as error:
        scores(answer("def f(x): return 1", tests))
    assert words in str(error.value)
    assert "(row 7, problem 'add one')" in str(error.value)


def test_limits_are_the_configuration_s() -> None:
    greedy = "x = bytearray(200 << 20)\n" + RIGHT
    assert scores(answer(greedy), memory_mib=1024) == [1.0]
    assert scores(answer(greedy), memory_mib=128) == [0.0]
    loud = "import sys\nprint('x' * 5000, file=sys.stderr)\n" + RIGHT
    assert scores(answer(loud)) == [1.0]
    assert scores(answer(loud), output_bytes=4096) == [0.0]


def test_a_sandbox_that_is_lost_is_asked_again_and_another_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(programs.Runner):
        """Its first program takes the sandbox with it."""

        made = 0

        def judge(self, program: str, tests: Any) -> Any:
            Lost.made += 1
            if Lost.made == 1:
                self._box.close()
            return super().judge(program, tests)

    monkeypatch.setattr(programs, "Runner", Lost)

    async def run() -> None:
        async with running() as pool:
            with pytest.raises(VerifierUnavailable, match="was not judged"):
                await pool.score(answer(RIGHT))
            assert await pool.score(answer(RIGHT)) == 1.0

    asyncio.run(run())
    assert issubclass(SandboxLost, RuntimeError)


def test_a_machine_without_a_sandbox_is_an_error_and_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(limits: object) -> None:
        raise SandboxError("programs cannot be run safely: seccomp does not hold (EPERM)")

    monkeypatch.setattr(programs, "Runner", none)
    with pytest.raises(SandboxError, match="seccomp does not hold"):
        scores(answer(RIGHT))


def test_the_verifier_returns_it_beside_the_others_and_closes_its_sandboxes() -> None:
    async def run() -> None:
        reward = Reward(weights={"format": 0.5, "code_tests": 0.5}, success="code_tests", answer="final")
        pool = VerifierPool(reward)
        try:
            scored = await pool.score_batch([answer(RIGHT), answer(WRONG)])
            assert scored == [{"format": 1.0, "code_tests": 1.0}, {"format": 1.0, "code_tests": 0.0}]
            assert [reward.succeeded(s) for s in scored] == [True, False]
            assert pool.stats()["programs"] == 2
        finally:
            pool.close()

    asyncio.run(run())


class Handle:
    def __init__(self) -> None:
        self.asked: list[Answer] = []

    def options(self, **_: str) -> Any:
        return self

    async def remote(self, items: list[Answer]) -> list[dict[str, float]]:
        self.asked = items
        return [{"code_tests": 1.0} for _ in items]


def test_the_row_and_a_gold_answer_of_any_json_value_travel_to_the_verifier() -> None:
    row, gold = {"tests": PLUS_ONE}, {"cases": [1, [None, True]]}
    raw = {"model": {"path": "m"}, "data": {"path": "d"}, "reward": {"weights": {"code_tests": 1.0}}}
    handle, config = Handle(), Config.model_validate(raw)
    tokens = np.array([1, 2], np.int32)
    prompt = Prompt(3, "add one", gold, tokens, row=row)
    done = Completion("x", tokens, np.zeros(2, np.float32), "stop", (VersionSpan(0, 0, 2),))
    scored = asyncio.run(verifier_calls(handle, config)(prompt, [done]))  # type: ignore[arg-type]
    assert [s.success for s in scored] == [True]
    assert (handle.asked[0].gold, handle.asked[0].row) == (gold, row)
