"""The gradient of equation 1: by its formula, one completion at a time, and as the learner cuts a batch."""

from dataclasses import replace

import numpy as np
import torch

from hora_rl.common.types import Group, Rollout, Tokens, Turn
from hora_rl.learner.model.logprobs import Policy
from hora_rl.learner.model.objective import policy_loss
from hora_rl.learner.rows.batch import MicroBatch, empty_micro_batch, micro_batches, samples_of
from hora_rl.learner.rows.estimator import Estimator
from hora_rl.learner.rows.packing import Sharing, rows_of


def logprobs_of(model: torch.nn.Module, prompt: Tokens, made: Rollout, temperature: float) -> torch.Tensor:
    """One forward pass for every turn, straight from what `Turn` says: the context, then what was sampled."""
    context, at, result = prompt, 0, []
    for turn in made.turns or (Turn(len(made.tokens), prompt[:0]),):
        context = turn.context if turn.anew else np.concatenate([context, turn.context])
        mine = made.tokens[at : at + turn.sampled]
        ids = torch.from_numpy(np.concatenate([context, mine])).long()[None]
        logits = model(ids).logits[0, len(context) - 1 : -1] / temperature
        result.append(torch.log_softmax(logits, -1).gather(-1, ids[0, len(context) :, None])[:, 0])
        context, at = ids[0].numpy(), at + turn.sampled
    return torch.cat(result)


def add_gradient(
    model: torch.nn.Module,
    group: Group,
    estimator: Estimator,
    temperature: float,
    prompts: int,
    prox: list[torch.Tensor] | None = None,
) -> None:
    """Add the gradient of one of `prompts` groups to the parameters of `model`. `prox` are the log-probs of
    each rollout before the first update; None: this is the first."""
    objective, weights = estimator.objective, estimator.weights
    rewards = np.array([sum(w * r.rewards[n] for n, w in weights.items()) for r in group.rollouts])
    if rewards.std() == 0:
        return
    n, centred = len(rewards), rewards - rewards.mean()
    advantages = {
        "grpo": centred / (rewards.std(ddof=1) + 1e-4),
        "dr_grpo": centred,
        "rloo": rewards - (rewards.sum() - rewards) / (n - 1),
    }[objective.advantage]
    for j, (r, a) in enumerate(zip(group.rollouts, advantages, strict=True)):
        logprobs = logprobs_of(model, group.prompt_tokens, r, temperature)
        old = logprobs.detach() if prox is None else prox[j]
        ratio, off = torch.exp(logprobs - old), torch.exp(old - torch.from_numpy(r.logprobs))
        cap = objective.importance_cap
        weight = {
            "token_truncate": off.clamp(max=cap),
            "token_mask": off * (off <= cap),
            "sequence_mask": off.prod() * (off.prod() <= cap) * torch.ones_like(off),
            "none": torch.ones_like(off),
        }[objective.importance]
        clipped = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
        z = estimator.max_response if objective.normalisation == "constant" else len(r.tokens)
        loss = -(weight * torch.minimum(ratio * a, clipped * a)).sum()
        (loss / (prompts * n * z)).backward()


def flat(model: torch.nn.Module) -> torch.Tensor:
    """The gradient of all parameters of `model`."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def by_formula(policy: Policy, groups: list[Group], estimator: Estimator, temperature: float) -> torch.Tensor:
    for group in groups:
        add_gradient(policy.hf, group, estimator, temperature, len(groups))
    return flat(policy)


def by_cut(
    policy: Policy,
    groups: list[Group],
    estimator: Estimator,
    temperature: float,
    budget: int,
    sharing: Sharing | None,
    ranks: int = 1,
    multiple: int = 1,
) -> torch.Tensor:
    """The gradient as the learner computes it on `ranks` ranks: the tokens of all of them, then every rank's
    own micro-batches, whose widths are multiples of `multiple`, and an empty one."""
    parts = [groups[rank::ranks] for rank in range(ranks)]
    of_step = replace(estimator, tokens=sum(map(estimator.trained_tokens, parts)))
    samples = [samples_of(part, of_step, len(groups), version=0) for part in parts]
    micro: list[MicroBatch] = []
    for part in samples:
        micro += micro_batches(rows_of(part, budget, sharing), budget, multiple)[0]
        micro.append(empty_micro_batch(torch.device("cpu")))
    for each in micro:
        logprobs, _ = policy(each, temperature, 16)
        policy_loss(logprobs, logprobs.detach(), each, estimator.objective)[0].backward()
    return flat(policy)


def ruler(ratio: float) -> list[str]:
    """With betas 0 and a huge epsilon an AdamW step moves the weights by `ratio` times the gradient alone."""
    optimizer = {"betas": "[0.0, 0.0]", "epsilon": 1e6, "learning_rate": ratio * 1e6, "max_grad_norm": "1e30"}
    return [f"learner.optimizer.{name}={value}" for name, value in optimizer.items()]


def apart(result: torch.Tensor, wanted: torch.Tensor) -> float:
    """|found - wanted| over |wanted|."""
    return float((result - wanted).norm() / wanted.norm())
