"""Where TRL's GRPOTrainer computes the same quantity, it computes the same numbers. Where it differs:
1/G_i."""

from pathlib import Path

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
from hora_rl.common.config import Objective
from hora_rl.learner.batch import micro_batches, samples_of
from hora_rl.learner.estimator import Estimator
from hora_rl.learner.logprobs import Policy
from hora_rl.learner.objective import policy_loss
from hora_rl.learner.sample import Sample

LONGEST, VOCABULARY = 24, 48

pytestmark = pytest.mark.system  # TRL's trainer takes seconds to build


@pytest.fixture
def trainer(tmp_path: Path):  # type: ignore[no-untyped-def]
    model = small_model(VOCABULARY, hidden=32, layers=2).train()
    return trl_trainer(model, LONGEST, str(tmp_path))


def batch(objective: Objective) -> tuple[list[Sample], int]:
    groups = ragged_batch(24, LONGEST, VOCABULARY)
    return samples_of(
        groups, Estimator(objective, WEIGHTS, "accuracy", 8, LONGEST), len(groups), version=0
    ), len(groups)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_the_gradient_is_that_of_dr_grpo_with_rows_weighted_by_one_over_the_group(trainer) -> None:  # type: ignore[no-untyped-def]
    objective = Objective(importance="none")
    samples, _ = batch(objective)
    micro, _ = micro_batches([[s] for s in samples], 300)
    trainer.model.zero_grad()
    our_pass(Policy(trainer.model), micro, objective, 16)
    ours = gradient(trainer.model)
    trainer.model.zero_grad()
    trl_pass(trainer, trl_inputs(samples, LONGEST), 5)
    assert relative(ours, gradient(trainer.model)) < 1e-5


def test_clipping_of_a_later_update_is_trls(trainer) -> None:  # type: ignore[no-untyped-def]
    objective = Objective(importance="none")
    samples, _ = batch(objective)
    inputs = trl_inputs(samples, LONGEST)
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(rng.normal(0.0, 0.4, inputs["completion_ids"].shape)).float()
    with torch.no_grad():
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        old = (
            trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, mask, noise.shape[1], compute_entropy=True
            )[0]
            + noise
        )
    trl_loss = trainer._compute_loss(trainer.model, {**inputs, "old_per_token_logps": old})
    total, limited = 0.0, 0.0
    for i, sample in enumerate(samples):
        [micro], _ = micro_batches([[sample]], 300)
        logprobs, _ = Policy(trainer.model)(micro, 0.7, 16)
        loss, stats = policy_loss(logprobs, old[i, : len(sample.tokens)], micro, objective)
        total, limited = total + float(loss), limited + stats["clip"]
    assert limited > 10
    assert total == pytest.approx(float(trl_loss), rel=1e-4)


def test_log_probs_and_entropy_are_trls(trainer) -> None:  # type: ignore[no-untyped-def]
    samples, _ = batch(Objective())
    inputs = trl_inputs(samples, LONGEST)
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    with torch.no_grad():
        expected = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, inputs["completion_ids"].shape[1], compute_entropy=True
        )
        for i, sample in enumerate(samples):
            [micro], _ = micro_batches([[sample]], 300)
            n = len(sample.tokens)
            for ours, theirs in zip(Policy(trainer.model)(micro, 0.7, 7), expected[:2], strict=True):
                torch.testing.assert_close(ours, theirs[i, :n].float(), rtol=1e-4, atol=1e-5)
