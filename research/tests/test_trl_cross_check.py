"""TRL and ours get the same prompts, rewards and settings; which of TRL's losses are ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from hora_rl.common.config import Objective
from hora_rl.common.data.prompt_order import Mixture, mixed_rows
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.learner.batch import micro_batches, samples_of
from hora_rl.learner.estimator import Estimator
from hora_rl.learner.logprobs import Policy
from research.trl_cross_check import _arguments, _ordered, _rewards, prepare


def test_both_sides_get_the_same_prompts_rewards_and_settings(tmp_path: Path) -> None:
    small = ["rollout.prompts_per_batch=16", "rollout.group_size=8", "rollout.pre_rollouts=4"]
    config = prepare(tmp_path / "out", "tiny", ["learner.steps=3", *small])
    assert prepare(tmp_path / "out", "tiny", []) == config
    rows = _ordered(config, seed=5)
    indices = [row for b in range(3) for _, row in mixed_rows(b, 16, Mixture((2000,)), 5)]
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
