"""What the comparison with TRL says follows from its cells, and would say otherwise if the curves
differed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.learner import (
    WEIGHTS,
    gradient,
    our_pass,
    ragged_batch,
    small_model,
    trl_inputs,
    trl_pass,
    trl_trainer,
)
from benchmarks.trl_cross_check import _arguments, _ordered, _rewards, prepare
from benchmarks.trl_cross_check_report import Cell, compare, rates, success_by, t_quantile, write_report
from common.config import Objective
from common.order import batch_rows
from common.prompts import load_tokenizer
from learner.batch import micro_batches, samples_of
from learner.estimator import Estimator
from learner.logprobs import Policy

STEPS, SEEDS = 20, 3


def cells(shift: float) -> list[Cell]:
    """Rising curves with the noise of 128 rollouts a step; ours is `shift` higher in the second half."""
    rng = np.random.default_rng(0)
    found = []
    for side in ("ours", "async", "trl"):
        for seed in range(SEEDS):
            reward = np.linspace(0.5, 0.9, STEPS) + rng.normal(0, 0.03, STEPS)
            reward += shift * (np.arange(STEPS) >= STEPS // 2) * (side == "ours")
            ended = [30.0 + 2.0 * s for s in range(STEPS)]
            same = [0.1] * STEPS
            found.append(Cell(side, seed, reward.tolist(), same, same, same, same, ended, 80.0))
    return found


def rewards(found: list[Cell], side: str) -> np.ndarray:
    return np.array([c.reward for c in found if c.side == side])


def test_the_quantiles_are_those_of_the_tables() -> None:
    assert t_quantile(0.975, 2) == pytest.approx(4.3027, abs=1e-4)
    assert t_quantile(0.975, 9) == pytest.approx(2.2622, abs=1e-4)
    assert t_quantile(0.995, 4) == pytest.approx(4.6041, abs=1e-4)


def test_equal_curves_agree_in_every_window_and_other_ones_do_not() -> None:
    same, other = cells(0.0), cells(0.3)
    whole, parts = compare(rewards(same, "ours"), rewards(same, "trl"))
    assert whole.agrees
    assert all(p.agrees for p in parts)
    assert [(p.first, p.last) for p in parts] == [(0, 3), (4, 7), (8, 11), (12, 15), (16, 19)]
    whole, parts = compare(rewards(other, "ours"), rewards(other, "trl"))
    assert not whole.agrees
    assert not parts[-1].agrees
    assert parts[0].agrees


def test_rates_leave_out_the_first_step_or_count_everything() -> None:
    assert rates(cells(0.0), "trl", per_step=128) == (pytest.approx(64.0), pytest.approx(128 * STEPS / 80))


def test_success_by_wall_clock_is_of_the_newest_steps_that_had_ended() -> None:
    one = cells(0.0)[0]
    rising = Cell(**{**asdict(one), "accuracy": [0.1 * step for step in range(STEPS)]})
    assert success_by([rising], "ours", 29.9) is None
    assert success_by([rising], "ours", 30.0 + 2.0 * 5) == pytest.approx(0.4)


def test_both_sides_get_the_same_prompts_rewards_and_settings(tmp_path: Path) -> None:
    small = ["rollout.prompts_per_batch=16", "rollout.group_size=8", "rollout.pre_rollouts=4"]
    config = prepare(tmp_path / "out", "tiny", ["learner.steps=3", *small])
    assert prepare(tmp_path / "out", "tiny", []) == config
    rows = _ordered(config, seed=5)
    indices = [row for b in range(3) for _, row in batch_rows(b, 16, 2000, 5)]
    assert [r.index for r in rows] == indices
    arguments = _arguments(tmp_path, config, seed=5)
    assert arguments.learning_rate == config.learner.optimizer.learning_rate
    assert arguments.generation_batch_size == 16 * 8
    assert (arguments.loss_type, arguments.beta, arguments.weight_decay) == ("dr_grpo", 0.0, 0.0)
    tokenizer = load_tokenizer(config.model.path)
    texts = ["<think>x</think><answer>7</answer><eos>", "<answer>7.0</answer><eos>", "<answer>8</answer>"]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    judged = [f(completion_ids=ids, gold=["7"] * 3) for f in _rewards(config, tokenizer)]
    assert judged == [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    with pytest.raises(SystemExit, match="has its settings already"):
        prepare(tmp_path / "out", "tiny", ["learner.steps=4"])


def test_the_report_holds_figures_and_the_cells_they_came_from(tmp_path: Path) -> None:
    config = prepare(tmp_path, "tiny", [])
    text = write_report(tmp_path, config, cells(0.0))
    assert text.count("| yes |") == 6
    for kind in ("json", "md", "png", "svg"):
        assert (tmp_path / f"trl-cross-check.{kind}").stat().st_size > 0


@pytest.mark.system
@pytest.mark.parametrize(
    ("loss", "normalisation", "equal"),
    [
        ("dr_grpo", "constant", True),
        ("grpo", "sequence", True),
        ("bnpo", "constant", False),
        ("bnpo", "sequence", False),
    ],
)
def test_which_of_trls_losses_are_ours_at_equal_group_sizes(
    tmp_path: Path, loss: str, normalisation: Any, equal: bool
) -> None:
    longest, vocabulary = 24, 48
    groups = [g for g in ragged_batch(48, longest, vocabulary) if g.size == 2]
    objective = Objective(importance="none", normalisation=normalisation)
    samples = samples_of(
        groups, Estimator(objective, WEIGHTS, "accuracy", 8, longest), len(groups), version=0
    )
    model = small_model(vocabulary, hidden=32, layers=2).train()
    micro, _ = micro_batches([[s] for s in samples], 300)
    our_pass(Policy(model), micro, objective, 16)
    ours = gradient(model)
    trainer = trl_trainer(model, longest, str(tmp_path))
    trainer.loss_type = loss
    model.train().zero_grad()
    plain = torch.tensor([s.advantage for s in samples], dtype=torch.float32)
    trl_pass(trainer, {**trl_inputs(samples, longest), "advantages": plain}, len(samples))
    difference = float((gradient(model) - ours).norm() / ours.norm())
    assert (difference < 1e-5) == equal
