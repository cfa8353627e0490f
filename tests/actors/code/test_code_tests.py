"""The reward `code_tests` in the verifier: right, wrong, remembered, and errors that name their row."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from hora_rl.actors.verifier.code import runner as module
from hora_rl.actors.verifier.code.runner import CannotJudge, ProgramPool, Runner, Verdict
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.actors.verifier.sandbox.sandbox import Limits, SandboxError
from hora_rl.common.config.reward import CodeTestsConfig, RewardConfig
from hora_rl.common.data.code import RowTests, code_block
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
        with pytest.raises(VerifierUnavailable):
            await pool.score(answer(RIGHT))
        assert await pool.score(answer(RIGHT)) == 1.0


async def test_a_machine_without_a_sandbox_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(limits: object) -> None:
        raise SandboxError("programs cannot be run safely: seccomp does not hold (EPERM)")

    monkeypatch.setattr(module, "Runner", none)
    with pytest.raises(SandboxError, match="seccomp"):
        await scores(answer(RIGHT))


async def test_the_verifier_returns_it_beside_the_others_and_closes_its_sandboxes() -> None:
    reward = RewardConfig(weights={"format": 0.5, "code_tests": 0.5}, success="code_tests", answer="final")
    with closing(VerifierPool(reward)) as pool:
        scored = await pool.score_batch([answer(RIGHT), answer(WRONG)])
        assert scored == [{"format": 1.0, "code_tests": 1.0}, {"format": 1.0, "code_tests": 0.0}]
        assert [reward.succeeded(s) for s in scored] == [True, False]
        assert pool.stats()["programs"] == 2


ADD = "def add(a, b): return a + b"
ADDED = "assert add(2, 3) == 5\nassert add(-1, 1) == 0"
NUMBER = "class Number: pass\ndef f(): return {}"
MAYBE = "r = f()\nassert r is None or isinstance(r, (int, Number))"

DEEP = """
import os
def enc(x):
    os.write(4, b'[1, "value", ' + b'[' * 80 + b']' * 80 + b', []]\\n')
    os._exit(0)
def dec(x): return x
"""

PROGRAMS = yaml.safe_load(Path(__file__).with_name("assertions.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with closing(Runner(Limits(seconds=2.0, memory=256 << 20))) as found:
        yield found


def judged(runner: Runner, program: str, tests: str) -> Verdict:
    return runner.judge([program], RowTests(asserts=tests))


@pytest.mark.parametrize("name", PROGRAMS["pass"])
def test_a_right_program_passes(runner: Runner, name: str) -> None:
    assert judged(runner, **PROGRAMS["pass"][name]) == Verdict(True)


@pytest.mark.parametrize("name", PROGRAMS["fail"])
def test_a_wrong_or_hostile_program_does_not_pass(runner: Runner, name: str) -> None:
    tests = ADDED + "\nassert add(40, 2) in (42,)\nassert all([add(2, 2) == 4])"
    found = judged(runner, PROGRAMS["fail"][name], tests)
    assert not found.right
    assert not found.judge_ended
    assert judged(runner, ADD, ADDED).right, "the next program is judged"


@pytest.mark.parametrize(
    ("program", "tests", "why"),
    [
        (ADD, "assert add(lambda: 1, 2)", "a function cannot be passed to the program"),
        (ADD, "assert 1 + 1 == 2", "call nothing that the program defines"),
        (ADD, "assert isinstance(add(1, 1), Number)", "an object of the program's own class"),
        (ADD, "import numpy\nassert add(1, 1) == 2", "No module named 'numpy'"),
        (ADD, "add(1, 1)\nimport sys\nsys.exit()", "the tests end by SystemExit"),
        (ADD, "add(1, 1)\nimport os\nos._exit(0)", "ended without a verdict"),
        # Whatever the program answers.
        *((NUMBER.format(answer), MAYBE, r"the program's own class .Number.") for answer in ("None", "add")),
    ],
)
def test_tests_that_cannot_run_judge_nothing(runner: Runner, program: str, tests: str, why: str) -> None:
    with pytest.raises(CannotJudge, match=why):
        judged(runner, program, tests)
    assert judged(runner, ADD, ADDED).right


@pytest.mark.parametrize(
    ("program", "tests", "why"),
    [
        ("def f(): return '1*2*3*'", "assert eval(f()) == 6", ""),
        ("def f(): return '1 +'", "import ast\nassert ast.literal_eval(f()) == 6", ""),
        ("def f(): return 'no_such_module'", "assert __import__(f())", ""),
        (DEEP, "assert dec(enc('a')) == 'a'", ""),
        ("def add(a, b):\n    import numpy\n    return a + b", ADDED, "numpy"),
    ],
)
def test_an_error_a_program_causes_is_its_own(runner: Runner, program: str, tests: str, why: str) -> None:
    found = judged(runner, program, tests)
    assert not found.right
    assert why in found.why
    assert judged(runner, ADD, ADDED).right


@pytest.mark.system
def test_time_is_the_program_s_where_it_takes_it_and_the_tests_where_they_do() -> None:
    with closing(Runner(Limits(seconds=0.5))) as runner:
        slow = judged(runner, "def add(a, b):\n    while True: pass", ADDED)
        assert (slow.right, slow.judge_ended) == (False, False)
        made = judged(runner, "def add(a, b): return 10**12", "for i in range(add(1, 2)): pass")
        assert (made.right, made.judge_ended) == (False, True)
        silent = judged(runner, "import os\ndef add(a, b): return os.read(3, 1 << 16)", ADDED)
        assert not silent.right
        assert judged(runner, ADD, ADDED).right
