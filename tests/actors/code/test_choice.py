"""Which block of a completion is the program, and how its functions and methods are called."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from hora_rl.actors.verifier.code.runner import Runner
from hora_rl.actors.verifier.sandbox.sandbox import Limits
from hora_rl.common.data.code import candidates, code_block, read_tests

ADD = "def add(a, b):\n    return a + b"
WRONG = "def add(a, b):\n    return a - b"
ADDED = ["assert add(2, 3) == 5"]
SUM = "a, b = map(int, input().split())\nprint(a + b)"
SUMMED = [{"input": "2 3\n", "output": "5\n"}]
SOLVE = f"def solve():\n    {SUM.replace(chr(10), chr(10) + '    ')}\nsolve()"
METHOD = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b"
CHECK = "def check(candidate):\n    assert candidate(2, 3) == 5\n"
HEAD = (
    'from typing import List\n\n\ndef add(a: int, b: int) -> int:\n    """ Add\n    >>> add(1, 1)\n    """\n'
)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with closing(Runner(Limits(seconds=2.0, memory=256 << 20))) as found:
        yield found


def judged(runner: Runner, completion: str, value: object, *more: str | None) -> bool:
    tests = read_tests(value, *more)
    blocks = candidates(completion, tests)
    return bool(blocks) and runner.judge(blocks, tests).right


def blocks(*programs: str, language: str = "python") -> str:
    return "\n".join(f"Look:\n```{language}\n{program}\n```" for program in programs)


DEFINED = {
    "an example of a call": (ADD, "print(add(1, 2))"),
    "an example that imports it": (ADD, "from solution import add\nassert add(1, 2) == 3"),
    "its output": (ADD, "3"),
    "a shell line": (ADD, "$ python add.py"),
    "tests of its own": (ADD, "import unittest\nclass T(unittest.TestCase):\n    def test(self): add(1, 2)"),
    "its head alone": (ADD, 'def add(a, b):\n    """Add."""\n    ...'),
    "another language": (ADD, "int add(int a, int b) { return a + b; }"),
    "a wrong one before": (WRONG, ADD),
    "an output that ends the parser": (ADD, "(" * 90_000),
    "a variable of the program": (ADD, "x = add(1, 2)\nx"),
    "a lambda": ("add = lambda a, b: a + b", "add(1, 2)"),
    "its helper before": ("def helper(x):\n    return x", "def add(a, b):\n    return helper(a + b)"),
    "a helper of a helper": (
        "import math as m",
        "def h(x):\n    return m.floor(x)",
        "def add(a, b):\n    return h(a + b)",
    ),
    "a fence in its docstring": (
        'def add(a, b):\n    """\n    ```python\n    add(1, 2)\n    ```\n    """\n    return a + b',
    ),
}


@pytest.mark.parametrize("name", DEFINED)
def test_the_program_is_the_block_that_defines_what_the_tests_call(runner: Runner, name: str) -> None:
    assert judged(runner, blocks(*DEFINED[name]), ADDED)
    assert not judged(runner, blocks(*DEFINED[name]).replace("a + b", "a - b"), ADDED)


def test_the_last_of_two_that_define_it_counts(runner: Runner) -> None:
    assert not judged(runner, blocks(ADD, WRONG), ADDED)
    assert not judged(runner, blocks(SUM, SUM.replace("+", "-")), SUMMED)


STANDALONE = {
    "its output": (SUM, "5"),
    "its output in words": (SUM, "The sum is 5"),
    "an input": (SUM, "2 3"),
    "a shell line": (SUM, "echo 2 3 | python sum.py"),
    "an example of a call": (SOLVE, "solve()"),
    "an example that prints": ("def f(a, b):\n    return a + b\n" + SUM, "print(f(1, 2))"),
    "an example that reads nothing": (SUM, "numbers = [2, 3]\nprint(sum(numbers))"),
    "a list of numbers": (SUM, "[2, 3]"),
    "a line of the program": (SUM, "a, b = map(int, input().split())"),
    "an end by exit()": (f"{SUM}\nexit()", "5"),
    "open(0)": ("print(sum(map(int, open(0).read().split())))", "print(5)"),
}


@pytest.mark.parametrize("name", STANDALONE)
def test_for_stdin_the_program_is_the_last_block_that_runs_by_itself(runner: Runner, name: str) -> None:
    program, after = STANDALONE[name]
    assert judged(runner, blocks(program, after), SUMMED)
    assert judged(
        runner, f"{blocks('print(0)', program)}\nIt prints:\n{blocks(after, language='text')}", SUMMED
    )


def test_for_stdin_a_function_in_a_block_of_its_own_belongs_to_the_program(runner: Runner) -> None:
    driver = "a, b = map(int, input().split())\nprint(f(a, b))"
    assert judged(runner, blocks("def f(a, b):\n    return a + b", driver), SUMMED)
    assert not judged(runner, blocks("def f(a, b):\n    return a - b", driver), SUMMED)
    assert not judged(runner, blocks(driver, "def f(a, b):\n    return a + b"), SUMMED)


FORMS = {
    "a list": f"1. Do:\n\n   ```python\n   {ADD.replace(chr(10), chr(10) + '   ')}\n   ```\n",
    "tildes": f"~~~py\n{ADD}\n~~~",
    "four backticks": f"````\n{ADD}\n````",
    "a program without a fence is none": ADD,
}


@pytest.mark.parametrize("name", FORMS)
def test_a_program_in_any_fence_and_indented_runs(runner: Runner, name: str) -> None:
    assert judged(runner, FORMS[name], ADDED) == ("without" not in name)


CALLED = [{"input": "2\n3", "output": "5", "testtype": "functional"}]
ENTRIES = {
    "a function": (ADD, "add"),
    "a method": (METHOD, "add"),
    "a method by its class": (METHOD, "Solution().add"),
    "a function for a method": (ADD, "Solution().add"),
    "the only function": (ADD, None),
    "the only method": (METHOD, None),
    "the method that calls the others": (
        f"{METHOD.replace('a + b', 'self.help(a) + b')}\n\n    def help(self, a):\n        return a",
        None,
    ),
    "a cached method": (METHOD.replace("    def add", "    @functools.lru_cache\n    def add"), None),
    "a private helper": (f"{METHOD}\n\n    def _help(self):\n        pass", None),
    "a static method": (
        METHOD.replace("    def add(self, ", "    @staticmethod\n    def add("),
        "add",
    ),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_functional_tests_call_a_function_or_a_method_of_solution(runner: Runner, name: str) -> None:
    program, entry = ENTRIES[name]
    assert judged(runner, code_block(program), CALLED, entry)
    assert not judged(runner, code_block(program.replace("+ b", "- b")), CALLED, entry)
    if entry is not None:
        columns = {"fn_name": entry, "inputs": [[2, 3]], "outputs": [[5]]}
        assert judged(runner, code_block(program), columns)
        assert judged(runner, code_block(program), CHECK, entry)
        assert judged(runner, blocks(program, "print(Solution().add(1, 2))"), CALLED, entry)


RESULTS = [
    ("(1, 2)", "[1, 2]", True),
    ("[(1, 'a'), (2, 'b')]", '[[1, "a"], [2, "b"]]', True),
    ("Counter('aab')", '{"a": 2, "b": 1}', True),
    ("OrderedDict(a=1)", '{"a": 1}', True),
    ("defaultdict(list, {1: [2]})", '{"1": [2]}', True),
    ("{True: None}", '{"true": null}', True),
    ("deque([1])", "[1]", True),
    ("2.0", "2", True),
    ("None", "null", True),
    ("10 ** 30", str(10**30), True),
    ("{1, 2}", "[1, 2]", False),
    ("'5'", "5", False),
    ("[1]", "1", False),
    ("print", "null", False),
]


@pytest.mark.parametrize(("result", "expected", "right"), RESULTS)
def test_results_are_compared_as_livecodebench_does(
    runner: Runner, result: str, expected: str, right: bool
) -> None:
    program = code_block(f"def f(x):\n    return {result}")
    assert (
        judged(runner, program, [{"input": "0", "output": expected, "testtype": "functional"}], "f") == right
    )


def test_assertions_compare_counters_and_ordered_dictionaries_with_dictionaries(runner: Runner) -> None:
    program = code_block(
        "def f(xs): return Counter(xs)\ndef g(): return OrderedDict(a=1)\ndef h(): return deque('a')"
    )
    tests = [
        "assert f('aab') == {'a': 2, 'b': 1}",
        "from collections import deque",
        "assert h() == deque('a')",
    ]
    assert judged(
        runner, program, [*tests, "assert g() == {'a': 1} and f('aab').most_common(1) == [('a', 2)]"]
    )
    assert not judged(runner, program, ["assert f('aab') == {'a': 1, 'b': 1}"])


def test_leetcodes_imports_are_there_and_are_no_answer(runner: Runner) -> None:
    uses = """
    class Solution:
        def f(self, xs: List[int], k: Optional[int] = None) -> int:
            seen = defaultdict(int)
            heap = list(xs)
            heapify(heap)
            heapq.heapify(heap)
            i = bisect_left(sorted(xs), 2) + bisect.bisect(xs, 0)
            return i + sum(accumulate(xs)) + reduce(lambda a, b: a + b, xs) + math.gcd(4, 2) + min(inf, 0)
    """
    assert judged(
        runner,
        f"```python\n{uses}\n```",
        [{"input": "[1, 2]", "output": "10", "testtype": "functional"}],
        "f",
    )
    assert not judged(runner, code_block("x = 1"), ["assert gcd(4, 2) == 2"]), (
        "the tests call the program's own"
    )
    assert not judged(runner, code_block("import math\nx = 1"), ["assert gcd(4, 2) == 2"])
    assert judged(runner, code_block("from math import gcd"), ["assert gcd(4, 2) == 2"])


BODIES = {
    "a body in a block": "```python\n    return a + b\n```",
    "a dedented body": "```python\ntotal = a + b\nreturn total\n```",
    "a whole function": code_block("def add(a, b):\n    return a + b"),
    "a body and an example": "```\n    return a + b\n```\nFor example\n```\nprint(add(1, 2))\n```",
    "a body as the text goes on": "    return a + b\n\n\nprint(add(1, 2))\nassert False",
    "a whole function as text": "def add(a, b):\n    return a + b\n",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_program_continues_the_head_of_its_function_or_writes_it_again(runner: Runner, name: str) -> None:
    assert judged(runner, BODIES[name], CHECK, "add", HEAD)
    assert not judged(runner, BODIES[name].replace("a + b", "a - b"), CHECK, "add", HEAD)


def test_what_stands_before_a_program_is_executed(runner: Runner) -> None:
    before = "def helper(x):\n    return x + 1\n\n\n" + HEAD
    assert judged(runner, code_block("def add(a, b):\n    return helper(a) + b - 1"), CHECK, "add", before)
    imports = "from decimal import Decimal as D\n"
    method = METHOD.replace("a + b", "int(D(a) + D(b))")
    assert judged(runner, code_block(method), CHECK, "Solution().add", imports)
    without = "def add(a, b):\n"
    assert judged(runner, code_block(ADD), CHECK, "add", without)
    assert judged(runner, "    return a + b", CHECK, "add", without)
