"""Check of the task: one prompt, the stop tokens, and the rewards of a right and a wrong answer; of a code
task also the sandbox, and whether the data set's solutions pass their tests."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
from hora_rl.common.data.special_tokens import named, stop_texts, stop_tokens
from hora_rl.common.errors import ConfigError, VerifierUnavailable
from hora_rl.common.model.model_files import vocabulary_rows
from hora_rl.common.user_code import working_folder
from hora_rl.deploy.checks.configuration import OWN_FAULTS
from hora_rl.deploy.checks.findings import Finding, Target, must, ok, plural, should, warn

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
    data, reward = config.data, config.reward
    rows = load_dataset(data.model_copy(update={"limit": ROWS}), gold_test(reward)).rows
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    settings, programs = reward.code_tests, "code_tests" in reward.names
    solved = [row for row in rows if programs and solution_of(settings, row.columns) is not None]
    row = (solved or rows)[0]
    opened = prefill(render_text(tokenizer, row.problem, data, row.messages))
    gold = f"gold answer {_text(row.answer)!r:.200}"
    if programs:
        tests = tests_of(settings, row.columns)
        gold = "assertions" if tests.asserts else plural(len(tests.pairs or tests.calls), "test")
    tokens = render(tokenizer, row.problem, data, row.messages)
    # As the model reads it: decoded from its tokens.
    text, last = (tokenizer.decode(t, clean_up_tokenization_spaces=False) for t in (tokens, tokens[-1:]))
    read = f"{len(tokens)} tokens, the last {last!r}\n{_quoted(str(text))}"
    yield ok("prompt", f"{row.location}, {gold}, {read}")
    if programs:
        pair = (solution_of(settings, row.columns) or IDLE, IDLE)
        forms = [[example_program(reward.answer, code_block(program), opened) for program in pair]]
    elif reward.judged != reward.names:
        yield ok("right answer", f"environment {config.environment.path} says what an episode earned")
        return
    else:
        forms = _forms(data, reward, opened, [_text(row.answer), _wrong(row, rows)])
    (earned, success), (unearned, mistaken) = _judge(reward, row, opened, forms)
    if programs and not solved:
        field = settings.column("solution")
        says = f"no row has a program in {field!r}, and from tests alone none can be made: they are not tried"
        fix = f"add the column {field!r} to some rows, or name yours in reward.code_tests.columns"
        yield warn("right answer", says, fix)
    elif programs or row.answer is not None or TASK not in row.columns:
        fix = (
            "made from the gold answer, and no success: unless your rewards ask for another form, no "
            "completion will be one; look at reward.answer, reward.success and reward.success_at"
        )
        yield should(success or reward.success is None, "right answer", earned, fix)
    yield should(not mistaken, "wrong answer", unearned, "")
    if solved:
        yield from _solutions(settings, solved)


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


def _judge(
    reward: RewardConfig, row: Row, opened: str, forms: Sequence[Sequence[str]]
) -> list[tuple[str, bool]]:
    """What the completions of a form earn, in words, and whether each is a success: of the first form whose
    first completion is one, else of the first form. Raises ConfigError if a reward fails."""
    groups = [
        [Answer(row.problem, opened + text, row.answer, row.columns, row.index) for text in form]
        for form in forms
    ]
    try:
        with working_folder():
            scores = asyncio.run(_score(reward, groups))
    except (*OWN_FAULTS, VerifierUnavailable) as error:
        raise ConfigError(f"reward: scoring an answer to {row.location} failed: {error}") from None
    best = next((i for i, rewards in enumerate(scores) if reward.succeeded(rewards[0])), 0)
    judged = []
    for text, rewards in zip(forms[best], scores[best], strict=True):
        success = reward.succeeded(rewards)
        parts = ", ".join(f"{name} {value:g}" for name, value in rewards.items())
        verdict = "" if reward.success is None else ", a success" if success else ", no success"
        says = f"{parts}: reward {total(rewards, reward.weights):g}{verdict}\n{_quoted(text)}"
        judged.append((says, success))
    return judged


async def _score(reward: RewardConfig, groups: Sequence[Sequence[Answer]]) -> list[list[dict[str, float]]]:
    pool, scores = VerifierPool(reward), []
    try:
        for group in groups:
            alone, among = await pool.score_batch(group), await pool.score_group(group)
            scores.append([rewards | more for rewards, more in zip(alone, among, strict=True)])
        return scores
    finally:
        pool.close()


def _quoted(text: str) -> str:
    """Indent `text`, escape control characters, and cut the middle of a long text."""
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]}\n[… {len(text) - SHOWN} characters …]\n{text[-SHOWN // 2 :]}"
    return "\n".join(f"      | {line}" for line in visible(text).split("\n"))


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
        yield warn("solutions", says, "correct the tests or the program")
    passed = f"{len(rows) - len(failed)} of the first {plural(len(rows), 'solution')} pass their tests"
    yield Finding("warn" if failed else "ok", "solutions", passed)


def _missing(program: str) -> list[str]:
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
    finally:
        box.close()
    layers = (f"without {name} ({why})" if why else name for name, why in box.layers.items())
    says = f"limits, no privileges, {', '.join(layers)}; programs have {HAVE}"
    says += "; the verifier's machines may differ" if target.on_cluster else ""
    if result.out != b"42\n":
        why = result.err.decode(errors="replace").strip()[-200:] or f"exit status {result.status}"
        says = f"a first program did not run: {why}"
    yield must(result.out == b"42\n", "sandbox", says, "see reward.code_tests")
