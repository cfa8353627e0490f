r"""Programs as answers: extraction from a completion, the tests of a row, and comparison of outputs.

Tests are of two kinds. Pairs of stdin and stdout:

    "tests": [{"input": "2 3\n", "output": "5\n"}, …]
    "tests": {"inputs": ["2 3\n", …], "outputs": ["5\n", …]}          or the JSON text of either
                                                    (`stdin` and `stdout` mean the same)

Assertions, which call the program's definitions:

    "tests": ["assert add(2, 3) == 5", …]                            or one text of several lines
    "tests": "def check(candidate): assert candidate(2, 3) == 5", "entry_point": "add"
"""

import ast
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hora_rl.common.thoughts import after_thought

INPUT, OUTPUT = ("input", "stdin"), ("output", "stdout")
FENCE = "```"
MOST_CHARS = 100_000
"""A longer program is wrong and is not run."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A program's input and its expected output."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class RowTests:
    """Tests of one row: `pairs`, or Python text `asserts`, whose `check(candidate)` gets function `entry`."""

    pairs: tuple[Pair, ...] = ()
    asserts: str = ""
    entry: str = ""

    @property
    def runs(self) -> int:
        """Maximum number of program runs per completion."""
        return len(self.pairs) or 2


def extract_code(completion: str) -> str | None:
    """The program in the last closed code block (```` ``` ```` to ```` ``` ````) after the thought; None if
    there is none. The block may begin in the middle of a line and ends at the start of one."""
    text = after_thought(completion) or ""
    found: str | None = None
    block: list[str] | None = None
    for line in text.split("\n"):
        if block is not None and line.lstrip().startswith(FENCE):
            found, block = "\n".join(block), None
        elif block is not None:
            block.append(line)
        elif FENCE in line and "`" not in line[line.rfind(FENCE) + len(FENCE) :]:
            block = []
    return found


def code_block(program: str) -> str:
    """A program as a code block of a completion."""
    return f"{FENCE}python\n{program.rstrip()}\n{FENCE}"


def read_tests(value: object, entry: object = None) -> RowTests:
    """The tests in a row's column. Raises ValueError with the defect."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(json.JSONDecodeError, RecursionError):  # a Python text may begin with a bracket too
            value = json.loads(value)
    if isinstance(value, Mapping):
        return RowTests(pairs=_columns(value))
    if isinstance(value, str):
        return _asserts(value, entry)
    if isinstance(value, Sequence) and value and all(isinstance(one, str) for one in value):
        return _asserts("\n".join(map(str, value)), entry)
    if isinstance(value, Sequence) and value:
        return RowTests(pairs=tuple(_pair(one) for one in value))
    raise ValueError("holds no tests: a list of {input, output}, or assertions as text")


def same_output(expected: str, found: str) -> bool:
    """Whether the lines are equal, ignoring trailing white space and trailing empty lines."""
    return _lines(expected) == _lines(found)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _columns(value: Mapping[str, object]) -> tuple[Pair, ...]:
    if value.get("fn_name"):
        raise ValueError("names a function (fn_name): write its tests as assertions")
    inputs, outputs = (_first(value, names) for names in (("inputs", *INPUT), ("outputs", *OUTPUT)))
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("must hold lists of equal length, inputs and outputs")
    if not inputs:
        raise ValueError("holds no tests: inputs is empty")
    return tuple(_pair({"input": i, "output": o}) for i, o in zip(inputs, outputs, strict=True))


def _pair(value: object) -> Pair:
    texts = (_first(value, INPUT), _first(value, OUTPUT)) if isinstance(value, Mapping) else (None, None)
    if None in texts:
        raise ValueError(f"{value!r:.60} is no test: {{input, output}} or {{stdin, stdout}} as texts")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{value!r:.60}: input and output must be texts")
    return Pair(*map(str, texts))


def _first(value: Mapping[str, object], names: Sequence[str]) -> object:
    """The first value of these names; None without one. Rows of a Parquet file have every row's names."""
    return next((found for name in names if (found := value.get(name)) is not None), None)


def _asserts(text: str, entry: object) -> RowTests:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"is neither JSON nor Python: {error}") from None
    if not any(isinstance(node, ast.Assert | ast.Raise | ast.Call) for node in ast.walk(tree)):
        raise ValueError("holds no tests: nothing in it can fail")
    if entry is not None and not isinstance(entry, str):
        raise ValueError(f"its entry point is not a name: {entry!r:.60}")
    return RowTests(asserts=text, entry=entry or "")
