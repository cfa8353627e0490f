"""The reward `code_tests` in the verifier: right, wrong, remembered, and errors that name their row."""

import asyncio
import os
from contextlib import closing
from typing import Any

import pytest

from hora_rl.actors.verifier.code import runner as module
from hora_rl.actors.verifier.code.runner import ProgramPool
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.actors.verifier.sandbox.sandbox import SandboxError
from hora_rl.common.config.reward import CodeTestsConfig, RewardConfig
from hora_rl.common.data.code import code_block
from hora_rl.common.data.rewards import Answer
from hora_rl.common.errors import VerifierUnavailable
from tests.support.attacks import ATTACKS, PRELUDE

PLUS_ONE = [{"input": "1\n", "output": "2\n"}, {"input": "41\n", "output": "42\n"}]
RIGHT = "print(int(input()) + 1)"
WRONG = "print(2)"


def answer(program: str | None, tests: object = PLUS_ONE, **row: object) -> Answer:
    text = "no block" if program is None else f"<think>so</think>{code_block(program)}"
    return Answer("add one", text, None, {"tests": tests, **row}, 7)  # type: ignore[arg-type]


def programs(**settings: Any) -> ProgramPool:
    return ProgramPool(CodeTestsConfig(**settings), 2)


async def scores(*answers: Answer, **settings: Any) -> list[float]:
    with closing(programs(**settings)) as pool:
        return list(await asyncio.gather(*map(pool.score, answers)))


async def test_a_program_is_right_where_it_passes_every_test_of_its_row() -> None:
    crash, chatty = "int('x')", RIGHT + "\nprint('done')"
    given = [answer(p) for p in (RIGHT, WRONG, crash, chatty, None, "x" * 100_001, "\udc80")]
    assert await scores(*given) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    check = "def check(candidate):\n    assert candidate(1) == 2"
    plus, minus = "def f(x): return x + 1", "def f(x): return x - 1"
    rows = [answer(plus, ["assert f(1) == 2"]), answer(minus, ["assert f(1) == 2"])]
    rows += [answer(plus, check, entry_point="f"), answer(minus, check, entry_point="f")]
    assert await scores(*rows) == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("kind", ["pairs", "assertions"])
async def test_every_hostile_program_is_a_wrong_answer(kind: str) -> None:
    """What each of them cannot do is tested in `tests/actors/sandbox/test_attacks.py`."""
    tests, right = (PLUS_ONE, RIGHT) if kind == "pairs" else (["assert f(1) == 2"], "def f(x): return x + 1")
    words = {"VICTIM": str(os.getpid()), "PORT": "9", "FOLDER": "/tmp"}
    with closing(programs()) as pool:
        for name, source in ATTACKS.items():
            for word, value in words.items():
                source = source.replace(word, value)
            assert await pool.score(answer(PRELUDE + source, tests)) == 0.0, name
        assert await pool.score(answer(right, tests)) == 1.0


async def test_the_same_program_is_judged_once_for_the_same_tests() -> None:
    with closing(programs()) as pool:
        assert await asyncio.gather(*[pool.score(answer(RIGHT)) for _ in range(12)]) == [1.0] * 12
        assert await pool.score(answer(RIGHT)) == 1.0
        assert pool.judged == 1
        assert await pool.score(answer(RIGHT, PLUS_ONE[:1])) == 1.0
        assert pool.judged == 2


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ([], "reward 'code_tests': 'tests' holds no tests"),
        (["assert f(print) == 1"], "cannot run the tests in 'tests': a builtin_function_or_method"),
        (["assert 1 == 1 and str(2)"], "the tests call nothing that the program defines"),
    ],
)
async def test_tests_that_cannot_be_run_are_an_error_with_the_row_s_name(tests: object, words: str) -> None:
    with pytest.raises(ValueError, match="code_tests") as error:
        await scores(answer("def f(x): return 1", tests))
    assert words in str(error.value)
    assert "(prompt 7, problem 'add one')" in str(error.value)


async def test_limits_are_the_configuration_s() -> None:
    greedy = "x = bytearray(200 << 20)\n" + RIGHT
    assert await scores(answer(greedy), memory_mib=1024) == [1.0]
    assert await scores(answer(greedy), memory_mib=128) == [0.0]
    loud = "import sys\nprint('x' * {}, file=sys.stderr)\n" + RIGHT
    assert await scores(answer(loud.format(5000)), answer(loud.format(2 << 20))) == [1.0, 0.0]


async def test_a_lost_sandbox_is_asked_again_and_another_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(module.Runner):
        """Its first program takes the sandbox with it."""

        made = 0

        def judge(self, program: str, tests: Any) -> Any:
            Lost.made += 1
            if Lost.made == 1:
                self._box.close()
            return super().judge(program, tests)

    monkeypatch.setattr(module, "Runner", Lost)
    with closing(programs()) as pool:
        with pytest.raises(VerifierUnavailable, match="was not judged"):
            await pool.score(answer(RIGHT))
        assert await pool.score(answer(RIGHT)) == 1.0


async def test_a_machine_without_a_sandbox_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(limits: object) -> None:
        raise SandboxError("programs cannot be run safely: seccomp does not hold (EPERM)")

    monkeypatch.setattr(module, "Runner", none)
    with pytest.raises(SandboxError, match="seccomp does not hold"):
        await scores(answer(RIGHT))


async def test_the_verifier_returns_it_beside_the_others_and_closes_its_sandboxes() -> None:
    reward = RewardConfig(weights={"format": 0.5, "code_tests": 0.5}, success="code_tests", answer="final")
    with closing(VerifierPool(reward)) as pool:
        scored = await pool.score_batch([answer(RIGHT), answer(WRONG)])
        assert scored == [{"format": 1.0, "code_tests": 1.0}, {"format": 1.0, "code_tests": 0.0}]
        assert [reward.succeeded(s) for s in scored] == [True, False]
        assert pool.stats()["programs"] == 2
