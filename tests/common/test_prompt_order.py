from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hora_rl.common.data.prompt_order import batch_rows, order


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 40),
    prompts=st.integers(1, 40),
    seed=st.integers(0, 5),
    batches=st.integers(1, 25),
    shuffle=st.booleans(),
)
def test_no_batch_holds_a_prompt_twice_and_no_epoch_does(n, prompts, seed, batches, shuffle):
    prompts = min(prompts, n)
    met = Counter()
    for batch in range(batches):
        rows = batch_rows(batch, prompts, n, seed, shuffle)
        assert len({row for _, row in rows}) == len(rows) == prompts
        met.update(rows)
    assert max(met.values()) == 1
    for epoch in range(batches // (n // prompts)):
        assert sum(e == epoch for e, _ in met) == n - n % prompts, "an epoch leaves out less than a batch"


def test_the_order_depends_on_seed_and_epoch_alone():
    assert (order(100, 1, 2) == order(100, 1, 2)).all()
    assert (order(100, 1, 2) != order(100, 1, 3)).any()
    assert (order(100, 1, 2) != order(100, 2, 2)).any()
    assert (order(5, 1, 2, shuffle=False) == range(5)).all()


def test_over_epochs_every_row_is_met():
    met = {row for batch in range(40) for _, row in batch_rows(batch, 7, 10, seed=3)}
    assert met == set(range(10))


def test_a_data_set_smaller_than_a_batch_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"prompts_per_batch \(8\) must not exceed the 7 usable rows"):
        batch_rows(0, 8, 7, seed=0)
