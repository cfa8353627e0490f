r"""Programs as answers: extraction from a completion, the tests of a row, and comparison of outputs.

Tests are of three kinds. Pairs of stdin and stdout:

    "tests": [{"input": "2 3\n", "output": "5\n"}, …]
    "tests": {"inputs": ["2 3\n", …], "outputs": ["5\n", …]}          or the JSON text of either
                                                    (`stdin` and `stdout` mean the same)

Calls of one function or method, with arguments and result as JSON:

    "tests": [{"input": "2\n3", "output": "5", "testtype": "functional"}, …]      one argument a line
    "tests": {"fn_name": "add", "inputs": [[2, 3], …], "outputs": [5, …]}

Assertions, which call the program's definitions:

    "tests": ["assert add(2, 3) == 5", …]                            or one text of several lines
    "tests": "def check(candidate): assert candidate(2, 3) == 5", "entry_point": "add"
"""

import ast
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hora_rl.common.answer_format import after_thought
from hora_rl.common.data.rows import value as column

INPUT, OUTPUT = ("input", "stdin"), ("output", "stdout")
KIND, FUNCTION = ("testtype", "type"), ("fn_name", "func_name", "metadata.func_name", "metadata.fn_name")
CALLED = ("functional", "function_call", "call_based")
FENCE = "```"
MOST_CHARS = 100_000
"""A longer program is wrong and is not run."""
MOST_BLOCKS = 16
"""The last code blocks of a completion, among which the program is."""
MOST_INDENT = 3
"""Columns that the end of a block may be indented beyond its beginning. A fence further in is its text."""
_NO_PROGRAMS = (
    "text txt plain plaintext output out result console terminal bash sh shell shell-session zsh fish cmd "
    "bat powershell ps1 json jsonl yaml yml toml ini xml html css csv markdown md latex tex diff sql"
)
NO_PROGRAMS = frozenset(_NO_PROGRAMS.split())
"""Languages of blocks that hold no program: text, what a program printed, and shell lines."""
_LANGUAGE = re.compile(r"[ \t]*\{?\.?([A-Za-z][\w-]*)")
_PYTHON = re.compile(r"[ \t]*\{?\.?py(?:thon)?3?\b", re.IGNORECASE)
_PROGRAM_LINE = re.compile(r"[ \t]+\S|(?:async |def |class |import |from |@)")
_DEFINED = re.compile(r"^[ \t]*def[ ]+([A-Za-z]\w*)", re.MULTILINE)
_ENTRY = re.compile(r"(?:[A-Za-z_]\w*\(\)\.)?[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Pair:
    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the program's function: the JSON text of the list of arguments, and of each right result."""

    arguments: str
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowTests:
    """Tests of one row: `pairs`, `calls` of the function `entry` ("": the one that the program defines), or
    Python text `asserts`, whose `check(candidate)` gets `entry`. `entry` may be a method, `Solution().add`.
    `before` is Python text that the program continues."""

    pairs: tuple[Pair, ...] = ()
    calls: tuple[Call, ...] = ()
    asserts: str = ""
    entry: str = ""
    before: str = ""

    @property
    def runs(self) -> int:
        """Maximum number of program runs per completion."""
        return len(self.pairs) or 2


def candidates(completion: str, tests: RowTests) -> list[str]:
    """The texts of a completion that may be its program; none if it has no program to run."""
    blocks = code_blocks(completion)
    if not blocks and tests.before:
        blocks = [continuation(completion)]
    return [block for block in blocks[-MOST_BLOCKS:] if block.strip() and len(block) <= MOST_CHARS]


def code_blocks(completion: str) -> list[str]:
    """The closed code blocks after the thought that may be the program, dedented, in their order.

    A block has a fence of three or more backticks or tildes. It may begin in the middle of a line, and ends
    at the start of one, with a fence of the same kind that is not shorter. It may be indented, or quoted
    with `>`. Empty blocks are left out, and those in a language of `NO_PROGRAMS`."""
    blocks: list[str] = []
    fence, info, quote, margin, block = "", "", "", "", list[str]()
    for line in (after_thought(completion) or "").split("\n"):
        line = line.removeprefix(quote)
        inner = line.lstrip()
        at_fence = (
            bool(fence) and inner.startswith(fence) and len(line) - len(inner) <= len(margin) + MOST_INDENT
        )
        if at_fence and not _PYTHON.match(inner.lstrip(fence[0])):
            program = textwrap.dedent("\n".join(line.removeprefix(margin) for line in block))
            language = _LANGUAGE.match(info)
            if program.strip() and not (language and language[1].lower() in NO_PROGRAMS):
                blocks.append(program)
            fence, quote = "", ""
        elif at_fence or not fence:  # also behind a block that was never closed
            fence, info = _opening(line)
            quote = quote or (">" if fence and inner.startswith(">") else "")
            inner = line.removeprefix(quote)
            margin, block = inner[: len(inner) - len(inner.lstrip())], []
        else:
            block.append(line)
    return blocks


def _opening(line: str) -> tuple[str, str]:
    """The fence of the block that begins in this line, and what stands behind it; empty texts without one."""
    for mark in "`~":
        at = line.rfind(3 * mark)
        if at >= 0 and mark not in line[at + 3 :]:
            return line[len(line[:at].rstrip(mark)) : at + 3], line[at + 3 :]
    return "", ""


def continuation(completion: str) -> str:
    """The program in a completion without code blocks that continues `RowTests.before`: a function's body, up
    to the first line that is not indented, or whole definitions. Empty if it begins with neither."""
    lines = (after_thought(completion) or "").split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), len(lines))
    if not _PROGRAM_LINE.match("\n".join(lines[first : first + 1])):
        return ""
    if lines[first][0] not in " \t":
        return "\n".join(lines[first:])
    outside = (i for i in range(first, len(lines)) if lines[i].strip() and lines[i][0] not in " \t")
    return textwrap.dedent("\n".join(lines[first : next(outside, len(lines))]))


