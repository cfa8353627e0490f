"""The allocation is the optimum, exactly, and deterministic."""

import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hora_rl.allocator import allocate
from hora_rl.allocator.posterior import posterior
from hora_rl.allocator.rules import get_rule
from hora_rl.allocator.rules.base import Marginal


def marginal(alpha: Fraction, beta: Fraction, level: int) -> Fraction:
    """E[p(1-p)^l] under Beta(alpha, beta), by the paper's recurrence."""
    m = alpha / (alpha + beta)
    for k in range(level):
        m *= (beta + k) / (alpha + beta + k + 1)
    return m


def utility(successes, trials, prior, extra) -> Fraction:  # type: ignore[no-untyped-def]
    a0, b0 = prior
    total = Fraction(0)
    for i, (c, d) in enumerate(zip(successes, extra, strict=True)):
        alpha = Fraction(a0[i] if np.ndim(a0) else a0) + int(c)
        beta = Fraction(b0[i] if np.ndim(b0) else b0) + trials - int(c)
        total += sum((marginal(alpha, beta, k) for k in range(int(d))), Fraction(0))
    return total


def best(successes, trials, prior, budget, room) -> Fraction:  # type: ignore[no-untyped-def]
    """Dynamic programming over prompts in exact arithmetic."""
    a0, b0 = prior
    table = {0: Fraction(0)}
    for i, c in enumerate(successes):
        alpha = Fraction(a0[i] if np.ndim(a0) else a0) + int(c)
        beta = Fraction(b0[i] if np.ndim(b0) else b0) + trials - int(c)
        gains = [Fraction(0)]
        for k in range(min(room, budget)):
            gains.append(gains[-1] + marginal(alpha, beta, k))
        new: dict[int, Fraction] = {}
        for spent, value in table.items():
            for d in range(min(room, budget - spent) + 1):
                new[spent + d] = max(new.get(spent + d, Fraction(-1)), value + gains[d])
        table = new
    return table[budget]


def instance(rng: np.random.Generator):  # type: ignore[no-untyped-def]
    n, trials, budget = int(rng.integers(1, 5)), int(rng.integers(1, 10)), int(rng.integers(0, 10))
    return rng.integers(0, trials + 1, n), trials, budget


