r"""The layouts of published data sets: which columns hold the problem, the gold answer and the tests.

A row has the first layout of `LAYOUTS` whose columns it has, else one of the usual columns. The keys
`data.prompt_field`, `data.answer_field` and `reward.code_tests.tests_field` win over it. Columns are paths
(`common/data/columns.py`)."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from hora_rl.common.answers import extract_boxed, extract_tags
from hora_rl.common.data.code import RowTests, read_tests
from hora_rl.common.data.columns import has, reach, value
from hora_rl.common.equality.solutions import solution_fault

Row = Mapping[str, object]
Read = Callable[[object], object]
PROBLEMS = ("problem", "question", "prompt", "query", "context_messages", "messages", "input")
ANSWERS = (
    *("answer", "final_answer", "expected_answer", "ground_truth", "reward_model.ground_truth"),
    *("gold", "gt", "label", "target", "solution"),
)
_NONE = ("proof", "notfound", "not found")
"""What stands in the answer's column of NuminaMath's rows without an answer."""


def behind_hashes(text: object) -> object:
    """The line behind the last `####`, which ends the text; a value without one as it is."""
    if not isinstance(text, str):
        return text
    answer = text.rpartition("####")[2].strip() if "####" in text else ""
    return answer if answer and "\n" not in answer and "#" not in answer else text


def boxed(solution: object) -> object:
    r"""The content of the last `\boxed{}` of a solution; None without one."""
    return extract_boxed(solution) if isinstance(solution, str) else None


def answer_in(text: object) -> object:
    r"""The answer of a solution: in its last `<answer>` tags, in its last `\boxed{}`, or behind its `####`. A
    text that is an answer by itself, such as `\boxed{1}, \boxed{2}`, and any other value as it is."""
    if not isinstance(text, str):
        return text
    alone = extract_tags(text) or (boxed(text) if solution_fault(text) else None)
    return alone or behind_hashes(text)


def unless_a_proof(answer: object) -> object:
    return None if isinstance(answer, str) and answer.strip().lower() in _NONE else answer


def only_one(answer: object) -> object:
    """The text in a list of one text, also written as JSON: `["34"]`."""
    found = value({"list": answer}, "list.0") if isinstance(answer, str | list) else None
    alone = isinstance(found, str) and not has({"list": answer}, "list.1")
    return found if alone else answer_in(answer)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the rows of a data set hold what.

    `columns` recognise it, with `mark` in the text of the answer. `answer` is the column of the gold answer,
    found in it by `read`; `how` says so. `head` is a column shown below the problem: the head of the function
    to write, or the first test. `tests` and `more_tests` are columns of tests, `setup` the code before them,
    `entry` the function's name, `before` the beginning of the program, and `solution` a right program."""

    name: str
    columns: tuple[str, ...]
    problem: str
    answer: str = "answer"
    read: Read = answer_in
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
        found = all(column in row or ("." in column and has(row, column)) for column in self.columns)
        return found and (not self.mark or self.mark in str(value(row, self.answer)))


_BOXED = r"answer in \boxed{} of solution"
LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "LiveCodeBench",
        ("question_content", "public_test_cases"),
        problem="question_content",
        how="tests in public_test_cases; private_test_cases is not read where it is a pickle",
        head="starter_code",
        tests="public_test_cases",
        more_tests="private_test_cases",
        entry="metadata.func_name",
    ),
    Layout(
        "APPS or TACO",
        ("question", "input_output"),
        problem="question",
        head="starter_code",
        tests="input_output",
        solution="solutions.0",
    ),
    Layout(
        "LeetCodeDataset",
        ("problem_description", "test", "entry_point"),
        problem="problem_description",
        head="starter_code",
        tests="test",
        entry="entry_point",
        before="prompt",
        solution="completion",
    ),
    Layout(
        "HumanEval",
        ("prompt", "test", "entry_point"),
        problem="prompt",
        tests="test",
        entry="entry_point",
        before="prompt",
        solution="canonical_solution",
    ),
    *(
        Layout(
            "MBPP",
            (problem, "test_list"),
            problem=problem,
            head="test_list.0",
            tests="test_list",
            setup=("test_imports", "test_setup_code"),
            solution="code",
        )
        for problem in ("text", "prompt")
    ),
    Layout(
        "verl, as DAPO-Math-17k",
        ("prompt", "reward_model.ground_truth"),
        problem="prompt",
        answer="reward_model.ground_truth",
        read=only_one,
        how="answer or tests in reward_model.ground_truth",
        tests="reward_model.ground_truth",
    ),
    Layout("GSM8K", ("question", "answer"), problem="question", mark="####", how="answer behind ####"),
    *(
        Layout(
            name, ("problem", "answer", *more), problem="problem", read=unless_a_proof, how="answer in answer"
        )
        for name, more in (
            ("Big-Math", ("llama8b_solve_rate",)),
            ("OpenR1-Math", ("generations", "problem_type")),
            ("NuminaMath-1.5", ("solution", "problem_type", "question_type")),
            ("MATH", ("solution", "level")),
            ("DeepScaleR", ("solution",)),
        )
    ),
    *(
        Layout(name, ("problem", "solution", *more), "problem", "solution", boxed, how=_BOXED)
        for name, more in (("MATH", ("level",)), ("NuminaMath", ()))
    ),
    Layout("TRL", ("prompt", "solution"), "prompt", "solution", answer_in, how="answer in solution"),
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
    read = answer_in if answer == ANSWERS[0] else only_one
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


def _lines(text: object) -> list[str]:
    return [text] if isinstance(text, str) else list(map(str, text)) if isinstance(text, list) else []


def _list(tests: object) -> list[object]:
    """The tests of LiveCodeBench as a list; empty for a pickle, which nothing here reads."""
    if isinstance(tests, str) and tests.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            tests = json.loads(tests)
    return tests if isinstance(tests, list) else []
