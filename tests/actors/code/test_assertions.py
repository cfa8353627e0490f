"""Assertions about a program that never shares a process with them: what works, and what fools nobody."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from hora_rl.actors.verifier.code.runner import CannotJudge, Runner, Verdict
from hora_rl.actors.verifier.sandbox.sandbox import Limits
from hora_rl.common.data.code import RowTests

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
