"""Equal completions merged into one: the gradient stays, the tokens do not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hora_rl.common.config import ObjectiveConfig
from hora_rl.learner.model.logprobs import Policy, without_dropout
from hora_rl.learner.model.objective import policy_loss
from hora_rl.learner.rows.batch import make_micro_batch
from hora_rl.learner.rows.packing import Sample
from research.study.loop import merged
from tools.demo_models import make_model, make_tokenizer


def samples() -> list[Sample]:
    """24 samples of 2 prompts with 3 different completions each, of unequal weight."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 60, 5).astype(np.int32) for _ in range(2)]
    texts = [[rng.integers(1, 60, n).astype(np.int32) for n in (3, 4, 6)] for _ in prompts]
    made = []
    for i in range(24):
        tokens = texts[i % 2][int(rng.integers(3))]
        match = np.ones(len(tokens), dtype=bool)
        logprobs = np.full(len(tokens), -4.0, np.float32)
        made.append(Sample(prompts[i % 2], tokens, logprobs, float(rng.normal()), 1 / (5 + i % 2), match))
    return made


def gradient(chosen: list[Sample], objective: ObjectiveConfig) -> torch.Tensor:
    policy = Policy(without_dropout(make_model(make_tokenizer(64), 0)))
    micro = make_micro_batch([[s] for s in chosen])
    logprobs, _ = policy(micro, 1.0, 1024)
    policy_loss(logprobs, logprobs.detach(), micro, objective)[0].backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def test_merged_samples_have_the_gradient_of_all() -> None:
    objective = ObjectiveConfig(importance="none")
    every, few = samples(), merged(samples(), objective)
    assert len(few) == 6
    expected, merged_ = gradient(every, objective), gradient(few, objective)
    assert float((expected - merged_).norm() / expected.norm()) < 1e-5


def test_samples_whose_advantages_cancel_are_left_out() -> None:
    sample = samples()[0]
    twin = replace(sample, advantage=-sample.advantage)
    assert merged([sample, twin], ObjectiveConfig()) == []


@pytest.mark.parametrize("settings", [{"kl": 0.1}, {"updates_per_batch": 2}, {"loss": "sapo"}])
def test_an_objective_that_is_not_linear_in_the_advantage_keeps_all(settings: dict[str, object]) -> None:
    assert len(merged(samples(), ObjectiveConfig(**settings))) == 24
