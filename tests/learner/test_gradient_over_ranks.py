"""The gradient that the real learner descends, over real ranks and every ZeRO stage, is the formula's.

The optimizer is made a ruler: with betas 0 and a huge epsilon an AdamW step moves the weights by RATIO times
the gradient and nothing else, so that the gradient can be read from the model that the run exports.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.common.types import Group, Rollout
from tests.support.real_learner import recorded, trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EPSILON = 1e6
SIZES = (1, 3, 5, 11, 200, 4)  # G_i; the last group has no signal
LONGEST = 100


def configuration(folder: Path, ratio: float, *more: str) -> Config:
    return load(
        "tiny",
        [
            "run.name=r",
            f"run.folder={folder}",
            "learner.steps=1",
            f"rollout.prompts_per_batch={len(SIZES)}",
            "rollout.shards=1",
            "rollout.group_size=20",
            f"rollout.max_response_tokens={LONGEST}",
            "learner.tokens_per_microbatch=512",
            "learner.optimizer.betas=[0.0, 0.0]",
            f"learner.optimizer.epsilon={EPSILON}",
            f"learner.optimizer.learning_rate={ratio * EPSILON}",
            "learner.optimizer.max_grad_norm=1e9",
            *more,
        ],
    )


def groups(config: Config) -> list[Group]:
    """Lengths from one token to the most allowed, both there."""
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, LONGEST + 1, size).tolist() for size in SIZES]
    lengths[2][:2] = [1, LONGEST]
    return recorded(config, lengths, per_batch=len(SIZES), without_signal=len(SIZES) - 1)


def logprobs_of(model: torch.nn.Module, group: Group, rollout: Rollout, temperature: float) -> torch.Tensor:
    ids = torch.from_numpy(np.concatenate([group.prompt_tokens, rollout.tokens])).long()
    logits = model(ids[None]).logits[0, len(group.prompt_tokens) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(-1, ids[len(group.prompt_tokens) :, None])[:, 0]


@cache
def descend(ratio: float, updates: int) -> dict[str, torch.Tensor]:
    """The weights after `updates` plain steps along the formula's gradient, one completion at a time, in
    float64."""
    config = configuration(Path(), ratio)
    data = groups(config)
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float64)
    with torch.no_grad():
        prox = [[logprobs_of(model, g, r, config.rollout.temperature) for r in g.rollouts] for g in data]
    for _ in range(updates):
        model.zero_grad()
        for group, of_group in zip(data, prox, strict=True):
            add_gradient(config, model, group, of_group, len(data))
        with torch.no_grad():
            for p in model.parameters():
                p -= ratio * p.grad
    return {n: p.detach() for n, p in model.named_parameters()}


def add_gradient(
    config: Config, model: torch.nn.Module, group: Group, prox: list[torch.Tensor], count: int
) -> None:
    objective, rollout = config.learner.objective, config.rollout
    rewards = np.array(
        [sum(w * r.rewards[n] for n, w in config.reward.weights.items()) for r in group.rollouts]
    )
    if rewards.std() == 0:
        return
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
    for r, a, old in zip(group.rollouts, advantages, prox, strict=True):
        ratio = torch.exp(logprobs_of(model, group, r, rollout.temperature) - old)
        clipped = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
        weight = torch.exp(old - torch.from_numpy(r.logprobs)).clamp(max=objective.importance_cap)
        loss = -(weight * torch.minimum(ratio * a, clipped * a)).sum()
        (loss / (count * group.size * rollout.max_response_tokens)).backward()


def relative(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], start: dict) -> float:
    """|found - wanted| over |wanted - start|, all weights together."""
    apart = torch.cat([(found[n].double() - wanted[n]).flatten() for n in wanted]).norm()
    moved = torch.cat([(wanted[n] - start[n].double()).flatten() for n in wanted]).norm()
    assert moved > 0
    return float(apart / moved)


def error_of(found: dict[str, torch.Tensor], config: Config, ratio: float, updates: int = 1) -> float:
    start = load_file(Path(config.model.path) / "model.safetensors")
    return relative(found, descend(ratio, updates), start)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_gradient_is_the_formulas_over_real_ranks_and_zero_stages(
    tmp_path: Path, ranks: int, stage: int
) -> None:
    ratio = 1e4  # far: what is left of the old weights must not drown the gradient in float32
    config = configuration(tmp_path, ratio, f"learner.zero_stage={stage}", f"learner.workers={ranks}")
    error = error_of(trained(config, groups(config), tmp_path), config, ratio)
    print(f"ranks {ranks}, ZeRO {stage}: {error:.1e}")
    assert error < 1e-5


def test_the_deepspeed_launcher_runs_the_same_learner(tmp_path: Path) -> None:
    ratio = 1e4
    config = configuration(tmp_path, ratio, "learner.zero_stage=1", "learner.workers=2")
    assert error_of(trained(config, groups(config), tmp_path, "deepspeed"), config, ratio) < 1e-5


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 0), (2, 3)])
def test_several_updates_on_a_batch_clip_against_the_policy_before_the_first(
    tmp_path: Path, ranks: int, stage: int
) -> None:
    # Three quarters of the tokens are clipped after the first update; 3.7e-5 is what float32 itself is off.
    ratio = 0.03
    config = configuration(
        tmp_path,
        ratio,
        f"learner.zero_stage={stage}",
        f"learner.workers={ranks}",
        "learner.objective.updates_per_batch=3",
    )
    error = error_of(trained(config, groups(config), tmp_path), config, ratio, 3)
    print(f"ranks {ranks}, ZeRO {stage}, three updates: {error:.1e}")
    assert error < 1e-4
    one = {n: t.float() for n, t in descend(3 * ratio, 1).items()}
    assert error_of(one, config, ratio, 3) > 1e-2, (
        "three updates must differ from one of three times the length"
    )


OPTIONS = [
    ("advantage=likelihood", "baseline=wald", "group_weight=difficulty"),
    ("advantage=pass_at_k", "k=1"),
    ("scale=batch", "aggregate=token", "overlong=mask"),
    ("multi_objective_aggregation=normalize_then_sum", "ratio=sequence", "normalisation=sequence"),
    ("loss=sapo", "kl=0.1", "kl_estimator=k2"),
    ("top_entropy_quantile=0.3", "entropy_coef=0.05"),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_has_one_gradient_over_real_ranks_and_zero_stages(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    ratio, settings = 1e4, [f"learner.objective.{option}" for option in options]
    alone = configuration(tmp_path / "alone", ratio, *settings)
    wanted = trained(alone, groups(alone), tmp_path / "alone")
    start = load_file(Path(alone.model.path) / "model.safetensors")
    for ranks, stage in ((2, 2), (2, 3), (4, 0)):
        folder = tmp_path / f"{ranks}-{stage}"
        config = configuration(
            folder, ratio, *settings, f"learner.zero_stage={stage}", f"learner.workers={ranks}"
        )
        error = relative(trained(config, groups(config), folder), wanted, start)
        print(f"{options}, ranks {ranks}, ZeRO {stage}: {error:.1e}")
        assert error < 1e-5
