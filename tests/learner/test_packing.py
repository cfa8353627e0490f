import numpy as np
import pytest

from common.errors import ConfigError
from learner.packing import pack, rows


def lengths(seed: int, n: int = 500) -> list[int]:
    """Completions of a long-tailed length distribution, cut at 2,048 as in the paper's runs, behind prompts."""
    rng = np.random.default_rng(seed)
    return (np.minimum(2048, rng.lognormal(6.2, 0.6, n)).astype(int) + rng.integers(60, 300, n)).tolist()


@pytest.mark.parametrize("cut", [pack, rows])
@pytest.mark.parametrize("seed", range(5))
def test_every_completion_is_in_exactly_one_bin(cut, seed: int) -> None:  # type: ignore[no-untyped-def]
    values = lengths(seed)
    assert sorted(i for b in cut(values, 16384) for i in b) == list(range(len(values)))


@pytest.mark.parametrize("seed", range(5))
def test_no_bin_exceeds_the_budget(seed: int) -> None:
    values = lengths(seed)
    assert all(sum(values[i] for i in b) <= 16384 for b in pack(values, 16384))
    assert all(len(b) * max(values[i] for i in b) <= 16384 for b in rows(values, 16384))


@pytest.mark.parametrize("seed", range(5))
def test_at_least_95_percent_of_processed_tokens_are_real(seed: int) -> None:
    values = lengths(seed)
    processed = sum(len(b) * max(values[i] for i in b) for b in rows(values, 16384))
    assert sum(values) / processed >= 0.95


@pytest.mark.parametrize("cut", [pack, rows])
def test_a_completion_that_no_bin_can_hold_is_named_with_the_numbers(cut) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=r"has 101 tokens, learner.tokens_per_microbatch is 100"):
        cut([5, 101], 100)


@pytest.mark.parametrize("cut", [pack, rows])
def test_nothing_to_pack_is_no_bins(cut) -> None:  # type: ignore[no-untyped-def]
    assert cut([], 100) == []
