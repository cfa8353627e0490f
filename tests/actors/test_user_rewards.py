"""A user's own rewards, of one completion and of a whole group, and what the run calls a success."""

import asyncio
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hora_rl.actors.coordinator.calls import LastTexts, generator_calls, group_calls, verifier_calls
from hora_rl.actors.coordinator.shard import unranked
from hora_rl.actors.data.datasets import load_dataset
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.allocator.rules import get_rule
from hora_rl.common.config import Config, DataConfig, RewardConfig
from hora_rl.common.data import gym
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.data.rewards import Answer, group_functions, load_reward
from hora_rl.common.errors import AwayTooLong, ConfigError
from hora_rl.common.load import load
from hora_rl.common.types import Prompt, SamplingRequest, Scored
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.run_checks import TASK, examine
from tests.support.groups import completion, group, rollout
from tests.support.handles import Handle

MODULE = "own_rewards_of_a_user"
BREVITY = "tests.system.own_reward:brevity"
TAGGED = "<think>1+1</think><answer>2</answer>"
RIGHT, WRONG = {"format": 1.0, "accuracy": 1.0}, {"format": 0.0, "accuracy": 0.0}
OWN = """
import asyncio, time
from pathlib import Path
import numpy as np
from hora_rl.common.errors import Unavailable

def passes(answer):
    right = answer.row["expected"] in answer.completion and answer.finish_reason == "stop"
    return right - 0.001 * answer.tokens

async def judge(answer):
    await asyncio.sleep(0.1)
    return len(answer.row["expected"])

def parts(answer):
    return {"exact": answer.completion == answer.gold, "brevity": 1 / (1 + len(answer.completion))}

def plain(answer):
    return 0.5

def vast(answer):
    return 10**400

async def lost(answer):
    raise KeyError("verdict")

async def sleeps(answer):
    await asyncio.sleep(60)

def fails(answer):
    raise RuntimeError("no tests in this row")

def hangs(answer):
    while True:
        pass

def away(answer):
    flag = Path(__file__).with_name("back")
    if not flag.exists():
        raise Unavailable("the judge restarts")
    return 1.0

def shortest(answers):
    lengths = [a.tokens for a in answers]
    return [float(a.tokens == min(lengths)) for a in answers]

async def ordered(answers):
    await asyncio.sleep(0.01)
    return np.linspace(0, 1, len(answers), dtype=np.float32)

def shares(answers):
    return [{"place": i, "of": len(answers)} for i, _ in enumerate(answers)]

def too_few(answers):
    return [1.0]

def no_list(answers):
    return 1.0

def raises(answers):
    raise KeyError("nobody")
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / f"{MODULE}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def answer(text: str = "it is 7", **changes: Any) -> Answer:
    return Answer("3+4=?", text, "7", {"expected": "7", "level": 2}, 5, tokens=10)._replace(**changes)


GROUP = [answer(text, tokens=len(text)) for text in ("7", "it is 7", "8")]


async def score(*names: str, answers: list[Answer], module: str = MODULE, **reward: Any) -> list[Any]:
    """Rewards of one group: of each completion alone, and among the others."""
    settings = RewardConfig(weights={f"{module}:{name}": 1.0 for name in names}, **reward)
    with closing(VerifierPool(settings)) as pool:
        alone = await pool.score_batch(answers)
        among = await pool.score_group(answers)
    found = [a | b for a, b in zip(alone, among, strict=True)]
    return [{name.partition(":")[2]: value for name, value in each.items()} for each in found]


async def test_a_reward_of_one_parameter_gets_the_whole_row_and_how_the_completion_ended() -> None:
    given = [answer(), answer(finish_reason="length"), answer("it is 8")]
    assert await score("passes", answers=given) == [{"passes": n} for n in (0.99, -0.01, -0.01)]


async def test_async_rewards_of_a_batch_wait_together() -> None:
    async with asyncio.timeout(40 * 0.1):
        assert await score("judge", answers=[answer()] * 40) == [{"judge": 1.0}] * 40


async def test_a_group_reward_sees_all_completions_and_returns_one_value_for_each() -> None:
    assert await score("shortest", "ordered", "plain", answers=GROUP) == [
        {"shortest": 1.0, "ordered": 0.0, "plain": 0.5},
        {"shortest": 0.0, "ordered": 0.5, "plain": 0.5},
        {"shortest": 1.0, "ordered": 1.0, "plain": 0.5},
    ]


async def test_named_numbers_are_rewards_each_and_only_those_that_are_asked_for_are_kept() -> None:
    assert await score("parts[exact]", "shares[of]", "shares[place]", answers=GROUP[::2]) == [
        {"parts[exact]": 1.0, "shares[of]": 2.0, "shares[place]": 0.0},
        {"parts[exact]": 0.0, "shares[of]": 2.0, "shares[place]": 1.0},
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fails", "fails' raised RuntimeError: no tests in this row (prompt 5, problem '3+4=?')"),
        ("lost", "lost' raised KeyError: 'verdict' (prompt 5, problem '3+4=?')"),
        ("sleeps", "sleeps' took over 0.5 s"),
        ("hangs", "hangs' took over 0.5 s"),
        ("too_few", "returned 1 values (prompt 5, problem '3+4=?'): a reward of a group"),
        ("no_list", "(prompt 5, problem '3+4=?'): a reward of a group returns a list, here of 3"),
        ("vast", "(prompt 5, problem '3+4=?'): it must return one finite number"),
        ("raises", "raised KeyError: 'nobody' (prompt 5, problem '3+4=?')"),
        ("parts", f"returned named numbers without '{MODULE}:parts' (prompt 5"),
        ("parts[right]", f"name {MODULE}:parts[exact], {MODULE}:parts[brevity] in reward.weights"),
        ("plain[exact]", "returned 0.5, not numbers by name (prompt 5, problem '3+4=?'): it has no part"),
    ],
)
async def test_a_failing_reward_is_one_line_with_name_and_row_never_a_zero(name: str, line: str) -> None:
    with pytest.raises(ValueError, match="reward ") as failed:
        await score(name, answers=GROUP, time_limit_s=0.5)
    assert line in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(("text", "error"), [("KEY = {}['KEY']", "KeyError"), ("def f(a) 1", "SyntaxError")])
def test_a_module_that_fails_at_its_import_is_one_line(own: Path, text: str, error: str) -> None:
    (own / f"{error}_module.py").write_text(text)
    for load_own in (load_reward, get_rule):
        with pytest.raises(ValueError, match=f"'{error}_module:f'.*{error}: [^\n]*$"):
            load_own(f"{error}_module:f")


async def test_what_a_reward_imports_counts_neither_in_its_time_nor_in_its_memory(own: Path) -> None:
    lines = ("import mmap, time", "time.sleep(1.0)", "SPACE = mmap.mmap(-1, 3 * 2**30)")
    heavy = "\n".join([*lines, "def heavy(answer): return 1.0", ""])
    (own / "heavy_judge_of_a_user.py").write_text(heavy)
    found = await score("heavy", answers=[answer()], module="heavy_judge_of_a_user", time_limit_s=0.5)
    assert found == [{"heavy": 1.0}]


async def test_a_reward_that_is_unavailable_is_waited_for_and_said(own: Path) -> None:
    with closing(VerifierPool(RewardConfig(weights={f"{MODULE}:away": 1.0}))) as pool:
        scoring = asyncio.create_task(pool.score_batch([answer()]))
        while not pool.away:
            await asyncio.sleep(0.05)
        assert pool.away == {f"{MODULE}:away": "the judge restarts"}
        (own / "back").touch()
        assert await scoring == [{f"{MODULE}:away": 1.0}]
        assert not pool.away


async def test_a_reward_that_stays_unavailable_ends_with_the_limit_and_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hora_rl.actors.verifier.user_rewards.WAIT_LIMIT_S", 1.0)
    with pytest.raises(AwayTooLong, match="the judge restarts"):
        await score("away", answers=[answer()])


def configured(**reward: Any) -> Config:
    return Config.model_validate({"model": {"path": "m"}, "data": {"path": "d"}, "reward": reward})


async def test_the_row_goes_to_rewards_that_may_read_it_and_to_nobody_else(tmp_path: Path) -> None:
    gold = {"cases": [1, [None, True]]}
    row = {"problem": "3+4=?", "answer": gold, "expected": "7", "tests": ["assert f(1) == 2"]}
    (tmp_path / "d.jsonl").write_text(json.dumps(row) + "\n")
    (read,) = load_dataset(DataConfig(path=str(tmp_path / "d.jsonl"))).rows
    assert read.columns == row
    prompt = Prompt(3, read.problem, read.answer, np.array([1, 2], np.int32), row=read.columns)
    done = completion([1, 2], "7", "length")
    of_task = replace(prompt, row={**row, gym.TASK: {"task": "countdown", "settings": {}}})
    for asked, name, sent in (
        (prompt, "a.b:c", row),
        (prompt, "code_tests", row),
        (prompt, "accuracy", {}),
        (of_task, "accuracy", of_task.row),  # its scorer judges the answer with the row
    ):
        config = configured(weights={name: 1.0}, success=name)
        handle = Handle(lambda items, name=name: [{name: 1.0}])
        await verifier_calls(handle, config)(asked, [done])  # type: ignore[arg-type]
        assert handle.asked[0] == [Answer("3+4=?", "7", gold, sent, 3, 2, "length")]
        handle = Handle(lambda *asked: [[done]])
        await generator_calls(handle, config.rollout, config.weights, 0)(SamplingRequest(asked, 1, 0))  # type: ignore[arg-type]
        assert handle.asked[0][0].prompt.row == {}


async def test_success_follows_the_reward_that_the_run_names_and_is_judged_with_an_opened_thought() -> None:
    config = configured(weights={"format": 0.5, BREVITY: 0.5}, success=BREVITY, success_at=0.7)
    one, two = {"format": 1.0, BREVITY: 0.6}, {"format": 0.0, BREVITY: 0.7}
    handle = Handle(lambda items: [one, two])
    prompt = Prompt(0, "p", "a", np.array([1], np.int32), prefill="<think>\n")
    done = [completion(text="x</think>")] * 2
    found = await verifier_calls(handle, config)(prompt, done)  # type: ignore[arg-type]
    assert found == [Scored(one, False), Scored(two, True)]
    (items,) = handle.asked
    assert [item[:3] for item in items] == [("p", "<think>\nx</think>", "a")] * 2


@pytest.mark.parametrize(
    ("reward", "text", "found"),
    [
        ({"answer": "boxed"}, r"<think>1+1</think>So \boxed{2}.", RIGHT),
        ({"answer": "boxed"}, TAGGED, WRONG),
        ({"answer": "tests.system.own_reward:last_word"}, "<think>1+1</think> it is 2", RIGHT),
        ({"weights": {"format": 1.0}}, TAGGED, RIGHT),
        ({"weights": {"accuracy": 1.0}}, TAGGED, {"accuracy": 1.0}),
        ({"weights": {"format": 1.0}, "success": None}, TAGGED, {"format": 1.0}),
    ],
)
async def test_rewards_in_use_and_success_alone_are_computed_of_the_answer_as_the_run_finds_it(
    reward: dict[str, object], text: str, found: dict[str, float]
) -> None:
    with closing(VerifierPool(RewardConfig.model_validate(reward))) as pool:
        assert await pool.score_batch([("1+1=?", text, "2")]) == [found]


def tiny(**reward: Any) -> Any:
    return load("tiny").model_copy(update={"reward": RewardConfig(**reward)})


def test_success_and_the_gate_go_by_rewards_that_phase_a_can_count() -> None:
    named = f"{MODULE}:shortest"
    with pytest.raises(ConfigError, match=r"reward\.success \(.*:shortest\)"):
        group_functions(RewardConfig(weights={named: 1.0}, success=named), None)
    with pytest.raises(ConfigError, match=r"allocation\.warmup\.reward"):
        group_functions(RewardConfig(weights={named: 1.0, "accuracy": 1.0}), named)
    named = f"{MODULE}:parts[exact]"
    assert group_functions(RewardConfig(weights={named: 1.0}, success=named), None) == ()


async def test_the_coordinator_ranks_what_rewards_saw_from_the_tokens_that_are_kept() -> None:
    """As text that a model wrote: without its end, which a cut completion does not have."""
    tokenizer = load_tokenizer("deploy/demo/model")
    end, said = tokenizer.eos_token_id, tokenizer.encode("7+8", add_special_tokens=False)
    whole, cut = rollout([*said, end]), rollout(said, finish_reason="length")
    rollouts = [whole, cut, rollout([*said, end], phase="B")]
    prompt = Prompt(4, "7+8=?", "15", np.zeros(1, np.int32), prefill="<think>", row={"column": 1})
    handle = Handle(lambda items: [{"x:rank": float(i)} for i in range(len(items))])
    config = tiny(weights={f"{MODULE}:shortest": 1.0})
    rank = group_calls(handle, config, LastTexts(tokenizer))  # type: ignore[arg-type]
    found = await rank(prompt, group(4, rollouts, pre_rollouts=2))
    asked = "7+8=?", "<think>7+8", "15", {"column": 1}, 4
    assert handle.asked[0] == [Answer(*asked, *end) for end in ((4, "stop"), (3, "length"), (4, "stop"))]
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
