"""Priors on known success rates: what a fitted prior must change, and the figures of one batch."""

import numpy as np
import pytest

from hora_rl.allocator.priors import make_prior
from hora_rl.allocator.priors.make import NAMES
from research import prior_ablation
from research.prior_ablation import fitted, run, table, with_hit


def test_the_shares_of_a_batch_are_those_of_its_rates() -> None:
    found = with_hit(np.array([0, 2]), np.array([3, 1]), np.array([0.5, 0.25]))
    assert found == pytest.approx(((1 - 0.5**3 + 1) / 2, (1 - 0.5**3 + 0.25) / 2))


RATE = np.tile([0.02, 0.3], 120)


class Known:
    """The prior that knows every rate."""

    name = "known"

    def predict(self, prompts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 1e6 * RATE[prompts], 1e6 * (1 - RATE[prompts])

    def update(self, prompts: np.ndarray, successes: np.ndarray, trials: int) -> None:
        assert np.all(successes <= trials)


def test_a_prior_that_knows_the_rates_finds_more_of_what_the_rule_maximises() -> None:
    trained = np.arange(240)
    fixed = run(make_prior("fixed", n=240), RATE, trained, (16, 2), 0)
    assert run(Known(), RATE, trained, (16, 2), 0)[1] > fixed[1] + 0.01  # type: ignore[arg-type]


def test_a_prior_is_fitted_on_the_prompts_that_are_not_trained() -> None:
    features = {True: np.eye(2, dtype=np.float32)[np.tile([0, 1], 120)]}
    alpha, beta = fitted("hidden-static", features, RATE, np.arange(120), 8, 0).predict(np.arange(120, 122))
    rare, common = alpha / (alpha + beta)
    assert rare + 0.25 < common


def test_a_table_has_every_prior_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prior_ablation, "SEEDS", 2)
    monkeypatch.setattr(prior_ablation, "EPOCHS", 1)
    rng = np.random.default_rng(0)
    features = {kind: rng.normal(size=(64, 4)).astype(np.float32) for kind in (True, False)}
    lines = table(rng.uniform(0.01, 0.4, 64), np.arange(32), features)
    assert [line.split(" ")[1] for line in lines[2:]] == list(NAMES)
    assert {line.count("|") for line in lines} == {2 + 2 * len(prior_ablation.SIZES)}
    assert all("±" in line for line in lines[3:])
