"""`generator.sleep` is for one card, one replica and one rank, and for rollouts that wait for the learner."""

import pytest

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load

ALONE = ("generator.sleep=step", "rollout.max_staleness=0")


def test_it_is_off_and_can_be_set() -> None:
    assert load("tiny").generator.sleep == "none"
    assert load("tiny", list(ALONE)).generator.sleep == "step"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("rollout.max_staleness=2", r"generator.sleep \(step\) .* rollout.max_staleness \(2\)"),
        ("learner.workers=2", r"generator.sleep \(step\) .* learner.workers is 2"),
        ("generator.replicas=3", r"generator.sleep \(step\) .* generator.replicas 3 · .* need 3"),
        ("generator.tensor_parallel=2", r"generator.sleep \(step\) .* generator.tensor_parallel 2 need 2"),
        ("generator.clear_cache=false", r"generator.sleep \(step\) .* generator.clear_cache \(false\)"),
        ("weights.transport=nccl", r"generator.sleep \(step\) .* weights.transport \(nccl\)"),
    ],
)
def test_what_cannot_go_with_it_is_refused_with_both_values(setting: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load("tiny", [*ALONE, setting])
    load("tiny", [*ALONE, "generator.sleep=none", setting])
