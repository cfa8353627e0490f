"""The allocator outside the system: in a plain loop, and in TRL's trainer with the paper's objective."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from examples.allocate_alone import train
from hora_rl import advantages
from hora_rl.common.load import ROOT
from tests.support.programs import run_well
from tests.support.tiny_qwen2 import shape_of

if TYPE_CHECKING:  # TRL takes seconds to import, which only the worker that runs these tests needs to spend
    from examples.trl_grpo_hora import HoraTrainer

WORDS = ["<pad>", "<eos>", *(f"w{i}" for i in range(14))]
GAMMA, G, G0, LENGTH = 3, 8, 2, 5
WEIGHTS = [0.25, 1.0]
# One prompt that nothing answers, one that nearly everything does, one between.
ANSWERS = ["none", " ".join(WORDS[2:14]), "w3"]


def test_a_plain_training_loop_learns_more_with_hora_than_with_grpo() -> None:
    uniform, hora = (np.mean([train(rule, i) for i in range(20)]) for rule in ("uniform", "hit_utility"))
    assert hora > uniform


def short(completions: list[str], **_: object) -> list[float]:
    return [1.0 - len(set(c.split())) / LENGTH for c in completions]


def accuracy(completions: list[str], answer: list[str], **_: object) -> list[float]:
    pairs = zip(completions, answer, strict=True)
    return [float(any(word in a.split() for word in c.split())) for c, a in pairs]


def scored(completions: list[str], **_: object) -> list[float | None]:
    """None, as for what cannot be judged, where a completion begins with one of w5 to w9."""
    return [
        None if c.split()[:1] > ["w4"] else s for c, s in zip(completions, short(completions), strict=True)
    ]


def judged(completions: list[str], answer: list[str], **_: object) -> list[float | None]:
    found = zip(scored(completions), accuracy(completions, answer), strict=True)
    return [None if score is None else right for score, right in found]


@pytest.fixture
def trainer(tmp_path: Path) -> HoraTrainer:
    return trainer_of(tmp_path, [short, accuracy], rounds=3, stop="hit")


def trainer_of(tmp_path: Path, rewards: list[Any], grpo: Any = (), **hora: Any) -> HoraTrainer:
    """`grpo` are settings of GRPOConfig, `hora` of the trainer."""
    from trl import GRPOConfig

    from examples.trl_grpo_hora import HoraTrainer

    torch.manual_seed(0)
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    own = {"tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": 1}
    model = Qwen2ForCausalLM(shape_of(len(WORDS), 32, 64, 2, 2, 2, **own))
    rows = [{"prompt": f"w{i} w{i + 4}", "answer": ANSWERS[i]} for i in range(GAMMA)]
    sizes = {"num_generations": G, "gradient_accumulation_steps": 2, "max_completion_length": LENGTH}
    sizes |= {"per_device_train_batch_size": GAMMA * G // 2, "max_steps": 2, "learning_rate": 1e-2}
    loss = {"loss_type": "dr_grpo", "beta": 0.0, "reward_weights": WEIGHTS}
    plain = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    plain |= {"report_to": [], "save_strategy": "no"}
    args = GRPOConfig(output_dir=str(tmp_path), **{**sizes, **loss, **plain, **dict(grpo)})
    theirs = {"model": model, "reward_funcs": rewards, "args": args, "processing_class": fast}
    return HoraTrainer(pre_rollouts=G0, hit=1, train_dataset=Dataset.from_list(rows), **theirs, **hora)


def rows_of(trainer: HoraTrainer) -> list[dict[str, str]]:
    return [dict(row) for row in trainer.train_dataset for _ in range(G)]


def paper_loss(trainer: HoraTrainer, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """-(1/Γ) Σ_i (1/G_i) Σ_j (1/Z) Σ_t A_ij log π, row by row: its gradient is the objective's where ρ =
    1."""
    answers, loss = [row["answer"] for row in trainer.train_dataset], torch.zeros(())
    assert len(batch["completion_ids"]) == len(trainer.last_owner)
    for i, answer in enumerate(answers):
        members = np.flatnonzero(trainer.last_owner == i)
        ids = batch["completion_ids"][members]
        texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
        rewards = np.array([short(texts), accuracy(texts, [answer] * len(texts))]).T @ WEIGHTS
        spread = rewards.std(ddof=1)
        for row, reward in zip(members, rewards, strict=True):
            advantage = (reward - rewards.mean()) / (spread + 1e-4) if np.ptp(rewards) else 0.0
            prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
            completion = batch["completion_ids"][row][batch["completion_mask"][row].bool()]
            tokens = torch.cat([prompt, completion])
            logits = trainer.model(input_ids=tokens[None]).logits[0, len(prompt) - 1 : -1]
            taken = logits.log_softmax(-1).gather(1, completion[:, None]).sum()
            loss = loss - float(advantage) * taken / (GAMMA * len(members) * LENGTH)
    return loss


def gradient(trainer: HoraTrainer, loss: torch.Tensor) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(trainer.model.parameters()))])


@pytest.mark.system
def test_trls_gradient_is_that_of_the_papers_objective(trainer: HoraTrainer) -> None:
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._generate_and_score_completions(rows_of(trainer))
    sizes = np.bincount(trainer.last_owner, minlength=GAMMA)
    assert sizes.sum() == GAMMA * G
    assert sizes.min() >= G0
    assert len(set(sizes.tolist())) > 1  # otherwise the factor G/G_i is 1 and nothing is compared
    assert list(trainer._logs["advantages"]) == batch["advantages"].tolist()
    ours = gradient(trainer, paper_loss(trainer, batch))
    assert ours.abs().max() > 1e-4
    theirs = gradient(trainer, trainer.compute_loss(trainer.model, batch))
    torch.testing.assert_close(theirs, ours, atol=1e-6, rtol=1e-4)


@pytest.mark.system
@pytest.mark.parametrize(
    ("objective", "options"), [("likelihood", {"wald": True}), ("max_rl", {}), ("pkpo", {"k": 2})]
)
def test_trl_takes_every_objective_of_ours(tmp_path: Path, objective: str, options: dict[str, Any]) -> None:
    trainer = trainer_of(tmp_path, [short, accuracy], objective=objective, options=options)
    trainer.model.train()
    batch = trainer._generate_and_score_completions(rows_of(trainer))
    rewards, owner = trainer._rewards.double().numpy(), trainer.last_owner
    expected = advantages(rewards @ WEIGHTS, owner, objective, rewards[:, 1], **options)
    assert batch["advantages"].numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.system
@pytest.mark.parametrize("scale", ["group", "none"])
def test_advantages_of_equal_groups_are_trls_own(tmp_path: Path, scale: str) -> None:
    from trl import GRPOTrainer

    rewards = [scored, judged]
    trainer = trainer_of(tmp_path, rewards, {"scale_rewards": scale})
    trainer.model.train()
    theirs = GRPOTrainer._generate_and_score_completions(trainer, rows_of(trainer))["advantages"]
    unscored = trainer._rewards.isnan().all(1)
    assert unscored.any()
    ours, flat = trainer._advantages(torch.arange(GAMMA).repeat_interleave(G), GAMMA)
    assert ours.abs().max() > 0.1
    assert not ours[unscored].any()
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert trainer._metrics["train"]["frac_reward_zero_std"] == [pytest.approx(flat.float().mean().item())]


@pytest.mark.system
@pytest.mark.parametrize(
    "settings", [{"scale_rewards": "batch"}, {"multi_objective_aggregation": "normalize_then_sum"}]
)
def test_a_scaling_that_hora_does_not_do_is_refused(tmp_path: Path, settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="needs scale_rewards='group' or 'none' and multi_objective_agg"):
        trainer_of(tmp_path, [short, accuracy], settings)


@pytest.mark.system
def test_two_processes_divide_one_batch_and_have_the_gradient_of_one(tmp_path: Path) -> None:
    """tests/examples/trl_ranks.py asserts that, in both."""
    command = [sys.executable, "-m", "tests.examples.trl_ranks", str(tmp_path)]
    run_well(*command, cwd=ROOT, limit_s=280, OMP_NUM_THREADS="1")
    assert sorted(path.name for path in tmp_path.glob("whole.*")) == ["whole.0", "whole.1"]


@pytest.mark.system
def test_trl_trains_with_hora(trainer: HoraTrainer) -> None:
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    assert trainer.state.global_step == 2
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
