"""What kept samples of an evaluation depend on: other judging or another end of completions draws anew."""

import pytest

from hora_rl.common.load import load
from hora_rl.deploy.launch.evaluation import about_sampling


@pytest.mark.parametrize(
    "change",
    [
        "reward.answer=boxed",
        "reward.max_answer_chars=100",
        "reward.time_limit_s=60",
        "reward.code_tests.seconds=60",
        "rollout.stop=['\n']",
        "rollout.temperature=0.5",
    ],
)
def test_samples_are_not_reused_where_this_is_another(change: str) -> None:
    assert about_sampling(load("tiny", [change])) != about_sampling(load("tiny"))


@pytest.mark.parametrize(
    "same", ["reward.weights={accuracy: 2.0, format: 0.1}", "learner.steps=9", "run.name=x"]
)
def test_samples_are_reused_where_they_do_not_depend_on_it(same: str) -> None:
    assert about_sampling(load("tiny", [same])) == about_sampling(load("tiny"))
