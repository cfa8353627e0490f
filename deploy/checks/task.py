"""Check of the task: one prompt, the stop tokens, and the rewards of a right and a wrong answer; of a code
task also the sandbox, and whether the data set's solutions pass their tests."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hora_rl.actors.data.datasets import load_dataset
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.actors.verifier.answers import ANSWERS, example, example_program
from hora_rl.actors.verifier.code.runner import ProgramPool
from hora_rl.actors.verifier.equality import equal
from hora_rl.actors.verifier.pool import VerifierPool, default_processes
from hora_rl.actors.verifier.sandbox.sandbox import Sandbox
from hora_rl.common.answer_format import instructions, prefill
from hora_rl.common.config import Config, DataConfig, RewardConfig
from hora_rl.common.config.reward import CodeTestsConfig
from hora_rl.common.console import visible
from hora_rl.common.data.code import code_block
from hora_rl.common.data.gym import TASK
from hora_rl.common.data.layouts import solution_of, tests_of
from hora_rl.common.data.prompts import load_tokenizer, refuse_unknown, render, render_text
from hora_rl.common.data.rewards import Answer, total
from hora_rl.common.data.rows import Json, Row
from hora_rl.common.data.stop_tokens import named, stop_texts, stop_tokens
from hora_rl.common.errors import ConfigError, VerifierUnavailable
from hora_rl.common.model.model_files import vocabulary_rows
from hora_rl.common.user_code import working_folder
from hora_rl.deploy.checks.configuration import OWN_FAULTS
from hora_rl.deploy.checks.findings import Finding, Target, ok, plural, should

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROWS = 64
"""Rows to search for a wrong answer."""
SHOWN = 1500
"""Characters of a text to print."""
IDLE = "pass"
"""The wrong program: it does nothing."""
NAMED = 5
"""Rows listed by name per problem; more are only counted."""
HAVE = "Python's standard library, and no folder to write to"


def stops(target: Target) -> Iterator[Finding]:
    """The stop tokens."""
    config = target.config
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    ids = stop_tokens(config, tokenizer)
    refuse_unknown(tokenizer, ids, vocabulary_rows(config.model), "the list of stop tokens")
    yield ok("stop tokens", named(tokenizer, ids, stop_texts(config.rollout.stop, tokenizer)))


def task(target: Target) -> Iterator[Finding]:
    """One prompt per source, with a right and a wrong answer scored by the run's rewards."""
    if not target.trains:
        return
    for source in target.config.source_names:
        findings = _task(target.config.of(source))
        yield from (replace(f, says=f"{source}: {f.says}") for f in findings) if source else findings


def _task(config: Config) -> Iterator[Finding]:
    """The task of one source."""
    rows = load_dataset(config.data.model_copy(update={"limit": ROWS}), gold_test(config.reward)).rows
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    if "code_tests" in config.reward.names:
        yield from _programs(config.data, config.reward, rows, tokenizer)
        return
    row, prompt = rows[0], render_text(tokenizer, rows[0].problem, config.data, rows[0].messages)
    read = _as_read(tokenizer, row, config.data)
    yield ok("prompt", f"{row.location}, gold answer {_text(row.answer)!r:.200}, {read}")
    if config.reward.judged != config.reward.names:
        yield ok("right answer", f"environment {config.environment.path} says what an episode earned")
        return
    opened, wrong_answer = prefill(prompt), _wrong(row, rows)
    forms = _forms(config.data, config.reward, opened, [_text(row.answer), wrong_answer])
    right, wrong = _judge(config.reward, row, opened, forms)
    findings = list(_shown(config.reward, right, wrong))
    yield from findings if row.answer is not None or TASK not in row.columns else findings[1:]


def _forms(data: DataConfig, reward: RewardConfig, opened: str, answers: Sequence[str]) -> list[list[str]]:
    """Completions with `answers` in the form of `reward.answer`. A plain answer is used if the form allows it
    and the prompt does not ask for the form. A user function gets every form, the plainest first."""
    mode = reward.answer
    if mode not in ANSWERS:
        forms = ["plain", "final", "boxed", "tags"]
    else:
        in_form = data.chat or data.system == instructions(mode, reward.names)
        forms = [mode if in_form or mode in ("tags", "boxed") else "plain"]
    return [[example(form, answer, opened) for answer in answers] for form in forms]


def _wrong(row: Row, rows: Sequence[Row]) -> str:
    """A wrong answer: another row's answer, or a number."""
    others = (_text(r.answer) for r in rows if r.answer not in (row.answer, None))
    if TASK in row.columns:  # answers may be text, and the task has a scorer
        return next(others, "nothing")
    return next((a for a in [*others, "0", "1"] if equal(_text(row.answer), a) is False), "nothing")


def _text(answer: Json) -> str:
    """A gold answer as a completion would write it."""
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class _Judged:
    """An example completion with its rewards."""

    text: str
    rewards: dict[str, float]
    success: bool


def _shown(reward: RewardConfig, right: _Judged, wrong: _Judged) -> Iterator[Finding]:
    """Findings for the rewards of a right and a wrong answer."""
    earned, unearned = (f"{_earned(reward, each)}\n{_quoted(each.text)}" for each in (right, wrong))
    fix = (
        "made from the gold answer, and no success: unless your rewards ask for another form, no completion "
        "will be one; look at reward.answer, reward.success and reward.success_at"
    )
    yield should(right.success or reward.success is None, "right answer", earned, fix)
    yield should(not wrong.success, "wrong answer", unearned, "")


