"""A budget in tokens: against the greedy rule written out, one rollout at a time."""

import numpy as np
import pytest

from hora_rl.allocator.lengths import STRENGTH, WINDOW, Lengths, RunningLengths, ask_tokens, expected_lengths


def one_by_one(c: list[int], g0: int, tokens: float, lengths: list[float]) -> list[int]:
    """The highest gain per token next, until the next one does not fit."""
    extra = [0] * len(c)
    while True:
        gains = []
        for i, successes in enumerate(c):
            alpha, beta = 1.0 + successes, 1.0 + g0 - successes
            gain = alpha / (alpha + beta)
            for level in range(extra[i]):
                gain *= (beta + level) / (alpha + beta + level + 1)
            gains.append(gain / lengths[i])
        best = int(np.argmax(gains))
        tokens -= lengths[best]
        if tokens < 0:
            return extra
        extra[best] += 1


@pytest.mark.parametrize("seed", range(30))
def test_rollouts_go_where_gain_per_token_is_highest_until_the_tokens_are_spent(seed: int) -> None:
    chance = np.random.default_rng(seed)
    g0, n = 5, 7
    c = chance.integers(0, g0 + 1, n)
    # Lengths without a simple ratio, so that no two gains per token are equal but those of one class.
    lengths = Lengths(10.0, tuple(chance.uniform(5, 20, g0 + 1).tolist()))
    c = np.sort(c)  # ties go to the lower index
    tokens = float(chance.uniform(50, 900))
    found = ask_tokens([(c, g0)], tokens, lengths)
    assert found.tolist() == one_by_one(c.tolist(), g0, tokens, [lengths.by_class[k] for k in c])


def test_a_round_goes_by_everything_that_was_told_and_obeys_stop_and_cap() -> None:
    lengths = Lengths(10.0, (20.0,) + (10.0,) * 4)
    told = [(np.array([0, 0, 4]), 4), (np.array([1, 0, 0]), np.array([5, 5, 0]))]
    assert ask_tokens(told, 100.0, lengths, stop="hit").tolist() == [0, 5, 0], "20 tokens each"
    capped = ask_tokens(told, 100.0, lengths, stop="hit", max_group_size=12)
    assert (np.array([9, 9, 4]) + capped).max() <= 12
    assert capped.tolist()[1] == 3
    assert capped.sum() > 3


def test_a_rule_in_closed_form_is_cut_where_the_tokens_end() -> None:
    lengths = Lengths(10.0, (20.0, 10.0, 10.0))
    found = ask_tokens([(np.array([0, 2, 2]), 2)], 100.0, lengths, rule="uniform")
    assert 100.0 - 20.0 < float(found @ [20.0, 10.0, 10.0]) <= 100.0
    assert ask_tokens([(np.array([0, 1]), 2)], -5.0, lengths).tolist() == [0, 0], "the tokens are spent"


def test_a_class_is_as_long_as_its_own_rollouts_and_a_few_of_mean_length() -> None:
    found = expected_lengths([0, 0, 2], [40, 60, 20], 2)
    assert found.mean == 20.0
    own = (100 + STRENGTH * 20) / (4 + STRENGTH)
    assert found.by_class == pytest.approx((own, 20.0, (20 + STRENGTH * 20) / (2 + STRENGTH)))


def test_only_the_last_cycles_count() -> None:
    running = RunningLengths(2)
    assert running.now is None
    running.observe([0], [2000])
    for _ in range(WINDOW):
        running.observe([0], [20])
    assert running.now.mean == 10.0


@pytest.mark.parametrize(("successes", "tokens"), [([], []), ([1], [1, 2]), ([1, 1], [8, 1])])
def test_lengths_that_cannot_be_are_refused(successes: list[int], tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="tokens"):
        expected_lengths(successes, tokens, 2)
    with pytest.raises(ValueError, match="0 lengths for 2 prompts"):
        RunningLengths(2).observe([0, 1], [])
