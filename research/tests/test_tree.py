"""Beginnings computed once: the gradient is that of every sample alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hora_rl.common.config import ObjectiveConfig
from hora_rl.learner.model.logprobs import Policy, without_dropout
from hora_rl.learner.model.objective import policy_loss
from hora_rl.learner.rows.batch import MicroBatch, make_micro_batch
from hora_rl.learner.rows.packing import Sample
from research.study.loop import is_linear, tree
from tools.demo_models import make_model, make_tokenizer


def samples() -> list[Sample]:
    """24 samples of 2 prompts that begin alike with 4 different completions each, of unequal weight; some are
    the beginning of another."""
    rng = np.random.default_rng(0)
    common = rng.integers(1, 60, 3)
    prompts = [np.append(common, [i, 7]).astype(np.int32) for i in range(2)]
    text = rng.integers(1, 60, 6)
    texts = [np.array(t, np.int32) for t in (text, text[:4], [*text[:2], 61, 62], [63, 1])]
    made = []
    for i in range(24):
        tokens = texts[int(rng.integers(4))]
        match = np.ones(len(tokens), dtype=bool)
        logprobs = np.full(len(tokens), -4.0, np.float32)
        made.append(Sample(prompts[i % 2], tokens, logprobs, float(rng.normal()), 1 / (5 + i % 2), match))
    return made


def gradient(micro: MicroBatch) -> torch.Tensor:
    policy = Policy(without_dropout(make_model(make_tokenizer(64), 0)))
    logprobs, _ = policy(micro, 1.0, 1024)
    policy_loss(logprobs, logprobs.detach(), micro, ObjectiveConfig(importance="none"))[0].backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def test_a_tree_has_the_gradient_of_all_samples() -> None:
    micro = tree(samples())
    # 3 common, 2 of each prompt, then 5 of the longest text (the last is followed by nothing), 1 and 1 more.
    assert micro.input_ids.shape == (1, 3 + 2 * (2 + 5 + 1 + 1))
    expected, of_tree = gradient(make_micro_batch([[s] for s in samples()])), gradient(micro)
    assert float((expected - of_tree).norm() / expected.norm()) < 1e-5


def test_samples_whose_advantages_cancel_have_no_weight() -> None:
    sample = samples()[0]
    assert not tree([sample, replace(sample, advantage=-sample.advantage)]).advantage.any()


@pytest.mark.parametrize("settings", [{"kl": 0.1}, {"updates_per_batch": 2}, {"loss": "sapo"}])
def test_an_objective_that_is_not_linear_in_the_advantage_keeps_all(settings: dict[str, object]) -> None:
    assert not is_linear(ObjectiveConfig(**settings))
    assert is_linear(ObjectiveConfig())
