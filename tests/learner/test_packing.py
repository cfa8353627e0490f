from unittest.mock import Mock

import numpy as np
import pytest
from transformers import Qwen2MoeConfig

from hora_rl.common.config import Config, ObjectiveConfig
from hora_rl.common.errors import ConfigError
from hora_rl.common.types import Group
from hora_rl.learner.records.recorder import step_metrics
from hora_rl.learner.rows import packing
from hora_rl.learner.rows.batch import micro_batches, samples_of
from hora_rl.learner.rows.estimator import Estimator
from hora_rl.learner.rows.packing import SAVING, Sharing, bins, divide, rows_of, window_of
from tests.support.groups import group, rollout
from tests.support.samples import ALWAYS, sized

CONFIG = Config.model_validate({"model": {"path": "m"}, "data": {"path": "arithmetic"}})


def ragged(rng: np.random.Generator, index: int) -> Group:
    """2 to 200 completions of lognormal length, median 600, cut at 2,048; every other one is right."""
    prompt = np.ones(int(rng.integers(60, 300)))
    size = int(np.clip(rng.lognormal(2.5, 1.0), 2, 200))
    lengths = [int(np.clip(rng.lognormal(np.log(600), 0.6), 1, 2048)) for _ in range(size)]
    rollouts = [rollout(np.ones(n), success=j % 2 == 1) for j, n in enumerate(lengths)]
    return group(index, rollouts, prompt=prompt)


@pytest.mark.parametrize("sharing", [None, ALWAYS, Sharing(even=3000.0)])
@pytest.mark.parametrize("budget", [4096, 16384])
@pytest.mark.parametrize("count", [1, 2, 24])  # sorting alone suffices for many, not for a small rank's share
def test_the_tensors_of_ragged_groups_are_95_percent_real_and_the_metric_says_how_much(
    sharing: Sharing | None, budget: int, count: int
) -> None:
    rng = np.random.default_rng(budget)
    groups = [ragged(rng, i) for i in range(count)]
    estimator = Estimator(ObjectiveConfig(), CONFIG.reward.weights, "accuracy", 8, 2048)
    samples = samples_of(groups, estimator, len(groups), version=0)
    cut = rows_of(samples, budget, sharing)
    micro, figures = micro_batches(cut, budget)
    real = sum(len(row[0].prompt) + sum(len(s.tokens) for s in row) for row in cut)
    assert sorted(id(s) for row in cut for s in row) == sorted(id(s) for s in samples)
    assert all(np.array_equal(s.prompt, row[0].prompt) for row in cut for s in row)
    processed = sum(m.input_ids.numel() for m in micro)
    assert max(m.input_ids.numel() for m in micro) <= budget
    assert real / processed >= 0.95
    result = step_metrics(0, groups, figures, CONFIG, ranks=1, grad_norm=1.0, learning_rate=0.1)
    assert result["padding/share"] == pytest.approx(1 - real / processed)


def test_widths_on_a_card_are_few_and_no_row_is_padded_by_an_eighth() -> None:
    widths = [n for n in range(1, 3000, 7) for micro in micro_batches([[sized(1, n)]], 4096, 64)[0]]
    padded = [micro_batches([[sized(1, n)]], 4096, 64)[0][0].input_ids.shape[1] for n in widths]
    assert len(set(padded)) < 64 + 3000 / 64
    for n, result in zip(widths, padded, strict=True):
        real = n + 1
        assert 0 <= result - real < max(8, real / 8)
        assert result % (64 if real >= 512 else 8) == 0


def test_a_completion_that_no_bin_can_hold_is_named_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"has 101 tokens, learner.tokens_per_microbatch is 100"):
        bins([5, 101], 100)
    assert bins([], 100) == []


def cost(prompt: int, completions: list[int], rows: list[list[int]], even: float) -> float:
    """Of a row under a mask all products, of one that is alone the causal half."""
    widths = [prompt + sum(completions[i] for i in row) for row in rows]
    return sum(w * even + w * w / (1 + (len(row) == 1)) for w, row in zip(widths, rows, strict=True))


@pytest.mark.parametrize(
    ("prompt", "completions"),
    [(42, [5] * 16), (300, [600] * 32), (2000, [20] * 64), (100, [2000, 3, 9, 400])],
)
def test_a_group_is_cut_where_it_costs_least(prompt: int, completions: list[int]) -> None:
    even, budget = 3000.0, 10**6
    result = divide(prompt, completions, budget, even)
    n = len(completions)
    # `count` rows of completions in turn, longest first: equal shares where they are equal.
    cuts = [[list(range(k, n, count)) for k in range(count)] for count in range(1, n + 1)]
    least = min(cost(prompt, completions, rows, even) for rows in cuts)
    assert cost(prompt, completions, result, even) <= 1.02 * least / (1.0 - SAVING)


def test_prompts_that_are_short_beside_completions_are_not_shared() -> None:
    assert divide(8, [400] * 16, 16384, 3000.0) == [[i] for i in range(16)]


def test_rows_stay_within_the_budget_though_more_would_cost_less() -> None:
    result = divide(100, [10] * 40, 200, 1e9)
    assert len(result) == 4
    assert all(len(row) == 10 for row in result)
    assert divide(100, [10] * 40, 109, 1e9) == [[i] for i in range(40)]


def test_a_sequence_longer_than_a_window_is_alone() -> None:
    samples = [sized(4, n) for n in (5, 6, 7, 8)]
    result = rows_of(samples, 1000, Sharing(even=1e9, window=10))
    assert sorted(len(row) for row in result) == [1, 1, 2]
    assert {len(s.tokens) for row in result for s in row if len(row) == 2} == {5, 6}
    assert window_of(Qwen2MoeConfig(sliding_window=10, use_sliding_window=True)) == 10
    assert window_of(Qwen2MoeConfig(sliding_window=10)) is None


def test_a_large_group_under_a_tight_budget_is_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are tried with ever smaller ones, each at a cost of completions times rows."""
    tried = Mock(wraps=packing.spread)
    monkeypatch.setattr(packing, "spread", tried)
    assert divide(2048, [1400] * 1544, 4096, 15_000.0) == [[i] for i in range(1544)]
    assert tried.call_count < 30
