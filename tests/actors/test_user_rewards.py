"""A user's own rewards: they get the whole row, name it when they fail, and are waited for while their
service is away."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hora_rl.actors.coordinator.calls import generator_calls, verifier_calls
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import Config, Data, Reward
from hora_rl.common.data.datasets import load_dataset
from hora_rl.common.data.user_rewards import Answer
from hora_rl.common.errors import AwayTooLong
from hora_rl.common.types import Prompt, SamplingRequest
from tests.support.groups import completion
from tests.support.handles import Handle

MODULE = "own_judges_of_a_user"
OWN = """
import asyncio, time
from pathlib import Path
from hora_rl.common.errors import Unavailable

def passes(answer):
    right = answer.row["expected"] in answer.completion and answer.finish_reason == "stop"
    return right - 0.001 * answer.tokens

async def judge(answer):
    await asyncio.sleep(0.1)
    return len(answer.row["expected"])

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
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / f"{MODULE}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def answer(text: str = "it is 7", **changes: Any) -> Answer:
    return Answer("3+4=?", text, "7", {"expected": "7", "level": 2}, 5, tokens=10)._replace(**changes)


def judge(name: str, module: str = MODULE, **reward: Any) -> VerifierPool:
    full = f"{module}:{name}"
    return VerifierPool(Reward(weights={full: 1.0}, success=full, **reward))


async def score(name: str, *answers: Answer, **reward: Any) -> list[float]:
    with closing(judge(name, **reward)) as pool:
        return [value for scored in await pool.score_batch(answers) for value in scored.values()]


async def test_a_reward_of_one_parameter_gets_the_whole_row_and_how_the_completion_ended() -> None:
    cut, wrong = answer(finish_reason="length"), answer("it is 8")
    assert await score("passes", answer(), cut, wrong) == [0.99, -0.01, -0.01]


async def test_async_rewards_of_a_batch_wait_together() -> None:
    async with asyncio.timeout(40 * 0.1):
        assert await score("judge", *[answer()] * 40) == [1.0] * 40


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", "fails' raised RuntimeError: no tests in this row (row 5, problem '3+4=?')"),
        ("lost", "lost' raised KeyError: 'verdict' (row 5, problem '3+4=?')"),
        ("sleeps", "sleeps' took over 0.5 s"),
        ("hangs", "hangs' took over 0.5 s"),
    ],
)
async def test_a_reward_that_fails_is_an_error_with_its_name_and_the_row_s_never_a_zero(
    name: str, words: str
) -> None:
    with pytest.raises(ValueError, match="reward") as error:
        await score(name, answer(), time_limit_s=0.5)
    assert words in str(error.value)


async def test_what_a_reward_imports_counts_neither_in_its_time_nor_in_its_memory(own: Path) -> None:
    lines = ("import mmap, time", "time.sleep(1.0)", "SPACE = mmap.mmap(-1, 3 * 2**30)")
    heavy = "\n".join([*lines, "def heavy(answer): return 1.0", ""])
    (own / "heavy_judge_of_a_user.py").write_text(heavy)
    assert await score("heavy", answer(), module="heavy_judge_of_a_user", time_limit_s=0.5) == [1.0]


async def test_a_reward_that_is_unavailable_is_waited_for_and_said(own: Path) -> None:
    with closing(judge("away")) as pool:
        scoring = asyncio.create_task(pool.score_batch([answer()]))
        while not pool.away:
            await asyncio.sleep(0.05)
        assert pool.away == {f"{MODULE}:away": "the judge restarts"}
        (own / "back").touch()
        assert await scoring == [{f"{MODULE}:away": 1.0}]
        assert not pool.away


async def test_a_reward_that_stays_unavailable_ends_with_the_limit_and_the_reason() -> None:
    with pytest.raises(AwayTooLong, match=r"unavailable for reward\.wait_limit_s = 1 s: the judge restarts"):
        await score("away", answer(), wait_limit_s=1)


async def test_the_row_goes_to_own_rewards_and_to_nobody_else(tmp_path: Path) -> None:
    row = {"problem": "3+4=?", "answer": "7", "expected": "7", "tests": ["a", "b"]}
    (tmp_path / "d.jsonl").write_text(json.dumps(row) + "\n")
    (read,) = load_dataset(Data(path=str(tmp_path / "d.jsonl"))).rows
    assert read.columns == row
    prompt = Prompt(3, read.problem, read.answer, np.array([1, 2], np.int32), row=read.columns)
    done = completion([1, 2], "7", "length")
    for weights, sent in (({"a.b:c": 1.0}, row), ({"accuracy": 1.0}, {})):
        name = next(iter(weights))
        reward = {"weights": weights, "success": name}
        config = Config.model_validate({"model": {"path": "m"}, "data": {"path": "d"}, "reward": reward})
        handle = Handle(lambda items, name=name: [{name: 1.0}])
        await verifier_calls(handle, config)(prompt, [done])  # type: ignore[arg-type]
        assert handle.asked[0] == [Answer("3+4=?", "7", "7", sent, 3, 2, "length")]
        handle = Handle(lambda *asked: [[done]])
        await generator_calls(handle, config, 0)(SamplingRequest(prompt, 1, 0))  # type: ignore[arg-type]
        assert handle.asked[0][0].prompt.row == {}
