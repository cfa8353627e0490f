import numpy as np
import pytest

from common.config import Config, Objective
from common.errors import ConfigError
from common.types import Group
from learner.batch import micro_batches, samples_of
from learner.estimator import Estimator
from learner.metrics import step_metrics
from learner.packing import pack, rows
from tests.support.groups import group, rollout

CONFIG = Config.model_validate({"model": {"path": "m"}, "data": {"path": "arithmetic"}})


def lengths(seed: int, n: int = 500) -> list[int]:
    """Completions of a long-tailed length distribution, cut at 2,048 as in the paper's runs, behind
    prompts."""
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


def ragged(rng: np.random.Generator, index: int) -> Group:
    """2 to 200 completions of lognormal length, median 600, cut at 2,048: every other one right, so all are
    trained on."""
    prompt = np.ones(int(rng.integers(60, 300)))
    size = int(np.clip(rng.lognormal(2.5, 1.0), 2, 200))
    lengths = [int(np.clip(rng.lognormal(np.log(600), 0.6), 1, 2048)) for _ in range(size)]
    rollouts = [rollout(np.ones(n), success=j % 2 == 1) for j, n in enumerate(lengths)]
    return group(index, rollouts, prompt=prompt)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("budget", [4096, 16384])
@pytest.mark.parametrize("count", [1, 2, 24])  # sorting alone suffices for many, not for a small rank's share
def test_the_tensors_of_ragged_groups_are_95_percent_real_and_the_metric_says_how_much(
    packed: bool, budget: int, count: int
) -> None:
    rng = np.random.default_rng(budget)
    groups = [ragged(rng, i) for i in range(count)]
    samples = samples_of(
        groups, Estimator(Objective(), CONFIG.reward.weights, "accuracy", 8, 2048), len(groups), version=0
    )
    micro, figures = micro_batches(samples, budget, packed)
    real = sum(len(g.prompt_tokens) + len(r.tokens) for g in groups for r in g.rollouts)
    processed = sum(m.input_ids.shape[0] * m.input_ids.shape[1] for m in micro)
    assert processed >= real
    assert real / processed >= 0.95
    assert not packed or processed == real
    found = step_metrics(0, groups, figures, CONFIG, ranks=1, grad_norm=1.0, learning_rate=0.1)
    assert found["padding/share"] == pytest.approx(1 - real / processed)


@pytest.mark.parametrize("cut", [pack, rows])
def test_a_completion_that_no_bin_can_hold_is_named_with_the_numbers(cut) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=r"has 101 tokens, learner.tokens_per_microbatch is 100"):
        cut([5, 101], 100)


@pytest.mark.parametrize("cut", [pack, rows])
def test_nothing_to_pack_is_no_bins(cut) -> None:  # type: ignore[no-untyped-def]
    assert cut([], 100) == []
