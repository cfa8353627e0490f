"""The order of prompts: pure in seed, weights and batch, each data source with epochs of its own."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hora_rl.common.data.prompt_order import Mixture, counts_of, mixed_rows, order

SMALL = Mixture((7, 40, 13), (1.0, 4.0, 0.5))
SOURCES = st.lists(st.tuples(st.integers(12, 40), st.floats(0.05, 8.0)), min_size=1, max_size=4)


def test_the_order_depends_on_seed_epoch_and_source_alone() -> None:
    assert (order(100, 1, 2) == order(100, 1, 2)).all()
    for other in (order(100, 1, 3), order(100, 2, 2), order(100, 1, 2, source=1)):
        assert (order(100, 1, 2) != other).any()
    assert (order(5, 1, 2, shuffle=False) == range(5)).all()


def test_one_source_has_whole_batches_of_one_permutation_after_another() -> None:
    for batch in range(20):
        epoch, place = divmod(batch, 17 // 6)
        rows = order(17, 3, epoch)[6 * place : 6 * (place + 1)]
        assert mixed_rows(batch, 6, Mixture((17,)), seed=3) == [(epoch, row) for row in rows]


def test_any_batch_can_be_asked_for_first() -> None:
    straight = [mixed_rows(b, 11, SMALL, seed=1) for b in range(30)]
    fresh = Mixture((7, 40, 13), (2.0, 8.0, 1.0))  # the same weights, remembered apart
    for batch in (29, 3, 17, 0):
        assert mixed_rows(batch, 11, fresh, seed=1) == straight[batch]


@settings(max_examples=40, deadline=None)
@given(SOURCES, st.integers(1, 12), st.integers(0, 9))
def test_no_row_comes_twice_in_a_batch_or_in_an_epoch_of_its_source(
    sources: list[tuple[int, float]], gamma: int, seed: int
) -> None:
    mixture = Mixture(tuple(n for n, _ in sources), tuple(w for _, w in sources))
    met: dict[tuple[int, int], set[int]] = defaultdict(set)
    used, edges = Counter[int](), [sum(mixture.rows[: k + 1]) for k in range(len(sources))]
    for batch in range(25):
        rows = mixed_rows(batch, gamma, mixture, seed)
        assert len(rows) == gamma
        assert len({row for _, row in rows}) == gamma
        for epoch, row in rows:
            source = next(k for k, edge in enumerate(edges) if row < edge)
            assert row not in met[source, epoch]
            met[source, epoch].add(row)
            used[source] += 1
    for source, weight in enumerate(mixture.weights):
        wanted = 25 * gamma * weight / sum(mixture.weights)
        assert abs(used[source] - wanted) <= len(sources)


def test_each_shard_has_its_share_of_sources_and_what_is_left_of_an_epoch_differs() -> None:
    rows = [row for _, row in mixed_rows(0, 12, Mixture((50, 50), (1.0, 1.0)), seed=0)]
    assert [sum(row < 50 for row in rows[i : i + 4]) for i in (0, 4, 8)] == [2, 2, 2]
    met = {row for batch in range(60) for _, row in mixed_rows(batch, 9, Mixture((7, 40), (1, 2)), seed=2)}
    assert met == set(range(47))


def test_a_source_that_is_smaller_than_its_share_of_a_batch_is_refused() -> None:
    small = Mixture((2, 100), (1.0, 1.0))
    assert counts_of(0, 8, small) == [4, 4]
    with pytest.raises(ValueError, match="4 rows of data source 1 of 2"):
        mixed_rows(0, 8, small, seed=0)
