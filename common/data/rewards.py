"""Rewards of one completion: accuracy and the weighted sum (paper, section 4). `common/answers.py` has the
format reward and finds answers; `common/data/user_rewards.py` has user rewards.

`accuracy` is 1.0 if the answer equals the gold answer (`common.equality`), else 0.0; for a `reasoning-gym`
task, its scorer's value from 0.0 to 1.0. It is the default success.

All functions are quick, also on hostile text."""

import math
import string
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache

from hora_rl.common.config import Config, RewardConfig
from hora_rl.common.config.reward import CodeTestsConfig
from hora_rl.common.data.code import RowTests, called_function, read_tests
from hora_rl.common.data.columns import has, reach, value
from hora_rl.common.data.datasets import Candidate, Dataset, load_held_out
from hora_rl.common.data.gym import TASK
from hora_rl.common.data.layouts import known_tests, layout_of
from hora_rl.common.data.user_rewards import columns_of, is_group
from hora_rl.common.equality import gold_fault
from hora_rl.common.errors import ConfigError
from hora_rl.common.reward_names import function_of
from hora_rl.common.user_code import is_user_function, working_folder


def gold_test(reward: RewardConfig) -> Callable[[Candidate], str | None]:
    """The function that returns why a row cannot be used with these rewards. `accuracy` needs a verifiable
    gold answer, unless the task has a scorer; `code_tests` needs tests; a user reward needs the columns it
    names, by default the gold answer with any JSON value; `format` needs nothing."""
    own = [function_of(name) for name in reward.names if is_user_function(name)]

    def unusable(row: Candidate) -> str | None:
        try:
            if "code_tests" in reward.names:
                tests_of(reward.code_tests, row.columns)
        except ValueError as error:
            return str(error)
        gold = None
        if "accuracy" in reward.names:
            gold = row.trouble or (_too_long(reward, row) if TASK in row.columns else _not_verifiable(row))
        return gold or next(filter(None, (_lacks(name, row) for name in own)), None)

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


def tests_of(settings: CodeTestsConfig, row: Mapping[str, object]) -> RowTests:
    """The tests of a row. Raises ValueError naming the column and its defect."""
    field, layout = settings.tests_field, layout_of(row)
    known = bool(layout.tests) and (layout.tests == field or not has(row, field))
    if not known and not has(row, field):
        raise ValueError(f"no column {field!r} (reward.code_tests.tests_field)")
    try:
        if known:
            field = layout.tests
            tests = known_tests(layout, row)
        else:
            tests = read_tests(reach(row, field), value(row, settings.entry_field))
        return replace(tests, entry=tests.entry or called_function(row)) if tests.calls else tests
    except ValueError as error:
        raise ValueError(f"{field!r} {error}") from None


def solution_of(settings: CodeTestsConfig, row: Mapping[str, object]) -> str | None:
    """A right program for `hora check`; None if the row has none."""
    found = value(row, settings.solution_field)
    known = layout_of(row).solution
    if not isinstance(found, str) and known:
        found = value(row, known)
    return found if isinstance(found, str) else None


def _too_long(reward: RewardConfig, row: Candidate) -> str | None:
    """For a task with a scorer, which needs no gold answer."""
    most = reward.max_answer_chars
    longer = isinstance(row.answer, str) and len(row.answer) > most
    return f"{row.field!r} is longer than reward.max_answer_chars = {most}" if longer else None


def _not_verifiable(row: Candidate) -> str | None:
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
        found = value(row.columns, column)
        given = [str(choice) for choice in found] if isinstance(found, list) else []
        number = isinstance(value(row.columns, row.field), int)
        places = map(str, range(len(given))) if number else string.ascii_uppercase[: len(given)]
        if row.answer in {*places} - {*given} and not all(choice in row.problem for choice in given):
            return (
                f"{row.field!r} is {row.answer!r} of {column!r}, which is not in the prompt: write these "
                "into the problem"
            )
    return None


def usable_held_out(config: Config) -> Dataset:
    """The problems of `config.evaluation` that its rewards can use. Raises as `load_held_out`."""
    own = config.evaluated
    return load_held_out(config.evaluation, own.data, gold_test(own.reward))


def group_functions(reward: RewardConfig, gate: str | None) -> tuple[str, ...]:
    """The user functions that rank groups. Raises ConfigError if the success or the warm-up `gate` uses one:
    Phase A counts both before a group is complete."""
    own = dict.fromkeys(function_of(name) for name in reward.names if is_user_function(name))
    groups = tuple(function for function in own if is_group(function))
    for key, name in (("reward.success", reward.success), ("allocation.warmup.reward", gate)):
        if name is not None and function_of(name) in groups:
            raise ConfigError(
                f"{key} ({name}) ranks a whole group, and Phase A counts it before its group is complete: "
                "name a reward of single completions"
            )
    return groups


def total(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Weighted sum of the rewards that have a weight. Raises ValueError naming a missing reward."""
    missing = [name for name in weights if name not in rewards]
    if missing:
        raise ValueError(
            f"reward {missing[0]!r} has a weight but was not computed (there are: {sorted(rewards)})"
        )
    return math.fsum(weight * rewards[name] for name, weight in weights.items())
