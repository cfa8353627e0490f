"""The adapter in the learner's model: where it goes, that it starts as nothing, and what it merges to."""

from pathlib import Path

import pytest
import torch

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.learner.model.agreement import check_family
from hora_rl.learner.model.flops import Shape
from hora_rl.learner.model.loading import load_model
from hora_rl.learner.model.lora import (
    IDENTITY,
    add_adapter,
    check_identity,
    merge,
    without_adapter,
    write_adapter,
)
from hora_rl.learner.weights.host_copy import differ
from tests.learner.test_checkpoint import Weights, begun, save
from tests.support.adapters import policy_with_adapter, published
from tests.support.families import glm4_moe
from tests.support.samples import sized

CONFIG = load("tiny", ["run.name=c", "learner.lora.rank=4", "learner.lora.alpha=8"])
LORA = CONFIG.learner.lora
IDS = torch.arange(4, 40)[None]


def logits(hf: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return hf(input_ids=IDS).logits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_the_adapter_is_trained_in_the_bases_precision_and_it_starts_as_nothing(dtype: str) -> None:
    config = load("tiny", ["learner.lora.rank=4", "learner.lora.alpha=8", f"model.dtype={dtype}"])
    base = load_model(config.model, config.learner)
    before = logits(base)
    hf = policy_with_adapter(config, None).hf
    trained = {name: p for name, p in hf.named_parameters() if p.requires_grad}
    assert len(trained) == 4 * 7 * 2
    assert all(".lora_" in name and p.dtype == getattr(torch, dtype) for name, p in trained.items())
    assert torch.equal(logits(hf), before)


def test_the_adapter_follows_from_the_seed_alone() -> None:
    torch.rand(3)
    first = published(policy_with_adapter(CONFIG, None))
    torch.rand(7)
    state = torch.get_rng_state()
    second = published(policy_with_adapter(CONFIG, None))
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert torch.equal(torch.get_rng_state(), state), "nothing else is drawn differently"
    other = published(policy_with_adapter(load("tiny", ["learner.lora.rank=4", "run.seed=1"]), None))
    assert not all(torch.equal(first[n], other[n]) for n in first)


def test_without_its_adapter_the_policy_is_its_base_and_trainable_afterwards() -> None:
    base, policy = logits(load_model(CONFIG.model, CONFIG.learner)), policy_with_adapter(CONFIG, 1)
    with_adapter = logits(policy.hf)
    assert (with_adapter - base).abs().max() > 0.1
    with without_adapter(policy.hf):
        assert torch.equal(logits(policy.hf), base)
    assert torch.equal(logits(policy.hf), with_adapter)
    assert sum(p.requires_grad for p in policy.hf.parameters()) == 4 * 7 * 2


def test_the_merged_model_and_the_written_adapter_give_the_policys_logits(tmp_path: Path) -> None:
    from peft import PeftModel

    policy, base = policy_with_adapter(CONFIG, 1), load_model(CONFIG.model, CONFIG.learner)
    write_adapter(tmp_path, published(policy), CONFIG.model.path, LORA)
    of_peft = PeftModel.from_pretrained(load_model(CONFIG.model, CONFIG.learner), tmp_path)
    merge(base, published(policy), LORA.scale)
    wanted = logits(policy.hf)
    assert (logits(of_peft) - wanted).abs().max() < 1e-5
    assert (logits(base) - wanted).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("targets", "line"),
    [
        ("[q_proj, w_proj]", r"targets \(w_proj\): is not in the model; Qwen2ForCausalLM of .* has"),
        ("[lm_head]", r"targets \(lm_head\): is no linear layer of a block"),
        ("[embed_tokens]", r"targets \(embed_tokens\): is no linear layer of a block"),
    ],
)
def test_a_target_that_is_not_there_is_refused_by_check_and_learner(targets: str, line: str) -> None:
    config = load("tiny", [f"learner.lora.targets={targets}"])
    with pytest.raises(ConfigError, match=line):
        check_family(config.model, config.learner, 1.0)
    with pytest.raises(ConfigError, match=line):
        add_adapter(load_model(config.model, config.learner), config.run.seed, config.learner.lora)


