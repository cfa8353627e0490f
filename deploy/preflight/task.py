"""The task as the model meets it: one prompt, what ends a completion, and what a right and a wrong answer
earn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from actors.verifier.pool import VerifierPool, VerifierUnavailable
from common.answers import ANSWERS, example, prefill
from common.config import Config
from common.datasets import Row, load_dataset
from common.equality import quick_verdict
from common.errors import ConfigError
from common.prompts import load_tokenizer, render_text
from common.rewards import gold_test, total
from common.stop_tokens import named, stop_tokens
from common.user_rewards import Answer
from deploy.preflight.configuration import OWN_FAULTS, working_folder
from deploy.preflight.findings import Finding, Target, ok

ROWS = 64
"""Rows among which a wrong answer is looked for."""
SHOWN = 1500
"""Characters of a prompt that are shown."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A completion made from an answer, and what it earned."""

    text: str
    rewards: dict[str, float]
    success: bool


def stops(target: Target) -> Iterator[Finding]:
    """The tokens that end a completion."""
    config = target.config
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    yield ok("stop tokens", named(tokenizer, stop_tokens(config, tokenizer)))


def task(target: Target) -> Iterator[Finding]:
    """One prompt, and a right and a wrong answer made from its gold answer, scored by the run's own
    rewards."""
    config = target.config
    if not target.trains:
        return
    rows = load_dataset(config.data.model_copy(update={"limit": ROWS}), gold_test(config.reward)).rows
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    row, prompt = rows[0], render_text(tokenizer, rows[0].problem, config.data)
    yield ok("prompt", f"row 0, gold answer {row.answer!r}\n{_quoted(prompt)}")
    if config.reward.judged != config.reward.names:
        yield ok("right answer", f"environment {config.environment.path} says what an episode earned")
        return
    opened, wrong_answer = prefill(prompt), _wrong(row, rows)
    right, wrong = judge(config, row, opened, [row.answer, wrong_answer])
    yield _right(config, right)
    yield Finding(
        "warn" if wrong.success else "ok", "wrong answer", f"{_earned(config, wrong)}\n{_quoted(wrong.text)}"
    )


def _right(config: Config, right: Judged) -> Finding:
    says = f"{_earned(config, right)}\n{_quoted(right.text)}"
    if right.success or config.reward.success is None:
        return ok("right answer", says)
    return Finding(
        "warn",
        "right answer",
        says,
        "made from the gold answer, and no success: unless your rewards ask for another form, no completion "
        "will be one; look at reward.answer, reward.success and reward.success_at",
    )


def judge(config: Config, row: Row, opened: str, answers: Sequence[str]) -> list[Judged]:
    """What a completion with each of `answers` earns in the form of `reward.answer`; for a user's own form,
    in the first of ours that makes the first answer a success. Raises ConfigError when a reward fails."""
    own = config.reward.answer not in ANSWERS
    forms = [form for form in ANSWERS if form != "auto"] if own else [config.reward.answer]
    texts = [[example(form, answer, opened) for answer in answers] for form in forms]
    items = [
        Answer(row.problem, opened + text, row.answer, row.columns, row.index)
        for form in texts
        for text in form
    ]
    try:
        with working_folder():
            scored = iter(asyncio.run(_score(config, items)))
    except (*OWN_FAULTS, VerifierUnavailable) as error:
        raise ConfigError(f"reward: scoring an answer to row 0 failed: {error}") from None
    found = [
        [
            Judged(text, r, config.reward.succeeded(r))
            for text, r in zip(form, islice(scored, len(form)), strict=True)
        ]
        for form in texts
    ]
    return next((form for form in found if form[0].success), found[0])


async def _score(config: Config, items: Sequence[Answer]) -> list[dict[str, float]]:
    pool = VerifierPool(config.reward)
    try:
        return await pool.score_batch(items)
    finally:
        pool.close()


def _wrong(row: Row, rows: Sequence[Row]) -> str:
    """An answer that is plainly not the gold answer: another row's, or a number."""
    others = (r.answer for r in rows if r.answer != row.answer)
    return next((a for a in [*others, "0", "1"] if quick_verdict(row.answer, a) is False), "nothing")


def _earned(config: Config, judged: Judged) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in judged.rewards.items())
    success = "" if config.reward.success is None else ", a success" if judged.success else ", no success"
    return f"{parts}: reward {total(judged.rewards, config.reward.weights):g}{success}"


def _quoted(text: str) -> str:
    """The text, indented, without what a terminal would obey, and cut in its middle."""
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]}\n[… {len(text) - SHOWN} characters …]\n{text[-SHOWN // 2 :]}"
    plain = "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "\n".join(f"      | {line}" for line in plain.split("\n"))
