"""The mechanism's two sides: outcomes drawn anew follow the allocator, and classes of difficulty their
formulas."""

import numpy as np
import pytest

from hora_rl.common.config import Config
from hora_rl.common.load import load
from research.report.mechanism import EDGES, Groups, by_difficulty, redrawn

UNIFORM, HORA = ["allocation.rule=uniform"], ["allocation.rule=hit_utility"]
STOP = ["allocation.rule=first_hit", "allocation.rounds=4", "allocation.stop=hit"]


def config_of(settings: list[str]) -> Config:
    return load("tiny", [*settings, "rollout.group_size=32", "rollout.pre_rollouts=8"])


def groups_of(rates: list[float], repeats: int = 200, size: int = 32) -> Groups:
    """`repeats` batches of the same rates, each group of `size` without a hit."""
    n = len(rates) * repeats
    return Groups(
        batch=np.repeat(np.arange(repeats), len(rates)),
        p=np.tile(rates, repeats),
        size=np.full(n, size),
        hits=np.zeros(n, dtype=np.int64),
        prior=np.ones((n, 2)),
    )


def test_uniform_sampling_realises_the_share_of_its_formula() -> None:
    rates = [0.005, 0.02, 0.05, 0.5]
    share, error = by_difficulty(redrawn(groups_of(rates), config_of(UNIFORM), draws=10), "share")
    assert np.isnan(share).tolist() == [False, False, False, True, False, True, True]
    for p in rates:
        k = int(np.digitize(p, EDGES)) - 1
        assert share[k] == pytest.approx(1 - (1 - p) ** 32, abs=4 * error[k] + 1e-9)


def test_rounds_that_stop_at_a_hit_realise_more_where_it_is_rare_and_spend_the_same() -> None:
    groups, shares = groups_of([0.005, 0.02, 0.95, 0.97, 0.9]), []
    for settings in (UNIFORM, HORA, STOP):
        drawn = redrawn(groups, config_of(settings), draws=2)
        assert drawn.size.sum() == 2 * groups.size.sum()
        shares.append(by_difficulty(drawn, "share")[0][0])
    assert shares[0] + 0.1 < shares[1] < shares[2] - 0.05


def test_the_update_of_a_group_is_the_formula_of_its_counts() -> None:
    groups = Groups(
        np.zeros(3, int), np.full(3, 0.5), np.array([32, 32, 8]), np.array([16, 0, 4]), np.ones((3, 2))
    )
    np.testing.assert_allclose(groups.update, [0.5 * np.sqrt(31 / 32), 0.0, 0.5 * np.sqrt(7 / 8)])
