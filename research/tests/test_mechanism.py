"""The mechanism's two sides: outcomes drawn anew follow the allocator, and classes of difficulty their
formulas."""

import numpy as np
import pytest

from research.report.mechanism import EDGES, Groups, Terms, by_difficulty, foretold


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


def test_uniform_sampling_realises_the_share_that_its_formula_says() -> None:
    rates = [0.005, 0.02, 0.05, 0.5]
    told = foretold(groups_of(rates), Terms("uniform", 1, "none", 32, 8), draws=10)
    share, error, count = by_difficulty(told, told.share)
    assert count.tolist() == [2000, 2000, 2000, 0, 2000, 0, 0]
    for p in rates:
        k = int(np.digitize(p, EDGES)) - 1
        assert share[k] == pytest.approx(1 - (1 - p) ** 32, abs=4 * error[k] + 1e-9)


def test_rounds_that_stop_at_a_hit_realise_more_where_it_is_rare_and_spend_the_same() -> None:
    groups = groups_of([0.005, 0.02, 0.95, 0.97, 0.9])
    shares = []
    for terms in (
        Terms("uniform", 1, "none", 32, 8),
        Terms("hit_utility", 1, "none", 32, 8),
        Terms("first_hit", 4, "hit", 32, 8),
    ):
        told = foretold(groups, terms, draws=2)
        assert told.size.sum() == 2 * groups.size.sum()
        shares.append(by_difficulty(told, told.share)[0][0])
    assert shares[0] + 0.1 < shares[1] < shares[2] - 0.05


def test_the_update_of_a_group_is_the_formula_of_its_counts() -> None:
    groups = Groups(
        np.zeros(3, int), np.full(3, 0.5), np.array([32, 32, 8]), np.array([16, 0, 4]), np.ones((3, 2))
    )
    np.testing.assert_allclose(groups.update, [0.5 * np.sqrt(31 / 32), 0.0, 0.5 * np.sqrt(7 / 8)])


def test_shards_are_divided_on_their_own_and_no_group_exceeds_the_cap() -> None:
    """A shard of hopeless prompts cannot spend what a shard of easy ones leaves."""
    groups = groups_of([0.001, 0.001, 0.95, 0.95])
    whole = foretold(groups, Terms("first_hit", 4, "hit", 32, 8), draws=1)
    apart = foretold(groups, Terms("first_hit", 4, "hit", 32, 8, shards=2), draws=1)
    capped = foretold(groups, Terms("first_hit", 4, "hit", 32, 8, max_group_size=40), draws=1)
    assert whole.size[whole.p < 0.5].mean() > 40
    assert apart.size[apart.p < 0.5].mean() == 32
    assert capped.size.max() <= 40
    assert whole.size.sum() == apart.size.sum() == capped.size.sum() == groups.size.sum()