def code_block(program: str) -> str:
    return f"{FENCE}python\n{program.rstrip()}\n{FENCE}"


def read_tests(value: object, entry: object = None, before: object = None) -> RowTests:
    """The tests in a row's column. `entry` names the function that they call; the program continues `before`.
    Raises ValueError with the defect."""
    tests = _read(_parsed(value), _name(entry))
    return replace(tests, before=before) if isinstance(before, str) else tests


def _read(value: object, entry: str) -> RowTests:
    if isinstance(value, Mapping):
        return _columns(value, entry)
    if isinstance(value, str):
        return _asserts(value, entry)
    if isinstance(value, Sequence) and value and all(isinstance(test, str) for test in value):
        return _asserts("\n".join(map(str, value)), entry)
    if isinstance(value, Sequence) and value:
        calls = [test for test in value if isinstance(test, Mapping) and _is_call(test)]
        if not calls:
            return RowTests(pairs=tuple(_pair(test) for test in value))
        if len(calls) < len(value):
            raise ValueError("mixes functional tests and pairs of stdin and stdout")
        read = _calls([(_first(test, INPUT), _first(test, OUTPUT)) for test in calls])
        return RowTests(calls=read, entry=_function(calls[0]) or entry)
    raise ValueError("holds no tests: a list of {input, output}, or assertions as text")


def _parsed(value: object) -> object:
    """The value of a JSON text. A Python text may begin with a bracket too."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def same_output(expected: str, output: str) -> bool:
    """Whether the lines are equal, ignoring trailing white space and trailing empty lines."""
    return _lines(expected) == _lines(output)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _columns(value: Mapping[str, object], entry: str) -> RowTests:
    inputs, outputs = (_first(value, names) for names in (("inputs", *INPUT), ("outputs", *OUTPUT)))
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("must hold lists of equal length, inputs and outputs")
    if not inputs:
        raise ValueError("holds no tests: inputs is empty")
    both = list(zip(inputs, outputs, strict=True))
    if not _is_call(value):
        return RowTests(pairs=tuple(_pair({"input": _joined(i), "output": _joined(o)}) for i, o in both))
    return RowTests(calls=_calls(both), entry=_function(value) or entry)


def _calls(tests: Sequence[tuple[object, object]]) -> tuple[Call, ...]:
    """Tests of a function. APPS and PrimeIntellect have each result in a separate list."""
    listed = all(
        isinstance(arguments, list) and isinstance(result, list) and len(result) == 1
        for arguments, result in tests
    )
    return tuple(
        _call(arguments, result, *(result if listed and isinstance(result, list) else ()))
        for arguments, result in tests
    )


def _joined(value: object) -> object:
    """Lines, as TACO has them, as one text."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value


def _is_call(value: Mapping[str, object]) -> bool:
    return _first(value, KIND) in CALLED or bool(_first(value, FUNCTION[:2]))


def called_function(row: Mapping[str, object]) -> str:
    """The function that functional tests of this row call, "" if it names none. Raises ValueError."""
    head = row.get("starter_code")
    defined = _DEFINED.findall(head) if isinstance(head, str) else []
    return _function(row) or (defined[0] if len(defined) == 1 else "")


def _function(value: Mapping[str, object]) -> str:
    return _name(next((name for path in FUNCTION if (name := column(value, path))), None))


def _name(entry: object) -> str:
    """The name of a function or method, "" for None. Raises ValueError for anything else."""
    if entry is None:
        return ""
    if not isinstance(entry, str) or not _ENTRY.fullmatch(entry.strip()):
        raise ValueError(f"its entry point is not a name: {entry!r:.60}")
    return entry.strip()


def _call(arguments: object, *results: object) -> Call:
    """A test of a function. Texts hold JSON, the input one argument a line, as LiveCodeBench has them."""
    try:
        if isinstance(arguments, str):
            arguments = [json.loads(line) for line in arguments.split("\n") if line.strip()]
            results = tuple(json.loads(result) if isinstance(result, str) else result for result in results)
        if not isinstance(arguments, list):
            raise ValueError("no list of arguments")
        return Call(json.dumps(arguments), tuple(dict.fromkeys(json.dumps(result) for result in results)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{arguments!r:.60} is no functional test: a list of arguments or JSON texts, one a line "
            f"({error})"
        ) from None


def _pair(value: object) -> Pair:
    texts = (_first(value, INPUT), _first(value, OUTPUT)) if isinstance(value, Mapping) else (None, None)
    if None in texts:
        raise ValueError(f"{value!r:.60} is no test: {{input, output}} or {{stdin, stdout}} as texts")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{value!r:.60}: input and output must be texts")
    return Pair(*map(str, texts))


def _first(value: Mapping[str, object], names: Sequence[str]) -> object:
    """The first value of these names; None without one. Rows of a Parquet file have every row's names."""
    return next((item for name in names if (item := value.get(name)) is not None), None)


def _asserts(text: str, entry: str) -> RowTests:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"is neither JSON nor Python: {error}") from None
    if not any(isinstance(node, ast.Assert | ast.Raise | ast.Call) for node in ast.walk(tree)):
        raise ValueError("holds no tests: nothing in it can fail")
    return RowTests(asserts=text, entry=entry)
