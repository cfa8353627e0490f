r"""The layouts of published data sets: which columns hold the problem, the gold answer and the tests.

A row has the first layout of `layouts.yaml` whose columns it has, else one of the usual columns. The keys
`data.prompt_field`, `data.answer_field` and `reward.code_tests.columns` win over it. Columns are paths
(`common/data/rows.py`)."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import yaml

from hora_rl.common.config.reward import CodeTestsConfig
from hora_rl.common.data.code import RowTests, called_function, read_tests
from hora_rl.common.data.rows import has, reach, value

Row = Mapping[str, object]
PROBLEMS = ("problem", "question", "prompt", "query", "context_messages", "messages", "input")
ANSWERS = (
    *("answer", "final_answer", "expected_answer", "ground_truth", "reward_model.ground_truth"),
    *("gold", "gt", "label", "target", "solution"),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the rows of a data set hold what.

    `columns` recognise it, with `mark` in the text of the answer. `answer` is the column of the gold answer,
    found in it by the function `read` (`READS` in `actors/data/gold_answers.py`); `how` says so. `head` is a
    column shown below the problem: the head of the function to write, or the first test. `tests` and
    `more_tests` are columns of tests, `setup` the code before them, `entry` the function's name, `before` the
    beginning of the program, and `solution` a right program."""

    name: str
    columns: tuple[str, ...]
    problem: str
    answer: str = "answer"
    read: str = "answer_in"
    mark: str = ""
    how: str = ""
    head: str = ""
    tests: str = ""
    more_tests: str = ""
    setup: tuple[str, ...] = ()
    entry: str = ""
    before: str = ""
    solution: str = ""

    def __str__(self) -> str:
        """For people: its name, and where the answer or the tests are."""
        how = self.how or f"tests in {self.tests}"
        return f"{self.name}; {how}" if self.name else how

    @property
    def is_default(self) -> bool:
        return not self.name and (self.problem, self.answer) == (PROBLEMS[0], ANSWERS[0])

    def fits(self, row: Row) -> bool:
        complete = all(column in row or ("." in column and has(row, column)) for column in self.columns)
        return complete and (not self.mark or self.mark in str(value(row, self.answer)))


LAYOUTS = msgspec.convert(
    yaml.safe_load(Path(__file__).with_name("layouts.yaml").read_text("utf-8")), tuple[Layout, ...]
)


def layout_of(row: Row) -> Layout:
    """The layout of a row: a known one, or one without a name for the usual columns."""
    return next((layout for layout in LAYOUTS if layout.fits(row)), None) or _usual(row)


def _usual(row: Row) -> Layout:
    known = {name.lower(): name for name in [*row][::-1]}
    problem, answer = (
        next((known.get(c, c) for c in usual if c in known or has(row, c)), usual[0])
        for usual in (PROBLEMS, ANSWERS)
    )
    read = "answer_in" if answer == ANSWERS[0] else "only_one"
    return Layout("", (), problem, answer, read, how=f"columns {problem} and {answer}")


def problem_of(layout: Layout, row: Row) -> object:
    """The problem of a row, with the head of the function or the first test. Raises KeyError without one."""
    problem, head = reach(row, layout.problem), value(row, layout.head) if layout.head else None
    if not isinstance(problem, str) or not isinstance(head, str) or not head.strip():
        return problem
    lead = "It must pass this test:" if layout.head.startswith(layout.tests) else "Begin with:"
    return f"{problem.rstrip()}\n\n{lead}\n```python\n{head.strip()}\n```"


def without_unread(layout: Layout, row: Row) -> Row:
    """The row without LiveCodeBench's pickled tests, which are megabytes and are not read."""
    unread = layout.more_tests and has(row, layout.more_tests) and not _list(row[layout.more_tests])
    return {name: value for name, value in row.items() if name != layout.more_tests} if unread else row


def known_tests(layout: Layout, row: Row) -> RowTests:
    """The tests of a row with a layout that has some. Raises ValueError with the defect."""
    tests = value(row, layout.tests)
    if setup := [line for column in layout.setup for line in _lines(value(row, column))]:
        tests = [*setup, *_lines(tests)]
    more = _list(value(row, layout.more_tests)) if layout.more_tests else []
    if more:
        tests = [*_list(tests), *more]
    entry, before = (value(row, path) if path else None for path in (layout.entry, layout.before))
    return read_tests(tests, entry, before)


def tests_of(settings: CodeTestsConfig, row: Mapping[str, object]) -> RowTests:
    """The tests of a row. Raises ValueError naming the column and its defect."""
    field, layout = settings.column("tests"), layout_of(row)
    known = bool(layout.tests) and (layout.tests == field or not has(row, field))
    if not known and not has(row, field):
        raise ValueError(f"no column {field!r} (reward.code_tests.columns)")
    try:
        if known:
            field = layout.tests
            tests = known_tests(layout, row)
        else:
            tests = read_tests(reach(row, field), value(row, settings.column("entry_point")))
        return replace(tests, entry=tests.entry or called_function(row)) if tests.calls else tests
    except ValueError as error:
        raise ValueError(f"{field!r} {error}") from None


def solution_of(settings: CodeTestsConfig, row: Mapping[str, object]) -> str | None:
    """A right program for `hora check`; None if the row has none."""
    solution = value(row, settings.column("solution"))
    known = layout_of(row).solution
    if not isinstance(solution, str) and known:
        solution = value(row, known)
    return solution if isinstance(solution, str) else None


def _lines(text: object) -> list[str]:
    return [text] if isinstance(text, str) else list(map(str, text)) if isinstance(text, list) else []


def _list(tests: object) -> list[object]:
    """The tests of LiveCodeBench as a list; empty for a pickle, which nothing here reads."""
    if isinstance(tests, str) and tests.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            tests = json.loads(tests)
    return tests if isinstance(tests, list) else []
