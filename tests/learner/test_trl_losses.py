"""On equal groups each loss that TRL has too has TRL's gradient, at another policy than the sampling one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from benchmarks import learner as benchmark
from benchmarks.learner import TEMPERATURE, small_model, trl_trainer
from hora_rl.common.config import ObjectiveConfig
from hora_rl.common.types import Group, Rollout
from hora_rl.learner.model.logprobs import Policy
from hora_rl.learner.model.objective import policy_loss
from hora_rl.learner.rows.batch import micro_batches, samples_of
from hora_rl.learner.rows.estimator import Estimator
from tests.support.formula import apart, flat
from tests.support.groups import group, rollout
from tests.support.samples import sample

LONGEST, VOCABULARY, GROUPS, SIZE = 16, 48, 4, 4
WEIGHTS = {"accuracy": 0.6, "format": 0.4}

pytestmark = [pytest.mark.system, pytest.mark.core]  # TRL's trainer takes seconds to build


def groups() -> list[Group]:
    """Every group has right and wrong rollouts, and one that was cut at its limit."""
    rng = np.random.default_rng(3)
    made = []
    for i in range(GROUPS):
        prompt = rng.integers(2, VOCABULARY, 5)
        made.append(group(i, [sampled(rng, j) for j in range(SIZE)], prompt=prompt, pre_rollouts=2))
    return made


def sampled(rng: np.random.Generator, j: int) -> Rollout:
    n = LONGEST if j == 2 else int(rng.integers(2, LONGEST))
    right = j == 0 or (j > 1 and bool(rng.random() < 0.4))
    rewards = {"accuracy": float(right), "format": float(rng.random())}
    tokens = rng.integers(2, VOCABULARY, n)
    return rollout(tokens, finish_reason="length" if j == 2 else "stop", rewards=rewards, success=right)


def trl_inputs(data: list[Group], advantages: torch.Tensor, noise: list[np.ndarray]) -> dict[str, Any]:
    """TRL's tensors of one generation batch; π_old and π_ref are filled in by `with_policies`."""
    samples = [sample(g.prompt_tokens, r.tokens) for g in data for r in g.rollouts]
    inputs = {**benchmark.trl_inputs(samples, LONGEST), "advantages": advantages.float()}
    return {**inputs, "noise": pad_sequence([torch.from_numpy(n) for n in noise], batch_first=True)}


def with_policies(trainer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    noise = inputs.pop("noise")
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    with torch.no_grad():
        now = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, noise.shape[1])[0]
    return {**inputs, "old_per_token_logps": now + noise, "ref_per_token_logps": now - 0.5 * noise}


def our_gradient(
    model: Any, data: list[Group], objective: ObjectiveConfig, inputs: dict[str, Any]
) -> torch.Tensor:
    """As the engine does: the loss of each micro-batch, one completion each."""
    estimator = Estimator(objective, WEIGHTS, "accuracy", SIZE, LONGEST)
    trained = [row for row, r in enumerate(r for g in data for r in g.rollouts) if estimator.trains(r)]
    samples, policy = samples_of(data, estimator, GROUPS, version=0), Policy(model)
    assert len(samples) == len(trained), "every rollout has a signal, so that rows and samples are the same"
    model.zero_grad()
    for row, each in zip(trained, samples, strict=True):
        [micro], _ = micro_batches([[each]], 300)
        n = len(each.tokens)
        reference = inputs["ref_per_token_logps"][row, :n] if objective.kl else None
        prox = inputs["old_per_token_logps"][row, :n]
        policy_loss(policy(micro, TEMPERATURE, 16)[0], prox, micro, objective, reference)[0].backward()
    return flat(model)


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"loss_type": "grpo"}, {"normalisation": "sequence"}),
    ({"loss_type": "dr_grpo"}, {}),
    ({"loss_type": "dapo", "epsilon_high": 0.28}, {"loss": "dapo", "overlong": "keep"}),
    ({"loss_type": "cispo", "epsilon_high": 1.3}, {"loss": "cispo", "clip_high": 0.3}),
    ({"loss_type": "sapo"}, {"loss": "sapo"}),
    (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04},
        {"loss": "gspo", "clip_low": 0.03, "clip_high": 0.04},
    ),
    ({"beta": 0.3, "use_bias_correction_kl": False}, {"kl": 0.3}),
    (
        {"loss_type": "dapo", "mask_truncated_completions": True},
        {"normalisation": "token", "overlong": "mask"},
    ),
    ({"mask_truncated_completions": True}, {"overlong": "mask"}),
    ({"scale_rewards": "none"}, {"advantage": "dr_grpo"}),
]


def trl_advantages(data: list[Group], theirs: dict[str, Any]) -> torch.Tensor:
    """The lines of GRPOTrainer that make advantages of rewards."""
    from trl.trainer.utils import nanstd

    per_func = torch.tensor([[r.rewards[n] for n in WEIGHTS] for g in data for r in g.rollouts])
    rewards = (per_func * torch.tensor(list(WEIGHTS.values()))).sum(dim=1).view(-1, SIZE)
    centred = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()
    if theirs.get("scale_rewards") == "none":
        return centred
    return centred / (nanstd(rewards, dim=1).repeat_interleave(SIZE) + 1e-4)


@pytest.mark.parametrize(("theirs", "ours"), CASES, ids=str)
def test_the_gradient_of_each_loss_is_trls(theirs: dict, ours: dict, tmp_path: Path) -> None:
    objective = ObjectiveConfig.model_validate({"importance": "none", **ours})
    data, rng = groups(), np.random.default_rng(5)
    model = small_model(VOCABULARY, hidden=32, layers=2).train()
    settings = {name: value for name, value in theirs.items() if name != "beta"}
    trainer = trl_trainer(model, LONGEST, str(tmp_path), steps_per_generation=1, **settings)
    trainer.beta = theirs.get("beta", 0.0)  # given to its configuration, it would load a reference model
    noise = [rng.normal(0.0, 0.4, len(r.tokens)).astype(np.float32) for g in data for r in g.rollouts]
    inputs = trl_inputs(data, trl_advantages(data, theirs), noise)
    inputs = with_policies(trainer, inputs)
    if theirs.get("mask_truncated_completions"):
        cut = torch.tensor([r.finish_reason == "length" for g in data for r in g.rollouts])
        inputs["completion_mask"] = inputs["completion_mask"] * (~cut)[:, None]
        inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
    model.zero_grad()
    trainer._compute_loss(model, inputs).backward()
    wanted = flat(model)
    assert apart(our_gradient(model, data, objective, inputs), wanted) < 1e-5


def test_on_ragged_groups_the_gradient_is_dr_grpos_with_rows_weighted_by_1_over_g(tmp_path: Path) -> None:
    model = small_model(VOCABULARY, hidden=32, layers=2).train()
    trainer = trl_trainer(model, LONGEST, str(tmp_path))
    objective, data = ObjectiveConfig(importance="none"), benchmark.ragged_batch(24, LONGEST, VOCABULARY)
    estimator = Estimator(objective, benchmark.WEIGHTS, "accuracy", 8, LONGEST)
    samples = samples_of(data, estimator, len(data), version=0)
    micro, _ = micro_batches([[s] for s in samples], 300)
    benchmark.our_pass(Policy(model), micro, objective, 16)
    ours = flat(model)
    model.zero_grad()
    benchmark.trl_pass(trainer, benchmark.trl_inputs(samples, LONGEST), 5)
    assert apart(flat(model), ours) < 1e-5
