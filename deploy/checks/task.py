"""Check of the task: one prompt, the stop tokens, and the rewards of a right and a wrong answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hora_rl.common.answers import ANSWERS, example, instructions, prefill
from hora_rl.common.config import Config, Data, Reward
from hora_rl.common.data.datasets import Json, Row, load_dataset
from hora_rl.common.data.gym import TASK
from hora_rl.common.data.prompts import load_tokenizer, render_text
from hora_rl.common.data.rewards import gold_test
from hora_rl.common.data.stop_tokens import named, stop_tokens
from hora_rl.common.equality import quick_verdict
from hora_rl.deploy.checks.code_task import programs
from hora_rl.deploy.checks.findings import Finding, Target, ok
from hora_rl.deploy.checks.judged import judge, prompt_as_read, shown

ROWS = 64
"""Rows to search for a wrong answer."""


def stops(target: Target) -> Iterator[Finding]:
    """The stop tokens."""
    config = target.config
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    yield ok("stop tokens", named(tokenizer, stop_tokens(config, tokenizer)))


def task(target: Target) -> Iterator[Finding]:
    """One prompt per source, with a right and a wrong answer scored by the run's rewards."""
    if not target.trains:
        return
    for source in target.config.source_names:
        found = _task(target.config.of(source))
        yield from (replace(f, says=f"{source}: {f.says}") for f in found) if source else found


def _task(config: Config) -> Iterator[Finding]:
    """The task of one source."""
    rows = load_dataset(config.data.model_copy(update={"limit": ROWS}), gold_test(config.reward)).rows
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    if "code_tests" in config.reward.names:
        yield from programs(config.data, config.reward, rows, tokenizer)
        return
    row, prompt = rows[0], render_text(tokenizer, rows[0].problem, config.data)
    read = prompt_as_read(tokenizer, row.problem, config.data)
    yield ok("prompt", f"row 0, gold answer {_text(row.answer)!r:.200}, {read}")
    if config.reward.judged != config.reward.names:
        yield ok("right answer", f"environment {config.environment.path} says what an episode earned")
        return
    opened, wrong_answer = prefill(prompt), _wrong(row, rows)
    forms = _forms(config.data, config.reward, opened, [_text(row.answer), wrong_answer])
    right, wrong = judge(config.reward, row, opened, forms)
    found = list(shown(config.reward, right, wrong))
    yield from found if row.answer is not None or TASK not in row.columns else found[1:]


def _forms(data: Data, reward: Reward, opened: str, answers: Sequence[str]) -> list[list[str]]:
    """Completions with `answers` in the form of `reward.answer`. A plain answer is used if the form allows it
    and the prompt does not ask for the form. A user function gets every form, the plainest first."""
    mode = reward.answer
    if mode not in ANSWERS:
        forms = ["plain", "final", "boxed", "tags"]
    else:
        asked = data.chat or data.system == instructions(mode, reward.names)
        forms = [mode if asked or mode in ("tags", "boxed") else "plain"]
    return [[example(form, answer, opened) for answer in answers] for form in forms]


def _wrong(row: Row, rows: Sequence[Row]) -> str:
    """A wrong answer: another row's answer, or a number."""
    others = (_text(r.answer) for r in rows if r.answer not in (row.answer, None))
    if TASK in row.columns:  # answers may be text, and the task has a scorer
        return next(others, "nothing")
    return next((a for a in [*others, "0", "1"] if quick_verdict(_text(row.answer), a) is False), "nothing")


def _text(answer: Json) -> str:
    """A gold answer as a completion would write it."""
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