def _judge(reward: RewardConfig, row: Row, opened: str, texts: Sequence[Sequence[str]]) -> list[_Judged]:
    """Score the lists of completions. Returns the first list whose first completion is a success, else the
    first list. Raises ConfigError if a reward fails."""
    forms = [
        [Answer(row.problem, opened + text, row.answer, row.columns, row.index) for text in form]
        for form in texts
    ]
    try:
        with working_folder():
            scored = asyncio.run(_score(reward, forms))
    except (*OWN_FAULTS, VerifierUnavailable) as error:
        raise ConfigError(f"reward: scoring an answer to {row.location} failed: {error}") from None
    judged = [
        [_Judged(text, r, reward.succeeded(r)) for text, r in zip(form, rewards, strict=True)]
        for form, rewards in zip(texts, scored, strict=True)
    ]
    return next((form for form in judged if form[0].success), judged[0])


async def _score(reward: RewardConfig, groups: Sequence[Sequence[Answer]]) -> list[list[dict[str, float]]]:
    """Rewards of each answer, including group rewards."""
    pool, scores = VerifierPool(reward), []
    try:
        for group in groups:
            alone, among = await pool.score_batch(group), await pool.score_group(group)
            scores.append([rewards | more for rewards, more in zip(alone, among, strict=True)])
        return scores
    finally:
        pool.close()


def _earned(reward: RewardConfig, judged: _Judged) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in judged.rewards.items())
    success = "" if reward.success is None else ", a success" if judged.success else ", no success"
    return f"{parts}: reward {total(judged.rewards, reward.weights):g}{success}"


def _as_read(tokenizer: PreTrainedTokenizerBase, row: Row, data: DataConfig) -> str:
    """The prompt that the model reads, decoded from its tokens, with their number and the last token."""
    tokens = render(tokenizer, row.problem, data, row.messages)
    text = tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
    last = tokenizer.decode(tokens[-1:], clean_up_tokenization_spaces=False)
    return f"{len(tokens)} tokens, the last {last!r}\n{_quoted(str(text))}"


def _quoted(text: str) -> str:
    """Indent `text`, escape control characters, and cut the middle of a long text."""
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]}\n[… {len(text) - SHOWN} characters …]\n{text[-SHOWN // 2 :]}"
    return "\n".join(f"      | {line}" for line in visible(text).split("\n"))


def _programs(
    data: DataConfig, reward: RewardConfig, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase
) -> Iterator[Finding]:
    """Findings of a task whose completions are programs."""
    field = reward.code_tests.column("solution")
    solved = [row for row in rows if solution_of(reward.code_tests, row.columns) is not None]
    row = (solved or rows)[0]
    prompt = render_text(tokenizer, row.problem, data, row.messages)
    read = _as_read(tokenizer, row, data)
    tests = tests_of(reward.code_tests, row.columns)
    counted = "assertions" if tests.asserts else plural(len(tests.pairs or tests.calls), "test")
    yield ok("prompt", f"{row.location}, {counted}, {read}")
    texts = [
        example_program(reward.answer, code_block(program), prefill(prompt))
        for program in (solution_of(reward.code_tests, row.columns) or IDLE, IDLE)
    ]
    right, wrong = _judge(reward, row, prefill(prompt), [texts])
    if solved:
        yield from _shown(reward, right, wrong)
        yield from _solutions(reward.code_tests, solved)
        return
    yield list(_shown(reward, right, wrong))[1]
    fix = f"add the column {field!r} to some rows, or name yours in reward.code_tests.columns"
    says = f"no row has a program in {field!r}, and from tests alone none can be made: they are not tried"
    yield Finding("warn", "right answer", says, fix)


def _solutions(settings: CodeTestsConfig, rows: Sequence[Row]) -> Iterator[Finding]:
    """Whether the rows' solutions pass. Raises ConfigError if tests cannot be run, because a run would stop
    at them."""
    results = list(zip(rows, asyncio.run(_tried(settings, rows)), strict=True))
    broken = [(row, result) for row, result in results if isinstance(result, BaseException)]
    if broken:
        raise ConfigError(
            f"{broken[0][0].location}: {broken[0][1]}: change these tests or leave the row out "
            f"({len(broken)} of {plural(len(rows), 'row')} that were tried; a run stops at such a row)"
        )
    failed = [row for row, result in results if result != 1.0]
    for row in failed[:NAMED]:
        says = f"{row.location}: its own program does not pass its tests: {row.problem!r:.60}"
        if missing := _missing(solution_of(settings, row.columns) or ""):
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


async def _tried(settings: CodeTestsConfig, rows: Sequence[Row]) -> list[float | BaseException]:
    """Reward of each row's solution, or the ValueError of tests that cannot be run."""
    pool = ProgramPool(settings, default_processes())
    programs = [code_block(solution_of(settings, row.columns) or "") for row in rows]
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


def sandbox(target: Target) -> Iterator[Finding]:
    """The layers of the `code_tests` sandbox that work here. Raises SandboxError if they do not suffice."""
    if "code_tests" not in target.config.reward_names:
        return
    box = Sandbox()
    try:
        result = box.run("print(6 * 7)")
        where = "; the verifier's machines may differ" if target.on_cluster else ""
    finally:
        box.close()
    held = ", ".join(name for name, why in box.layers.items() if not why)
    missing = "; ".join(f"without {name}: {why}" for name, why in box.layers.items() if why)
    says = f"limits, no privileges, {held}" + (f"; {missing}" if missing else "") + where
    if result.out != b"42\n":
        why = result.err.decode(errors="replace").strip()[-200:] or f"exit status {result.status}"
        yield Finding("fail", "sandbox", f"a first program did not run: {why}", "see reward.code_tests")
        return
    yield ok("sandbox", f"{says}; programs have {HAVE}")
