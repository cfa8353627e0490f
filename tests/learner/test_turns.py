"""Rollouts of several turns: the gradient is that of their sampled tokens, each in the context it was sampled
in, however the batch is cut and shared out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hora_rl.common.config import Config, Objective
from hora_rl.common.errors import WireError
from hora_rl.common.live.queue import Entry
from hora_rl.common.load import load
from hora_rl.common.types import Group, Rollout, Turn
from hora_rl.common.wire import encode_extra, encode_pre_rollouts
from hora_rl.learner.admission import Vocabulary, admitted
from hora_rl.learner.batch import empty_micro_batch, measurable, micro_batches, samples_of
from hora_rl.learner.estimator import Estimator
from hora_rl.learner.logprobs import Policy
from hora_rl.learner.objective import policy_loss
from hora_rl.learner.prefixes import Sharing, rows_of
from hora_rl.learner.turns import sequences
from tests.support.groups import group, rollout
from tests.support.real_learner import recorded, trained
from tests.support.sharing import ALWAYS
from tests.support.tiny_qwen2 import tiny_qwen2

VOCABULARY, TEMPERATURE, LONGEST = 48, 0.7, 40


def policy() -> Policy:
    return Policy(tiny_qwen2(VOCABULARY))


def in_turns(made: Rollout, rng: np.random.Generator, anew: float, vocabulary: int = VOCABULARY) -> Rollout:
    """The rollout cut into up to four turns, with tokens given between them; `anew` is the chance of a turn
    to have a context of its own."""
    n = len(made.tokens)
    cuts = sorted(set(rng.integers(1, n, 3).tolist())) if n > 1 else []
    if not cuts:
        return made
    turns = [Turn(cuts[0], np.zeros(0, np.int32))]
    for start, end in zip(cuts, [*cuts[1:], n], strict=True):
        of_its_own = bool(rng.random() < anew)
        given = rng.integers(0, vocabulary, int(rng.integers(of_its_own, 6))).astype(np.int32)
        turns.append(Turn(end - start, given, of_its_own))
    return replace(made, turns=tuple(turns))


def batch(anew: float) -> list[Group]:
    rng = np.random.default_rng(5)
    found = []
    for index, size in enumerate((2, 3, 9, 5)):
        made = [
            rollout(
                rng.integers(0, VOCABULARY, n),
                logprobs=-rng.exponential(3.0, n),
                success=j % 2 == 0,
                phase="A" if j == 0 else "B",
            )
            for j, n in enumerate(rng.integers(1, LONGEST + 1, size))
        ]
        rollouts = [in_turns(r, rng, anew) for r in made]
        found.append(group(index, rollouts, prompt=rng.integers(0, VOCABULARY, 4)))
    return found


def logprobs_of(
    model: torch.nn.Module, prompt: np.ndarray, made: Rollout, temperature: float
) -> torch.Tensor:
    """One forward pass for every turn, straight from what `Turn` says: the context, then what was sampled."""
    context, at, found = prompt, 0, []
    for turn in made.turns or (Turn(len(made.tokens), prompt[:0]),):
        context = turn.given if turn.anew else np.concatenate([context, turn.given])
        own = made.tokens[at : at + turn.sampled]
        ids = torch.from_numpy(np.concatenate([context, own])).long()[None]
        logits = model(ids).logits[0, len(context) - 1 : -1] / temperature
        found.append(torch.log_softmax(logits, -1).gather(-1, ids[0, len(context) :, None])[:, 0])
        context, at = ids[0].numpy(), at + turn.sampled
    return torch.cat(found)


def reference(model: Policy, groups: list[Group]) -> torch.Tensor:
    """Equation 1 at the start of a step, one rollout at a time."""
    for g in groups:
        rewards = np.array([0.5 * r.rewards["accuracy"] + 0.5 * r.rewards["format"] for r in g.rollouts])
        if rewards.std() == 0:
            continue
        for r, reward in zip(g.rollouts, rewards, strict=True):
            advantage = (reward - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
            logp = logprobs_of(model.hf, g.prompt_tokens, r, TEMPERATURE)
            weight = torch.exp(logp.detach() - torch.from_numpy(r.logprobs)).clamp(max=3.0)
            (-(weight * logp).sum() * advantage / (len(groups) * g.size * LONGEST)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def cut_gradient(
    model: Policy, groups: list[Group], budget: int, sharing: Sharing | None, ranks: int
) -> torch.Tensor:
    estimator = Estimator(Objective(), {"accuracy": 0.5, "format": 0.5}, "accuracy", 5, LONGEST)
    for rank in range(ranks):
        samples = samples_of(groups[rank::ranks], estimator, len(groups), version=0)
        for m in [
            *micro_batches(rows_of(samples, budget, sharing), budget)[0],
            empty_micro_batch(torch.device("cpu")),
        ]:
            logp, _ = model(m, TEMPERATURE, 16)
            policy_loss(logp, logp.detach(), m, Objective())[0].backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("anew", [0.0, 0.5, 1.0])
def test_the_gradient_is_the_formulas_over_cuts_and_ranks(anew: float) -> None:
    groups = batch(anew)
    assert any(len(r.turns) > 2 for g in groups for r in g.rollouts)
    wanted = reference(policy(), groups)
    for budget, sharing, ranks in ((80, None, 1), (90, ALWAYS, 2), (1000, ALWAYS, 1), (1000, None, 3)):
        found = cut_gradient(policy(), groups, budget, sharing, ranks)
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5, (budget, sharing, ranks)


def test_tokens_that_were_given_change_the_gradient_by_their_context_alone() -> None:
    groups = batch(0.0)
    without = [replace(g, rollouts=tuple(replace(r, turns=()) for r in g.rollouts)) for g in groups]
    with_given, plain = (cut_gradient(policy(), g, 1000, ALWAYS, 1) for g in (groups, without))
    assert float((with_given - plain).norm() / plain.norm()) > 0.01
    estimator = Estimator(Objective(), {"accuracy": 1.0}, "accuracy", 5, LONGEST)
    many, few = (samples_of(g, estimator, 4, 0) for g in (groups, without))
    assert sum(len(s.logprobs) for s in many) == sum(len(s.logprobs) for s in few)
    assert sum(s.length for s in many) > sum(s.length for s in few)


def test_each_sampled_token_is_in_one_sequence_once() -> None:
    for g in batch(0.5):
        for r in (r for r in g.rollouts if r.turns):
            found = list(sequences(g.prompt_tokens, r))
            assert len(found) == 1 + sum(t.anew for t in r.turns)
            np.testing.assert_array_equal(np.concatenate([s.tokens[s.places] for s in found]), r.tokens)
    sampled = [int(s.match.sum()) for s in measurable(batch(1.0), 0, 40)]
    assert sum(sampled) >= 40 > sum(sampled[:-1])


def admit(made: Group, *settings: str) -> Group:
    config = load("tiny", ["run.name=r", "rollout.max_response_tokens=5", *settings])
    messages = encode_pre_rollouts(made), encode_extra(made)
    return admitted(config, Vocabulary("t", VOCABULARY), None, Entry("1-0", made.id, made.batch), messages)


def test_turns_that_the_configuration_does_not_allow_are_refused() -> None:
    given = np.ones(30, np.int32)
    turns = (Turn(3, given[:0]), Turn(2, given))
    made = group(0, [rollout([1] * 5, turns=turns), rollout([1] * 5, phase="B", turns=turns)])
    assert admit(made, "environment.path=guess", "environment.max_given_tokens=30").rollouts[0].given == 30
    with pytest.raises(WireError, match=r"group 0:0: it has several turns, and environment.path is null"):
        admit(made)
    limit = "environment.max_given_tokens=1", "rollout.max_prompt_tokens=4"
    with pytest.raises(WireError, match=r"a sequence exceeds .* = 4 \+ 5 \+ 1 = 10 tokens"):
        admit(made, "environment.path=guess", *limit)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_real_learner_descends_it_over_ranks(tmp_path: Path, ranks: int) -> None:
    ratio = 1e4  # an AdamW step that moves the weights by so many times the gradient
    config = load(
        "tiny",
        [
            "run.name=r",
            f"run.folder={tmp_path}",
            f"learner.workers={ranks}",
            "learner.zero_stage=2",
            "learner.steps=1",
            "rollout.prompts_per_batch=4",
            "rollout.shards=1",
            f"rollout.max_response_tokens={LONGEST}",
            "environment.path=guess",
            "learner.tokens_per_microbatch=2048",
            "learner.optimizer.betas=[0.0, 0.0]",
            "learner.optimizer.epsilon=1e6",
            f"learner.optimizer.learning_rate={ratio * 1e6}",
            "learner.optimizer.max_grad_norm=1e9",
        ],
    )
    rng = np.random.default_rng(2)
    lengths = [rng.integers(1, LONGEST + 1, size).tolist() for size in (3, 5, 11, 4)]
    groups = [
        replace(g, rollouts=tuple(in_turns(r, rng, 0.3, 200) for r in g.rollouts))
        for g in recorded(config, lengths, per_batch=4, without_signal=9)
    ]
    found = trained(config, groups, tmp_path)
    start = load_file(Path(config.model.path) / "model.safetensors")
    wanted = formula(config, groups)
    apart = torch.cat([((start[n] - found[n]).double() / ratio - g).flatten() for n, g in wanted.items()])
    error = float(apart.norm() / torch.cat([g.flatten() for g in wanted.values()]).norm())
    print(f"ranks {ranks}: {error:.1e}")
    assert error < 1e-5


def formula(config: Config, groups: list[Group]) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float64)
    for g in groups:
        rewards = np.array(
            [sum(w * r.rewards[n] for n, w in config.reward.weights.items()) for r in g.rollouts]
        )
        if rewards.std() == 0:
            continue
        for r, a in zip(g.rollouts, (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4), strict=True):
            logp = logprobs_of(model, g.prompt_tokens, r, config.rollout.temperature)
            weight = torch.exp(logp.detach() - torch.from_numpy(r.logprobs)).clamp(max=3.0)
            (-(weight * logp).sum() * a / (len(groups) * g.size * LONGEST)).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
