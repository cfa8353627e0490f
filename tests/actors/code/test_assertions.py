"""Assertions about a program that never shares a process with them: what works, and what fools nobody."""

import textwrap
from collections.abc import Iterator
from contextlib import closing

import pytest

from hora_rl.actors.verifier.code.runner import CannotJudge, Runner, Verdict
from hora_rl.actors.verifier.sandbox.sandbox import Limits
from hora_rl.common.data.code import RowTests

ADD = "def add(a, b): return a + b"
ADDED = "assert add(2, 3) == 5\nassert add(-1, 1) == 0"
EQUAL = "    def __eq__(self, o): return True\n"
NUMBER = "class Number: pass\ndef f(): return {}"
MAYBE = "r = f()\nassert r is None or isinstance(r, (int, Number))"

DEEP = """
import os
def enc(x):
    os.write(4, b'[1, "value", ' + b'[' * 80 + b']' * 80 + b', []]\\n')
    os._exit(0)
def dec(x): return x
"""

WORKS = {
    "asserts as in MBPP": (ADD, ADDED),
    "set up by the tests": (ADD, "import math\nxs = [1, 2]\nassert add(*xs) == math.floor(3.5)"),
    "a star import": (ADD, "from math import *\nassert add(floor(1.5), 1) == 2"),
    "a function of the tests": (ADD, "def same(x, y):\n    assert x == y\nsame(add(1, 1), 2)"),
    "every type": (
        "def same(x): return x",
        """
        plain = None, True, 1, 2**70, -(2**53), 1.5, 1e308, 1j, 'ü\\udc80', b'\\0'
        for x in (*plain, [1, [2]], (1,), {1}, frozenset({2}), {(1, 2): {'a': None}, 3: 'x', None: 1.0}):
            y = same(x)
            assert y == x and type(y) is type(x), x
        assert same(float('nan')) != same(float('nan')) and same(float('inf')) > 10**300
        """,
    ),
    "near numbers": ("def f(): return 1 / 3", "import math\nassert math.isclose(f(), 0.3333333333333)"),
    "a list that is changed in place": (
        "def sort(xs, seen): xs.sort(); seen.add(1)",
        "xs, seen = [3, 1, 2], set()\nassert sort(xs, seen) is None\nassert xs == [1, 2, 3] and seen == {1}",
    ),
    "keywords": ("def f(a, *, b=2): return a - b", "assert f(5, b=1) == 4\nassert f(5) == 3"),
    "an exception": (
        "def f(x):\n    raise ValueError('negative')",
        "try:\n    f(-1)\nexcept ValueError as e:\n    assert 'negative' in str(e)\nelse:\n    assert False",
    ),
    "an exception with five arguments": (
        "def f(b): return b.decode()",
        "try:\n    f(b'\\xff')\nexcept UnicodeDecodeError:\n    pass\nelse:\n    assert False",
    ),
    "a generator without end": (
        "def odd():\n    n = 1\n    while True:\n        yield n\n        n += 2",
        "import itertools\nassert list(itertools.islice(odd(), 4)) == [1, 3, 5, 7]\nassert next(odd()) == 1",
    ),
    "a class": (
        """
        class Stack:
            LIMIT = 9
            def __init__(self): self.items = []
            def push(self, x): self.items.append(x); return self
            def __len__(self): return len(self.items)
            def __getitem__(self, i): return self.items[i]
            def __str__(self): return f"Stack{self.items}"
        def top(stack): return stack.items[-1]
        """,
        """
        s = Stack()
        assert s.push(4).push(5) is not None
        assert len(s) == 2 and s.items == [4, 5] and s[0] == 4 and str(s) == 'Stack[4, 5]'
        assert top(s) == 5 and Stack.LIMIT == 9 and [x for x in s] == [4, 5] and 5 in s
        """,
    ),
    "an object that is true": (
        "import re\ndef f(s): return re.match('a', s)",
        "assert f('ab')\nassert not f('ba') and bool(f('a')) is True",
    ),
    "objects that the tests change": (
        """
        from collections import Counter
        class Node:
            def __init__(self, value): self.value, self.next = value, None
        def length(node): return 1 + length(node.next) if node else 0
        """,
        """
        a, count = Node(1), Counter()
        a.next, count['x'], Node.kind = Node(2), 3, 'list'
        assert length(a) == 2 and count['x'] == 3 and a.kind == 'list'
        """,
    ),
    "a program that prints": ("print('hello')\n" + ADD, ADDED + "\nprint('tests print too')"),
    "what runs as a script alone": (ADD + "\nif __name__ == '__main__':\n    add(input(), 1)", ADDED),
    "check called by the tests": (ADD, "def check(candidate):\n    assert candidate(2, 3) == 5\ncheck(add)"),
    "an imported class": (ADD, "from decimal import *\nassert isinstance(add(1, 1), (int, Decimal))"),
    "a class of the tests": (ADD, "class N(int): pass\nassert not isinstance(add(1, 1), N)"),
    "a class of an answer": (ADD, "assert isinstance(add(1, 1), type(add(2, 2)))"),
    "an abstract class": (ADD, "from collections.abc import Sized\nassert not isinstance(add(1, 1), Sized)"),
    "recursion and imports": (
        "import functools\n@functools.cache\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)",
        "assert fib(200) == 280571172992510140037611932413038677189525",
    ),
}

