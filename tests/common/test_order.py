from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.order import batch_rows, order, position


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 40),
    prompts=st.integers(1, 40),
    seed=st.integers(0, 5),
    batches=st.integers(1, 25),
    shuffle=st.booleans(),
)
def test_no_batch_holds_a_prompt_twice_and_every_epoch_holds_every_prompt_once(
    n, prompts, seed, batches, shuffle
):
    prompts = min(prompts, n)
    met = Counter()
    for batch in range(batches):
        rows = batch_rows(batch, prompts, n, seed, shuffle)
        assert len({row for _, row in rows}) == len(rows) == prompts
        met.update(rows)
    assert max(met.values()) == 1
    for epoch in range(batches * prompts // n):
        assert {row for e, row in met if e == epoch} == set(range(n))


def test_the_order_depends_on_seed_and_epoch_alone():
    assert (order(100, 1, 2) == order(100, 1, 2)).all()
    assert (order(100, 1, 2) != order(100, 1, 3)).any()
    assert (order(100, 1, 2) != order(100, 2, 2)).any()
    assert (order(5, 1, 2, shuffle=False) == range(5)).all()


def test_a_restart_at_any_batch_meets_the_same_prompts():
    straight = [batch_rows(b, 7, 10, seed=3) for b in range(20)]
    for batch in reversed(range(20)):
        assert batch_rows(batch, 7, 10, seed=3) == straight[batch]


def test_batches_follow_each_other_without_a_gap_and_may_straddle_epochs():
    assert position(0, 4, 6) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert position(1, 4, 6) == [(0, 4), (0, 5), (1, 0), (1, 1)]


def test_a_data_set_smaller_than_a_batch_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"prompts_per_batch \(8\) must not exceed the 7 usable rows"):
        position(0, 8, 7)