@pytest.mark.parametrize("seed", range(4))
def test_no_allocation_is_better_with_a_shared_prior(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(250):
        c, trials, budget = instance(rng)
        prior = (int(rng.integers(1, 4)), int(rng.integers(1, 4))) if rng.random() < 0.5 else (0.5, 2.25)
        extra = allocate(c, trials, budget, prior)
        assert extra.sum() == budget
        assert utility(c, trials, prior, extra) == best(c, trials, prior, budget, budget)


@pytest.mark.parametrize("seed", range(4))
def test_no_allocation_is_better_with_a_prior_per_prompt(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    for _ in range(200):
        c, trials, budget = instance(rng)
        prior = (rng.uniform(0.2, 4.0, len(c)), rng.uniform(0.2, 4.0, len(c)))
        extra = allocate(c, trials, budget, prior)
        assert extra.sum() == budget
        assert utility(c, trials, prior, extra) == best(c, trials, prior, budget, budget)


@pytest.mark.parametrize("seed", range(3))
def test_no_allocation_under_a_cap_is_better(seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    for _ in range(200):
        c, trials, _ = instance(rng)
        room = int(rng.integers(0, 5))
        budget = int(rng.integers(0, room * len(c) + 1))
        for prior in ((1, 1), (rng.uniform(0.2, 4.0, len(c)), rng.uniform(0.2, 4.0, len(c)))):
            extra = allocate(c, trials, budget, prior, max_group_size=trials + room)
            assert extra.sum() == budget
            assert extra.max(initial=0) <= room
            assert utility(c, trials, prior, extra) == best(c, trials, prior, budget, room)


def test_both_ways_to_the_optimum_agree_to_the_last_tie() -> None:
    rng = np.random.default_rng(5)
    for _ in range(250):
        n, trials = int(rng.integers(1, 40)), int(rng.integers(1, 12))
        c, budget = rng.integers(0, trials + 1, n), int(rng.integers(0, 20 * n))
        ones = np.ones(n)
        np.testing.assert_array_equal(allocate(c, trials, budget), allocate(c, trials, budget, (ones, ones)))


def test_nine_pairs_of_blocks_tie_under_the_uniform_prior_and_fewer_successes_go_first() -> None:
    blocks: dict[Fraction, list[tuple[int, int]]] = {}
    for c in range(9):
        gain = Fraction(1 + c, 10)
        for k in range(200):
            blocks.setdefault(gain, []).append((c, k))
            gain *= Fraction(9 - c + k, 11 + k)
    pairs = [(*one, *two) for same in blocks.values() for one, two in pairwise(same)]
    assert len(pairs) == 9
    assert marginal(Fraction(4), Fraction(6), 1) == marginal(Fraction(6), Fraction(4), 1) == Fraction(12, 55)
    for c, k, d, m in pairs:
        # One prompt of each class: with the budget just before the tie is decided, the lower count gets the
        # rollout.
        for budget in range(1, 140):
            extra = allocate([d, c], 8, budget)
            if tuple(extra) == (m, k + 1):
                break
            assert tuple(extra) != (m + 1, k), (c, k, d, m)


def test_equal_prompts_differ_by_at_most_one_and_lower_indices_come_first() -> None:
    rng = np.random.default_rng(6)
    for _ in range(200):
        c, budget = rng.integers(0, 9, 60), int(rng.integers(0, 1440))
        extra = allocate(c, 8, budget)
        for value in np.unique(c):
            same = extra[c == value]
            assert same.max() - same.min() <= 1
            assert all(a >= b for a, b in pairwise(same.tolist()))


def test_shards_of_the_papers_mix_spend_as_the_paper_measured() -> None:
    rng = np.random.default_rng(7)
    spent = np.zeros(9)
    for _ in range(4000):
        c = rng.binomial(8, rng.beta(0.323, 0.143, 15))
        np.add.at(spent, c, allocate(c, 8, 360))
    share = spent / spent.sum()
    assert share[0] == pytest.approx(0.575, abs=0.015)
    assert share[8] == pytest.approx(0.113, abs=0.005)


def test_one_unsolved_prompt_among_fourteen_solved_gets_274_of_360() -> None:
    assert allocate([0] + [8] * 14, 8, 360)[0] == 274


def test_uniform_is_even_and_hard_first_goes_to_the_unsolved() -> None:
    assert allocate([3, 0, 8], 8, 9, rule="uniform").tolist() == [3, 3, 3]
    assert allocate([3, 0, 8], 8, 10, rule="uniform").tolist() == [3, 4, 3]
    assert allocate([3, 0, 0], 8, 9, rule="hard_first").tolist() == [0, 5, 4]
    assert allocate([3, 1, 2], 8, 9, rule="hard_first").tolist() == [3, 3, 3]


@pytest.mark.parametrize("rule", ["hit_utility", "uniform", "hard_first", "variance", "knapsack", "coba_rl"])
def test_every_rule_spends_the_whole_budget_under_a_cap(rule: str) -> None:
    rng = np.random.default_rng(8)
    for _ in range(50):
        c = rng.integers(0, 9, 15)
        assert allocate(c, 8, 360, rule=rule).sum() == 360
        capped = allocate(c, 8, 360, rule=rule, max_group_size=40)
        assert capped.sum() == 360
        assert capped.max() <= 32


def rising(posterior, level):  # type: ignore[no-untyped-def]
    return posterior.mean + level


def test_a_rule_whose_gain_rises_is_refused() -> None:
    with pytest.raises(ValueError, match="rises from level 0 to 1"):
        allocate([1, 2], 4, 10, rule=f"{__name__}:rising")


NO_FUNCTION = 3


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (3, "must be a name, 'package.module:function' or a function, not 3"),
        (None, "must be a name, 'package.module:function' or a function, not None"),
        (f"{__name__}:NO_FUNCTION", "is no function but 3"),
    ],
)
def test_what_cannot_be_a_rule_is_a_value_error_that_names_what_can(rule: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        allocate([1, 2], 4, 10, rule=rule)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"successes": [1, 9], "trials": 8, "budget": 3}, r"successes\[1\] = 9 must be in 0..trials = 8"),
        ({"successes": [1, -1], "trials": 8, "budget": 3}, r"successes\[1\] = -1"),
        ({"successes": [1, 2], "trials": 8, "budget": -1}, "budget must be a whole number from 0"),
        ({"successes": [1, 2], "trials": 8, "budget": 9, "max_group_size": 12}, r"budget \(9\) exceeds .*:"),
        ({"successes": [1, 2], "trials": 8, "budget": 1, "prior": (0.0, 1.0)}, "prior alpha = 0.0 must be"),
        (
            {"successes": [1, 2], "trials": 8, "budget": 1, "prior": ([1.0, np.nan], 1.0)},
            r"prior alpha\[1\] = nan",
        ),
        ({"successes": [1, 2], "trials": 8, "budget": 1, "prior": ([1.0], 1.0)}, r"prior alpha must be .*"),
        ({"successes": [1, 2], "trials": [8, 8, 8], "budget": 1}, "trials must be"),
        ({"successes": [1, 2], "trials": 8, "budget": 1, "rule": "nope"}, "rule: 'nope' is none of"),
        ({"successes": [0.5], "trials": 8, "budget": 1}, "successes must be integers"),
    ],
)
def test_bad_input_is_named_with_its_first_index(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        allocate(**arguments)


def test_numpy_is_all_it_needs() -> None:
    code = (
        "import sys\n"
        "class Only:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in "
        "{'torch','scipy','ray','redis','vllm','transformers','pydantic'} or name == 'hora_rl.common':\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Only())\n"
        "from hora_rl.allocator import allocate\n"
        "print(allocate([0, 3, 8], 8, 72).tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[53, 15, 4]"


def test_a_shard_of_solved_prompts_costs_no_more_than_its_own_levels() -> None:
    """Absent unsolved prompts would still gain more at level 10^9 than a solved one at level 120."""
    for group_size in (32, 128, 1024):
        extra = allocate([8] * 15, 8, 15 * (group_size - 8))
        assert extra.tolist() == [group_size - 8] * 15


def zero_when_solved(posterior, level):  # type: ignore[no-untyped-def]
    return np.where(posterior.successes < posterior.trials, 1.0 / (1 + level), 0.0) * (level < 5)


@pytest.mark.parametrize("n", [20, 2000])
def test_a_users_rule_may_gain_nothing_and_the_budget_is_spent_all_the_same(n: int) -> None:
    rng = np.random.default_rng(0)
    successes = rng.integers(0, 9, n)
    prior = (rng.uniform(0.5, 2, n), rng.uniform(0.5, 2, n))
    rule = f"{__name__}:zero_when_solved"
    extra = allocate(successes, 8, 24 * n, prior=prior, rule=rule, max_group_size=64)
    assert extra.sum() == 24 * n
    assert extra[successes < 8].min() >= 5


@pytest.mark.parametrize("rule", ["hit_utility", "variance", "variance(dr_grpo)", "variance(prior)"])
@pytest.mark.parametrize("cap", [None, 40])
def test_many_different_prompts_get_what_a_full_sort_of_their_gains_gives(rule: str, cap: int | None) -> None:
    rng = np.random.default_rng(1)
    n, budget = 1500, 24 * 1500
    successes, trials = rng.integers(0, 9, n), np.full(n, 8)
    prior = (rng.uniform(0.3, 3, n), rng.uniform(0.3, 3, n))
    extra = allocate(successes, trials, budget, prior=prior, rule=rule, max_group_size=cap)
    marginal_rule = get_rule(rule)
    assert isinstance(marginal_rule, Marginal)
    depth = 1200 if cap is None else cap - 8
    table = marginal_rule.table(posterior(successes, trials, *prior), depth)
    taken = np.arange(depth) < extra[:, None]
    assert extra.sum() == budget
    assert extra.max() < depth or cap is not None
    assert table[taken].min() >= table[~taken].max() - 1e-9


def test_prompts_without_room_get_nothing_and_the_others_what_they_get_alone() -> None:
    rng = np.random.default_rng(0)
    n, cap = 1024, 12
    trials = rng.integers(2, 9, n)
    trials[::16] = cap
    successes, open_ = rng.integers(0, trials + 1), trials < cap
    found = allocate(successes, trials, 2000, max_group_size=cap)
    assert not found[~open_].any()
    alone = allocate(successes[open_], trials[open_], 2000, max_group_size=cap)
    assert found[open_].tolist() == alone.tolist()
