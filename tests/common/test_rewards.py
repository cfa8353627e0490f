from pathlib import Path

import pytest

from hora_rl.common.data import rewards
from hora_rl.common.data.user_rewards import Answer, load_reward, user_reward
from hora_rl.common.errors import Unavailable


def test_the_total_is_the_weighted_sum_and_names_what_is_missing() -> None:
    assert rewards.total({"format": 1.0, "accuracy": 0.0}, {"format": 0.5, "accuracy": 0.5}) == 0.5
    with pytest.raises(ValueError, match="'style:short' has a weight"):
        rewards.total({"format": 1.0}, {"format": 0.5, "style:short": 1.0})


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rewards.py").write_text(
        "from hora_rl.common.errors import Unavailable\n"
        "def brief(problem, completion, gold): return 1 / len(completion)\n"
        "def broken(problem, completion, gold): return float('nan')\n"
        "def away(answer): raise Unavailable('service')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
def test_a_users_reward_is_loaded_by_name_and_must_be_finite() -> None:
    assert user_reward("own_rewards:brief", Answer("q", "abcd", "g")) == 0.25
    with pytest.raises(ValueError, match=r"own_rewards:broken.* returned nan"):
        user_reward("own_rewards:broken", Answer("q", "abcd", "g"))
    with pytest.raises(ValueError, match=r"own_rewards:brief' raised ZeroDivisionError: .* \(row 0, "):
        user_reward("own_rewards:brief", Answer("q", "", "g"))
    with pytest.raises(Unavailable):
        user_reward("own_rewards:away", Answer("q", "abcd", "g"))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    "name", ["own_rewards:absent", "absent_module:f", "own_rewards:number", ":", "own_rewards:"]
)
def test_a_reward_that_cannot_be_loaded_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name!r}"):
        load_reward(name)
