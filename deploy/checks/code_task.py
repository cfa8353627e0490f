"""Check of a code task: one prompt, the rewards of a right and a wrong program, and whether the data set's
solutions pass their tests."""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hora_rl.actors.verifier.code.pool import ProgramPool
from hora_rl.actors.verifier.pool import default_processes
from hora_rl.common.answers import example_program, prefill
from hora_rl.common.config import Data, Reward
from hora_rl.common.config.reward import CodeTests
from hora_rl.common.data.code import code_block
from hora_rl.common.data.datasets import Row
from hora_rl.common.data.prompts import render_text
from hora_rl.common.data.rewards import tests_of
from hora_rl.common.data.user_rewards import Answer
from hora_rl.common.errors import ConfigError, VerifierUnavailable
from hora_rl.deploy.checks.findings import Finding, ok, plural
from hora_rl.deploy.checks.judged import judge, prompt_as_read, shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IDLE = "pass"
"""The wrong program: it does nothing."""
NAMED = 5
"""Rows listed by name per problem; more are only counted."""


def programs(
    data: Data, reward: Reward, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase
) -> Iterator[Finding]:
    """Findings of a task whose completions are programs."""
    field = reward.code_tests.solution_field
    solved = [row for row in rows if isinstance(row.columns.get(field), str)]
    row = (solved or rows)[0]
    prompt = render_text(tokenizer, row.problem, data)
    read = prompt_as_read(tokenizer, row.problem, data)
    tests = tests_of(reward.code_tests, row.columns).pairs
    counted = plural(len(tests), "test") if tests else "assertions"
    yield ok("prompt", f"row {row.index}, {counted}, {read}")
    texts = [
        example_program(reward.answer, code_block(program), prefill(prompt))
        for program in (str(row.columns.get(field, IDLE)), IDLE)
    ]
    right, wrong = judge(reward, row, prefill(prompt), [texts])
    if solved:
        yield from shown(reward, right, wrong)
        yield from _solutions(reward.code_tests, solved)
        return
    yield list(shown(reward, right, wrong))[1]
    fix = f"add the column {field!r} to some rows, or name yours in reward.code_tests.solution_field"
    says = f"no row has a program in {field!r}, and from tests alone none can be made: they are not tried"
    yield Finding("warn", "right answer", says, fix)


def _solutions(settings: CodeTests, rows: Sequence[Row]) -> Iterator[Finding]:
    """Whether the rows' solutions pass. Raises ConfigError if tests cannot be run, because a run would stop
    at them."""
    field = settings.solution_field
    found = list(zip(rows, asyncio.run(_tried(settings, rows)), strict=True))
    broken = [result for _, result in found if isinstance(result, BaseException)]
    if broken:
        raise ConfigError(
            f"{broken[0]}: change these tests or leave the row out ({len(broken)} of "
            f"{plural(len(rows), 'row')} that were tried; a run stops at such a row)"
        )
    failed = [row for row, result in found if result != 1.0]
    for row in failed[:NAMED]:
        says = f"row {row.index}: its own program in {field!r} does not pass its tests: {row.problem!r:.60}"
        if missing := _missing(str(row.columns[field])):
            says += f" (it imports {', '.join(missing)}: programs have Python's standard library alone)"
        yield Finding("warn", "solutions", says, "correct the tests or the program")
    passed = f"{len(rows) - len(failed)} of the first {plural(len(rows), 'solution')} pass their tests"
    yield Finding("warn" if failed else "ok", "solutions", passed)


def _missing(program: str) -> list[str]:
    """Imported modules that are not in Python's standard library."""
    try:
        nodes = list(ast.walk(ast.parse(program)))
    except (SyntaxError, ValueError):
        return []
    named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return sorted({name.partition(".")[0] for name in named} - sys.stdlib_module_names)


async def _tried(settings: CodeTests, rows: Sequence[Row]) -> list[float | BaseException]:
    """Reward of each row's solution, or the ValueError of tests that cannot be run."""
    pool = ProgramPool(settings, default_processes())
    programs = [code_block(str(row.columns[settings.solution_field])) for row in rows]
    answers = [
        Answer(row.problem, program, None, row.columns, row.index)
        for row, program in zip(rows, programs, strict=True)
    ]
    try:
        results = await asyncio.gather(*map(pool.score, answers), return_exceptions=True)
    finally:
        pool.close()
    for result in results:
        if isinstance(result, VerifierUnavailable):
            raise ConfigError(f"reward.code_tests: {result}")
        if isinstance(result, BaseException) and not isinstance(result, ValueError):
            raise result
    return results
