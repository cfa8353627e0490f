"""The order of prompts: pure in seed, weights, batch and, where prompts rest, counts. Each source has epochs
of its own, and batches stay full."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hora_rl.common.data.prompt_order import Counts, Mixture, Order, counts_of, mixed_rows, order

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


G0 = 4
BOTH = ("solved", "unsolved")


def walk(
    order: Order, batches: int, results: dict[int, list[tuple[int, int | None]]], ahead: int = 0
) -> list:
    """The first batches. `results[row]` are the successes and hits of its visits, the last one for all later
    ones; a row without has half of G0. Batch b is asked for after cycle b - 1 - `ahead`."""
    made, visits = [], defaultdict[int, int](int)
    for batch in range(batches):
        made.append(order.rows(batch))
        if batch >= ahead:
            counts = Counts(G0, {}, {})
            for _, row in made[batch - ahead]:
                of_row = results.get(row, [(G0 // 2, G0)])
                counts.successes[row], counts.hits[row] = of_row[min(visits[row], len(of_row) - 1)]
                visits[row] += 1
            order.observe(counts)
    return made


def epochs_of(row: int, batches: list) -> list[int]:
    return [epoch for batch in batches for epoch, r in batch if r == row]


@settings(max_examples=30, deadline=None)
@given(SOURCES, st.integers(1, 12), st.integers(0, 9), st.sampled_from(((), ("solved",), BOTH)))
def test_where_no_prompt_rests_the_order_is_the_one_without_rests(
    sources: list[tuple[int, float]], gamma: int, seed: int, rest: tuple[str, ...]
) -> None:
    mixture = Mixture(tuple(n for n, _ in sources), tuple(w for _, w in sources))
    for shuffle in (True, False):
        batches = walk(Order(mixture, gamma, seed, shuffle, rest), 20, {})
        assert batches == [mixed_rows(b, gamma, mixture, seed, shuffle) for b in range(20)]


def test_a_prompt_that_stays_solved_rests_twice_as_long_each_time() -> None:
    order = Order(Mixture((24,)), 6, 3, rest=("solved",))
    batches = walk(order, 120, {5: [(G0, G0)]})
    assert epochs_of(5, batches)[:5] == [0, 2, 5, 10, 19]


@pytest.mark.parametrize("kind", BOTH)
def test_another_result_ends_the_series(kind: str) -> None:
    extreme = (G0, G0) if kind == "solved" else (0, 0)
    order = Order(Mixture((24,)), 6, 3, rest=(kind,))
    results = [extreme, extreme, (1, 1), extreme if kind == "solved" else (0, 0)]
    epochs = epochs_of(7, walk(order, 100, {7: results}))
    assert epochs[:4] == [0, 2, 5, 6]
    # A solved prompt begins again with one epoch; one that had a hit once never rests as unsolved.
    assert epochs[4:6] == ([8, 11] if kind == "solved" else [7, 8])


@pytest.mark.parametrize(("hits", "rests"), [(0, True), (1, False), (None, False)])
def test_unsolved_is_a_prompt_without_a_hit_in_either_phase(hits: int | None, rests: bool) -> None:
    order = Order(Mixture((24,)), 6, 3, rest=BOTH)
    assert (1 not in epochs_of(7, walk(order, 20, {7: [(0, hits)]}))) == rests


@settings(max_examples=40, deadline=None)
@given(SOURCES, st.integers(1, 12), st.integers(0, 9), st.integers(0, 3))
def test_batches_are_full_and_no_row_comes_twice_in_one_or_in_an_epoch_whatever_rests(
    sources: list[tuple[int, float]], gamma: int, seed: int, staleness: int
) -> None:
    mixture = Mixture(tuple(n for n, _ in sources), tuple(w for _, w in sources))
    chance = np.random.default_rng(seed)
    ends = [[(0, 0)], [(G0, G0)], [(2, 2)]]
    results = {row: ends[chance.choice(3, p=(0.3, 0.6, 0.1))] for row in range(mixture.total)}
    order = Order(mixture, gamma, seed, rest=BOTH, max_staleness=staleness)
    batches, met = walk(order, 40, results, staleness), set[tuple[int, int]]()
    for number, batch in enumerate(batches):
        plain = mixed_rows(number, gamma, mixture, seed)
        sources = [
            np.searchsorted(np.cumsum(mixture.rows), [r for _, r in b], "right") for b in (batch, plain)
        ]
        assert (sources[0] == sources[1]).all(), "every place is of the source that it is of without rests"
        assert len({row for _, row in batch}) == gamma
        assert not met & set(batch)
        met |= set(batch)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_batch_depends_on_exactly_the_cycles_up_to_its_bound(staleness: int) -> None:
    mixture, last = Mixture((30,)), 5  # the last batch of epoch 0

    def after(cycles: int, solved: int) -> Order:
        """The order after so many cycles; in cycle `solved` all prompts were solved."""
        order = Order(mixture, 5, 3, rest=("solved",), max_staleness=staleness)
        for cycle in range(cycles):
            counts = dict.fromkeys((row for _, row in order.rows(cycle)), G0 if cycle == solved else 1)
            order.observe(Counts(G0, counts, dict(counts)))
        return order

    batch = last + 1 + staleness
    with pytest.raises(IndexError):
        after(last, last).rows(batch)
    plain = [mixed_rows(b, 5, mixture, 3) for b in range(batch + 1)]
    assert after(last + 2, last + 1).rows(batch) == plain[batch], "the next cycle is not its own"
    order = after(last + 1, last)
    assert [order.rows(b) for b in range(batch)] == plain[:batch]
    assert not {row for _, row in order.rows(batch)} & {row for _, row in plain[last]}
    assert after(last + 4, last).rows(batch) == order.rows(batch), "whenever it is asked for"


def test_where_all_rest_they_return_in_turn() -> None:
    batches = walk(Order(Mixture((20,)), 10, 0, rest=("solved",)), 12, {row: [(G0, G0)] for row in range(20)})
    assert {len(epochs_of(row, batches)) for row in range(20)} == {6}


def test_prompts_that_are_not_solved_take_the_places_of_those_that_are() -> None:
    order = Order(Mixture((40,)), 10, 0, rest=("solved",))
    batches = walk(order, 60, {row: [(G0, G0)] for row in range(20)})
    visits = [len(epochs_of(row, batches)) for row in range(40)]
    assert max(visits[:20]) < 15 < min(visits[20:]), "60 batches of 10 are 15 visits for each of 40"
    assert 15 <= order.resting <= 20
