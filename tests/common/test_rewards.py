from __future__ import annotations

import time
from pathlib import Path

import pytest

from common import rewards


@pytest.mark.parametrize(
    "completion",
    [
        "<think>a</think><answer>b</answer>",
        "<think>a\n\nb</think>\n \t<answer>1\n2</answer>",
        "<think></think><answer></answer>",
        "<think>1 < 2 > 0</think><answer>x</answer>",
    ],
)
def test_a_completion_of_one_think_and_one_answer_has_the_format(completion: str) -> None:
    assert rewards.format_reward(completion) == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "<answer>b</answer>",
        "<think>a</think>",
        "<think>a</think>so<answer>b</answer>",
        " <think>a</think><answer>b</answer>",
        "<think>a</think><answer>b</answer>.",
        "<think>a</think><answer>b</answer><answer>c</answer>",
        "<think>a<think>b</think><answer>c</answer>",
        "<think>a</think><think>b</think><answer>c</answer>",
        "<answer>b</answer><think>a</think>",
        "<think>a<answer>b</think></answer>",
        "<think>a</answer></think><answer>",
    ],
)
def test_anything_else_does_not(completion: str) -> None:
    assert rewards.format_reward(completion) == 0.0


@pytest.mark.parametrize(
    "hostile",
    [
        "<think>" * 200_000,
        "<think>" + "</think>" * 200_000 + "</answer>",
        "<think></think>" + " " * 1_000_000 + "<answer></answer>x",
        "<think></think>" + "<answer>" * 200_000 + "</answer>",
    ],
)
def test_format_and_answer_are_found_in_linear_time(hostile: str) -> None:
    start = time.perf_counter()
    rewards.format_reward(hostile)
    rewards.extract_answer(hostile)
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<think>a</think><answer> 7 \n</answer>", "7"),
        ("no tags 7", None),
        ("<answer>7", None),
        ("</answer>7<answer>", None),
        ("<answer>  </answer>", None),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
    ],
)
def test_the_answer_is_the_last_complete_tag(completion: str, answer: str | None) -> None:
    assert rewards.extract_answer(completion) == answer


def test_the_total_is_the_weighted_sum_and_names_what_is_missing() -> None:
    assert rewards.total({"format": 1.0, "accuracy": 0.0}, {"format": 0.5, "accuracy": 0.5}) == 0.5
    with pytest.raises(ValueError, match="'style:short' has a weight"):
        rewards.total({"format": 1.0}, {"format": 0.5, "style:short": 1.0})


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rewards.py").write_text(
        "def brief(problem, completion, gold): return 1 / len(completion)\n"
        "def broken(problem, completion, gold): return float('nan')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
def test_a_users_reward_is_loaded_by_name_and_must_be_finite() -> None:
    assert rewards.user_reward("own_rewards:brief", "q", "abcd", "g") == 0.25
    with pytest.raises(ValueError, match=r"own_rewards:broken.* returned nan"):
        rewards.user_reward("own_rewards:broken", "q", "abcd", "g")


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    "name", ["own_rewards:absent", "absent_module:f", "own_rewards:number", ":", "own_rewards:"]
)
def test_a_reward_that_cannot_be_loaded_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name!r}"):
        rewards.load_reward(name)
