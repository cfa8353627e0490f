"""What kept samples of an evaluation depend on: other judging or another end of completions draws anew."""

import pytest

from hora_rl.common.load import load
from hora_rl.deploy.launch.evaluation import about_sampling


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("reward.answer=boxed", False),
        ("reward.max_answer_chars=100", False),
        ("reward.time_limit_s=60", False),
        ("reward.code_tests.seconds=60", False),
        ("rollout.stop=['\n']", False),
        ("rollout.temperature=0.5", False),
        ("reward.weights={accuracy: 2.0, format: 0.1}", True),
        ("learner.steps=9", True),
        ("run.name=x", True),
    ],
)
def test_samples_are_reused_where_they_do_not_depend_on_a_change(change: str, same: bool) -> None:
    assert (about_sampling(load("tiny", [change])) == about_sampling(load("tiny"))) is same
