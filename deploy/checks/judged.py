"""Score example completions with the run's rewards, and print them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import Data, Reward
from hora_rl.common.data.datasets import Row
from hora_rl.common.data.prompts import render
from hora_rl.common.data.rewards import total
from hora_rl.common.data.user_rewards import Answer
from hora_rl.common.errors import ConfigError, VerifierUnavailable
from hora_rl.common.user_code import working_folder
from hora_rl.deploy.checks.configuration import OWN_FAULTS
from hora_rl.deploy.checks.findings import Finding, ok
from hora_rl.deploy.monitor.escape import visible

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN = 1500
"""Characters of a text to print."""


@dataclass(frozen=True, slots=True)
class Judged:
    """An example completion with its rewards."""

    text: str
    rewards: dict[str, float]
    success: bool


def shown(reward: Reward, right: Judged, wrong: Judged) -> Iterator[Finding]:
    """Findings for the rewards of a right and a wrong answer."""
    says = f"{_earned(reward, right)}\n{quoted(right.text)}"
    if right.success or reward.success is None:
        yield ok("right answer", says)
    else:
        yield Finding(
            "warn",
            "right answer",
            says,
            "made from the gold answer, and no success: unless your rewards ask for another form, no "
            "completion will be one; look at reward.answer, reward.success and reward.success_at",
        )
    yield Finding(
        "warn" if wrong.success else "ok", "wrong answer", f"{_earned(reward, wrong)}\n{quoted(wrong.text)}"
    )


def judge(reward: Reward, row: Row, opened: str, texts: Sequence[Sequence[str]]) -> list[Judged]:
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
        raise ConfigError(f"reward: scoring an answer to row {row.index} failed: {error}") from None
    found = [
        [Judged(text, r, reward.succeeded(r)) for text, r in zip(form, rewards, strict=True)]
        for form, rewards in zip(texts, scored, strict=True)
    ]
    return next((form for form in found if form[0].success), found[0])


async def _score(reward: Reward, groups: Sequence[Sequence[Answer]]) -> list[list[dict[str, float]]]:
    """Rewards of each answer, including group rewards."""
    pool, found = VerifierPool(reward), []
    try:
        for group in groups:
            alone, among = await pool.score_batch(group), await pool.score_group(group)
            found.append([one | more for one, more in zip(alone, among, strict=True)])
        return found
    finally:
        pool.close()


def _earned(reward: Reward, judged: Judged) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in judged.rewards.items())
    success = "" if reward.success is None else ", a success" if judged.success else ", no success"
    return f"{parts}: reward {total(judged.rewards, reward.weights):g}{success}"


def prompt_as_read(tokenizer: PreTrainedTokenizerBase, problem: str, data: Data) -> str:
    """The prompt that the model reads, decoded from its tokens, with their number and the last token."""
    tokens = render(tokenizer, problem, data)
    text = tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
    last = tokenizer.decode(tokens[-1:], clean_up_tokenization_spaces=False)
    return f"{len(tokens)} tokens, the last {last!r}\n{quoted(str(text))}"


def quoted(text: str) -> str:
    """Indent `text`, escape control characters, and cut the middle of a long text."""
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]}\n[… {len(text) - SHOWN} characters …]\n{text[-SHOWN // 2 :]}"
    return "\n".join(f"      | {line}" for line in visible(text).split("\n"))
