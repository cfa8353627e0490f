"""A user's rewards that see the whole group, and those that return several numbers by name."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hora_rl.actors.coordinator.calls import group_calls
from hora_rl.actors.coordinator.group_rewards import LastTexts, unranked
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import Reward
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.data.rewards import group_functions
from hora_rl.common.data.user_rewards import Answer
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.common.types import Prompt
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.run_checks import TASK, examine
from tests.support.groups import group, rollout
from tests.support.handles import Handle

OWN = """
import asyncio
import numpy as np

def shortest(answers):
    lengths = [a.tokens for a in answers]
    return [float(a.tokens == min(lengths)) for a in answers]

async def judged(answers):
    await asyncio.sleep(0.01)
    return np.linspace(0, 1, len(answers), dtype=np.float32)

def shares(answers):
    return [{"place": i, "of": len(answers)} for i, _ in enumerate(answers)]

def parts(answer):
    return {"exact": answer.completion == answer.gold, "brevity": 1 / (1 + len(answer.completion))}

def plain(answer):
    return 0.5

def too_few(answers):
    return [1.0]

def no_list(answers):
    return 1.0

def raises(answers):
    raise KeyError("nobody")
"""
MODULE = "own_group_rewards_of_a_user"


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{MODULE}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def answers(*texts: str) -> list[Answer]:
    return [Answer("3+4=?", text, "7", {}, 5, tokens=len(text)) for text in texts]


async def score(*names: str, texts: tuple[str, ...] = ("7", "it is 7", "8")) -> list[dict[str, float]]:
    """Rewards of one group: of each completion alone, and among the others."""
    with closing(VerifierPool(Reward(weights={f"{MODULE}:{name}": 1.0 for name in names}))) as pool:
        alone = await pool.score_batch(answers(*texts))
        among = await pool.score_group(answers(*texts))
    found = [a | b for a, b in zip(alone, among, strict=True)]
    return [{name.partition(":")[2]: value for name, value in each.items()} for each in found]


async def test_a_group_reward_sees_all_completions_and_returns_one_value_for_each() -> None:
    assert await score("shortest", "judged", "plain") == [
        {"shortest": 1.0, "judged": 0.0, "plain": 0.5},
        {"shortest": 0.0, "judged": 0.5, "plain": 0.5},
        {"shortest": 1.0, "judged": 1.0, "plain": 0.5},
    ]


async def test_named_numbers_are_rewards_each_and_only_those_that_are_asked_for_are_kept() -> None:
    assert await score("parts[exact]", "shares[of]", "shares[place]", texts=("7", "8")) == [
        {"parts[exact]": 1.0, "shares[of]": 2.0, "shares[place]": 0.0},
        {"parts[exact]": 0.0, "shares[of]": 2.0, "shares[place]": 1.0},
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("too_few", "returned 1 values for the 3 completions of a group (row 5, problem '3+4=?')"),
        ("no_list", "returned 1.0 (row 5, problem '3+4=?'): a reward of a group returns a list, here of 3"),
        ("raises", "raised KeyError: 'nobody' (row 5, problem '3+4=?')"),
        ("parts", f"returned named numbers without '{MODULE}:parts' (row 5"),
        ("parts[right]", f"name {MODULE}:parts[exact], {MODULE}:parts[brevity] in reward.weights"),
        ("plain[exact]", "returned 0.5, not numbers by name (row 5, problem '3+4=?'): it has no part"),
    ],
)
async def test_what_does_not_fit_is_one_line_with_the_reward_and_the_row(name: str, line: str) -> None:
    with pytest.raises(ValueError, match="reward ") as failed:
        await score(name)
    assert line in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize("name", ["own:f[", "own:f[]", "own:f]", "own:", ":f", "own:f[a]b", "own f:g"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown reward"):
        load("tiny", [f"reward.weights={{'{name}': 1.0}}"])


def tiny(**reward: Any) -> Any:
    config = load("tiny")
    return config.model_copy(update={"reward": Reward(**reward)})


def test_success_and_the_gate_go_by_rewards_that_phase_a_can_count() -> None:
    named = f"{MODULE}:shortest"
    with pytest.raises(ConfigError, match=r"reward.success \(.*:shortest\) ranks a whole group"):
        group_functions(Reward(weights={named: 1.0}, success=named), None)
    with pytest.raises(ConfigError, match=r"allocation\.warmup\.reward"):
        group_functions(Reward(weights={named: 1.0, "accuracy": 1.0}), named)
    named = f"{MODULE}:parts[exact]"
    assert group_functions(Reward(weights={named: 1.0}, success=named), None) == ()


async def test_the_coordinator_ranks_what_rewards_saw_from_the_tokens_that_are_kept() -> None:
    """As text that a model wrote: without its end, which a cut completion does not have."""
    tokenizer = load_tokenizer("deploy/demo/model")
    end, said = tokenizer.eos_token_id, tokenizer.encode("7+8", add_special_tokens=False)
    rollouts = [
        rollout([*said, end]),
        rollout(said, finish_reason="length"),
        rollout([*said, end], phase="B"),
    ]
    prompt = Prompt(4, "7+8=?", "15", np.zeros(1, np.int32), prefill="<think>", row={"column": 1})
    handle = Handle(lambda items: [{"x:rank": float(i)} for i in range(len(items))])
    config = tiny(weights={f"{MODULE}:shortest": 1.0})
    rank = group_calls(handle, config, LastTexts(tokenizer))  # type: ignore[arg-type]
    found = await rank(prompt, group(4, rollouts, pre_rollouts=2))
    assert handle.asked[0] == [
        Answer("7+8=?", "<think>7+8", "15", {"column": 1}, 4, n, how)
        for n, how in ((4, "stop"), (3, "length"), (4, "stop"))
    ]
    assert found.ranked == ("x:rank",)
    assert [r.rewards["x:rank"] for r in found.rollouts] == [0.0, 1.0, 2.0]
    assert [r.rewards["accuracy"] for r in found.rollouts] == [1.0, 1.0, 1.0]
    assert group_calls(handle, load("tiny"), LastTexts(tokenizer)) is unranked  # type: ignore[arg-type]


def test_check_shows_what_a_right_and_a_wrong_answer_earn_among_each_other() -> None:
    weights = {"accuracy": 1.0, f"{MODULE}:shares[place]": 0.5, f"{MODULE}:parts[brevity]": 0.0}
    found = {f.what: f.says for f in examine(Target(tiny(weights=weights)), TASK)}
    assert f"accuracy 1, {MODULE}:parts[brevity]" in found["right answer"]
    assert f"{MODULE}:shares[place] 0: reward 1, a success" in found["right answer"]
    assert f"{MODULE}:shares[place] 1: reward 0.5, no success" in found["wrong answer"]
