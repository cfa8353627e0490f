"""The gold answer of a row: where it stands, and whether the run's rewards can use the row."""

import json
import math
import string
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

from hora_rl.actors.verifier.answers import extract_boxed, extract_tags
from hora_rl.actors.verifier.equality import gold_fault, solution_fault
from hora_rl.common.config import RewardConfig
from hora_rl.common.config.reward import MAX_ANSWER_CHARS
from hora_rl.common.data.gym import TASK
from hora_rl.common.data.layouts import Layout, tests_of, without_unread
from hora_rl.common.data.rewards import columns_of
from hora_rl.common.data.rows import LONE_SURROGATE, Json, has, reach, value
from hora_rl.common.errors import ConfigError
from hora_rl.common.user_code import function_of, is_user_function, working_folder

NO_ANSWER = ("proof", "notfound", "not found")
"""What stands in the answer's column of NuminaMath's rows without an answer."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row with a problem, before its rewards check it. `answer` comes from the column `field`; `trouble` is
    the reason if there is none. `problem` is what the prompt shows of it."""

    answer: Json
    field: str
    trouble: str | None
    columns: Mapping[str, object]
    problem: str = ""


Unusable = Callable[[Candidate], str | None]
"""Returns the reason why a row cannot be used; None if it can."""


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
    return None if isinstance(answer, str) and answer.strip().lower() in NO_ANSWER else answer


def only_one(answer: object) -> object:
    """The text in a list of one text, also written as JSON: `["34"]`."""
    text = value({"list": answer}, "list.0") if isinstance(answer, str | list) else None
    alone = isinstance(text, str) and not has({"list": answer}, "list.1")
    return text if alone else answer_in(answer)


READS: dict[str, Callable[[object], object]] = {
    read.__name__: read for read in (answer_in, boxed, only_one, unless_a_proof)
}
"""Functions that `Layout.read` names."""


def candidate_of(named: str | None, layout: Layout, raw: Mapping[str, object]) -> Candidate:
    field, columns = named or layout.answer, without_unread(layout, raw)
    if not has(raw, field):
        return Candidate(None, field, f"no column {field!r} (data.answer_field)", columns)
    content = reach(raw, field)
    read = READS[layout.read if field == layout.answer else answer_in.__name__](content)
    if read is None and content is not None:
        return Candidate(None, field, f"{field!r} holds no answer: {content!r:.60}", columns)
    try:
        return Candidate(gold_answer(read), field, None, columns)
    except ValueError as error:
        return Candidate(None, field, f"{field!r} {error}", columns)


def gold_answer(value: object) -> Json:
    """A normalised gold answer: numbers as text (27.0 is `27`, 0.00005 is `0.00005`), text stripped, other
    JSON values unchanged. Raises ValueError for a value that is not JSON."""
    if isinstance(value, float) and math.isfinite(value):
        # Not repr(): no verifier parses 5e-05.
        return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")
    if isinstance(value, Decimal) and value.is_finite():
        return format(value.normalize(), "f")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        if half := LONE_SURROGATE.search(value):
            raise ValueError(f"holds U+{ord(half[0]):X}, half of a character")
        return value.strip()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ValueError(f"is not a JSON value: {value!r:.60}") from None
    return value


def gold_test(reward: RewardConfig) -> Callable[[Candidate], str | None]:
    """The function that returns why a row cannot be used. `accuracy` needs a verifiable gold answer or the
    task's scorer, `code_tests` tests, a user reward its columns, by default any gold answer; `format`
    nothing."""
    functions = [function_of(name) for name in reward.names if is_user_function(name)]

    def unusable(row: Candidate) -> str | None:
        try:
            if "code_tests" in reward.names:
                tests_of(reward.code_tests, row.columns)
        except ValueError as error:
            return str(error)
        gold = None
        if "accuracy" in reward.names:
            gold = row.trouble or _not_verifiable(row)
        return gold or next(filter(None, (_lacks(name, row) for name in functions)), None)

    return unusable


def _lacks(name: str, row: Candidate) -> str | None:
    """Which column that a user reward needs is missing from the row."""
    columns = _needed(name)
    if columns is None:
        return row.trouble
    missing = [column for column in columns if not has(row.columns, column)]
    return f"no column {missing[0]!r}, which {name} names in `columns`" if missing else None


@cache
def _needed(name: str) -> tuple[str, ...] | None:
    # Other checks report a function that cannot be loaded.
    with suppress(ConfigError), working_folder():
        return columns_of(name)
    return None


def _not_verifiable(row: Candidate) -> str | None:
    if TASK in row.columns:  # the task's scorer needs no gold answer
        longer = isinstance(row.answer, str) and len(row.answer) > MAX_ANSWER_CHARS
        return f"{row.field!r} is longer than {MAX_ANSWER_CHARS} characters" if longer else None
    if isinstance(row.answer, list) and len(row.answer) > 1:
        says = f"holds {len(row.answer)} answers, of which one can be named, as {row.field}.0"
        return f"{row.field!r} {says} (data.answer_field): {repr(row.answer)[:60]}"
    if not isinstance(row.answer, str) or not row.answer:
        return f"{row.field!r} is not an answer: {repr(row.answer)[:60]}"
    fault = gold_fault(row.answer)
    return f"{row.field!r} {fault}: {repr(row.answer)[:60]}" if fault else _not_shown(row)


def _not_shown(row: Candidate) -> str | None:
    """Why nobody can give the answer: it is the letter or place of a choice that the prompt does not show."""
    for column in ("options", "choices", "choices.text"):
        options = value(row.columns, column)
        choices = [str(choice) for choice in options] if isinstance(options, list) else []
        number = isinstance(value(row.columns, row.field), int)
        places = map(str, range(len(choices))) if number else string.ascii_uppercase[: len(choices)]
        if row.answer in {*places} - {*choices} and not all(choice in row.problem for choice in choices):
            return (
                f"{row.field!r} is {row.answer!r} of {column!r}, which is not in the prompt: write these "
                "into the problem"
            )
    return None