FOOLS_NOBODY = {
    "wrong": "def add(a, b): return a - b",
    "ends the process": "import os\nos._exit(0)",
    "ends the interpreter": "import sys\nsys.exit(0)",
    "ends in the call": "import os\ndef add(a, b): os._exit(0)",
    "raises": "def add(a, b): raise AssertionError",
    "raises an end": "def add(a, b): raise SystemExit(0)",
    "prints a pass": "print('pass')\ndef add(a, b): print('pass'); return None",
    "equals everything": f"class E:\n{EQUAL}def add(a, b): return E()",
    "an int that equals everything": f"class I(int):\n{EQUAL}def add(a, b): return I(7)",
    "a list that equals everything": f"class L(list):\n{EQUAL}def add(a, b): return L()",
    "contains everything": "class C:\n    def __contains__(self, x): return True\ndef add(a, b): return C()",
    "changes Python": "import builtins\nbuiltins.AssertionError = Exception\ndef add(a, b): return None",
    "names of Python's": "def all(x): return True\nabs = len = all\ndef add(a, b): return None",
    "forges verdicts": """
        import os
        for fd in range(0, 20):
            try: os.write(fd, b'["0", "pass", ""]\\n')
            except OSError: pass
        def add(a, b): return None
        """,
    "forges replies": """
        import os
        os.write(4, b'[1, "value", 5, []]\\n[1, "value", 5, []]\\n[3, "value", 0, []]\\n')
        def add(a, b): os._exit(0)
        """,
    "replies that are no values": """
        import os
        os.write(4, b'[1, "value", {"kept": "x"}, []]\\n')
        def add(a, b): return 5
        """,
    "a kept object of no number": 'import os\nos.write(4, b\'[1, "value", {"set": [[1]]}, []]\\n\')',
    "deep replies": "import os\nos.write(4, b'[' * 100_000 + b'\\n')\ndef add(a, b): return 5",
    "an endless reply": "import os\nwhile True: os.write(4, b'x' * 65536)",
    "nested without end": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "looks at the frames": """
        import sys
        def add(a, b):
            f = sys._getframe()
            while f:
                for v in f.f_locals.values():
                    if isinstance(v, list) and 'expected' in str(v): return 5
                f = f.f_back
        """,
    "changes the wire": """
        import hora_rl.actors.verifier.code.values as v
        v.encode = lambda *a, **k: True
        def add(a, b): return None
        """,
    "no such name": "def plus(a, b): return a + b",
    "no Python": "def add(a, b) return a + b",
    "nothing": "",
    "a future": "async def add(a, b): return a + b",
}


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with closing(Runner(Limits(seconds=2.0, memory=256 << 20))) as found:
        yield found


def judged(runner: Runner, program: str, tests: str) -> Verdict:
    return runner.judge([textwrap.dedent(program)], RowTests(asserts=textwrap.dedent(tests)))


@pytest.mark.parametrize("name", WORKS)
def test_a_right_program_passes(runner: Runner, name: str) -> None:
    assert judged(runner, *WORKS[name]) == Verdict(True)


@pytest.mark.parametrize("name", FOOLS_NOBODY)
def test_a_wrong_or_hostile_program_does_not_pass(runner: Runner, name: str) -> None:
    tests = ADDED + "\nassert add(40, 2) in (42,)\nassert all([add(2, 2) == 4])"
    found = judged(runner, FOOLS_NOBODY[name], tests)
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