def test_a_run_does_not_start_from_an_adapter() -> None:
    with pytest.raises(ConfigError, match=r"model.adapter .* training starts from a whole model"):
        load_model(CONFIG.model.model_copy(update={"adapter": "/tmp/a"}), CONFIG.learner)


def checkpoint(folder: Path, *overrides: str) -> Path:
    """A checkpoint as a run of this configuration writes it, but for DeepSpeed's part."""
    save(begun(folder, *overrides), 2, "")
    return folder / "checkpoints" / "step-00000002"


@pytest.mark.parametrize(
    ("then", "now", "line"),
    [
        ([], ["learner.lora.rank=8"], "holds full weights, and learner.lora asks for an adapter of rank 8"),
        (["learner.lora.rank=8"], [], "holds an adapter of rank 8, and learner.lora asks for full weights"),
        (["learner.lora.rank=8"], ["learner.lora.rank=4"], "rank is 8 there and 4 here"),
        (["learner.lora.rank=8"], ["learner.lora.rank=8", "learner.lora.targets=[q_proj]"], "targets is"),
        (["learner.lora.rank=8"], ["learner.lora.rank=8", "model.path=/tmp/other"], "base is .* there and"),
    ],
)
def test_a_checkpoint_of_other_weights_is_refused_with_both_values(
    tmp_path: Path, then: list[str], now: list[str], line: str
) -> None:
    checkpoint(tmp_path, *then)
    weights = Weights()
    with pytest.raises(ConfigError, match=line):
        begun(tmp_path, *now).restore(weights)  # type: ignore[arg-type]
    assert weights.loads == 0


def test_a_base_that_moved_is_still_the_same(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "learner.lora.rank=4", "learner.lora.alpha=8")
    assert (folder / IDENTITY).is_file()
    moved = tmp_path / "moved"
    moved.symlink_to(CONFIG.model.path)
    config = load("tiny", ["learner.lora.rank=4", "learner.lora.alpha=8", f"model.path={moved}"])
    check_identity(folder, config.model.path, config.learner.lora)


def test_a_frozen_weight_costs_four_flops_a_token_and_a_trained_one_six() -> None:
    full, hf = Shape.of(load_model(CONFIG.model, CONFIG.learner)), policy_with_adapter(CONFIG, None).hf
    adapter = sum(p.numel() for p in hf.parameters() if p.requires_grad)
    shape = Shape.of(hf)
    assert (shape.body, shape.head, shape.trained) == (full.body + adapter, full.head, adapter)
    tokens = [[sized(20, 30)]]
    attention = 6.0 * full.width * 50**2
    wanted = 50 * (4 * full.body + 6 * adapter) + 30 * 4 * full.head + attention
    assert shape.flops(tokens) == pytest.approx(wanted)
    assert 0.6 < shape.flops(tokens) / full.flops(tokens) < 0.75


def test_targets_that_are_fused_experts_are_refused() -> None:
    """peft turns such names into the experts' one weight, which vLLM serves no adapter of."""
    from transformers import AutoModelForCausalLM

    mixture = glm4_moe()
    all_of_one, part_of_one = ("q_proj", "gate_proj", "up_proj"), ("q_proj", "gate_proj")
    for targets, text in ((all_of_one, "experts that share one weight"), (part_of_one, "gate_up_proj")):
        hf = AutoModelForCausalLM.from_config(mixture)
        with pytest.raises(ConfigError, match=text):
            add_adapter(hf, CONFIG.run.seed, LORA.model_copy(update={"targets": targets}))
    hf = AutoModelForCausalLM.from_config(mixture)
    assert differ(hf)
    add_adapter(hf, CONFIG.run.seed, LORA.model_copy(update={"targets": ("q_proj", "v_proj")}))
    assert not differ(hf), "an adapter goes out by names of its own"
