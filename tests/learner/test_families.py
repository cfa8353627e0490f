"""Log-probs and gradients are those of every family's own forward, or it is refused by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from hora_rl.common.config import Config, LearnerConfig, ModelConfig
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.learner.model.agreement import check_agreement, check_family
from hora_rl.learner.model.loading import load_model
from hora_rl.learner.model.logprobs import OwnPath, Policy
from hora_rl.learner.rows.batch import make_micro_batch
from hora_rl.learner.rows.packing import Sample, rows_of, window_of
from tests.support.families import GROUPED, SETTINGS, TOKENS, VOCABULARY, model_of, write_model
from tests.support.formula import logprobs_of
from tests.support.groups import rollout
from tests.support.samples import ALWAYS, sample

REFUSED = {"opt": "OPTForCausalLM", "mamba": "MambaForCausalLM", "mamba2": "Mamba2ForCausalLM"}
TRAINED = sorted(set(SETTINGS) - set(REFUSED) - {"bloom"})
TEMPERATURE = 0.7


def rows() -> list[list[Sample]]:
    """Rows of 49, 17 and 31 tokens, two of them with several completions."""
    rng, made = np.random.default_rng(0), []
    for prompt, lengths in [(3, (20, 7, 16)), (5, (12,)), (1, (20, 10))]:
        ids = rng.integers(0, VOCABULARY, prompt)
        made.append([sample(ids, rng.integers(0, VOCABULARY, n)) for n in lengths])
    return made


def samples() -> list[Sample]:
    return [each for row in rows() for each in row]


def own(hf: Any, each: Sample) -> torch.Tensor:
    """Log-probs of the model's own forward on one completion alone."""
    return logprobs_of(hf, each.prompt, rollout(each.tokens), TEMPERATURE)


def gradient(hf: Any, logprobs: torch.Tensor) -> torch.Tensor:
    hf.zero_grad()
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    return torch.cat([p.grad.flatten() for p in hf.parameters() if p.grad is not None])


def start(config: Config) -> None:
    policy = Policy(load_model(config.model, config.learner))
    check_agreement(config.model.dtype, 1.0, policy, policy, torch.device("cpu"))


def sections(config: Config) -> tuple[ModelConfig, LearnerConfig, float]:
    return config.model, config.learner, config.rollout.temperature


def config_of(folder: Path, *more: str) -> Config:
    return load("tiny", [f"model.path={folder}", f"rollout.temperature={TEMPERATURE}", *more])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("checkpointing", ["false", "true"])
@pytest.mark.parametrize("family", TRAINED)
def test_logprobs_and_gradients_are_the_models_own(
    tmp_path: Path, family: str, checkpointing: str, attention: str
) -> None:
    config = config_of(write_model(family, tmp_path), f"learner.gradient_checkpointing={checkpointing}")
    policy, reference = Policy(load_model(config.model, config.learner)), model_of(family)
    for hf in (reference, policy.hf):
        hf.set_attn_implementation(attention)
    wanted = torch.cat([own(reference, s) for s in samples()])
    theirs = gradient(reference, wanted)
    sharing = replace(ALWAYS, window=window_of(policy.hf.config))
    for cut in ([[s] for s in samples()], rows_of(samples(), 1000, sharing)):
        ours = policy(make_micro_batch(cut), TEMPERATURE, 7)[0]
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-4)
        mine = gradient(policy.hf, ours)
        assert float((mine - theirs).norm() / theirs.norm()) < 1e-4
    # Mistral's window of 8 here is shorter than what is compared.
    unshared = check_agreement(config.model.dtype, 1.0, policy, policy, torch.device("cpu"))
    assert bool(unshared) == (family == "mistral")


def test_a_family_that_takes_no_mask_is_trained_without_shared_prompts(tmp_path: Path) -> None:
    config = config_of(write_model("bloom", tmp_path))
    policy, reference = Policy(load_model(config.model, config.learner)), model_of("bloom")
    wanted = torch.cat([own(reference, s) for s in samples()])
    ours = policy(make_micro_batch([[s] for s in samples()]), TEMPERATURE, 7)[0]
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-4)
    assert check_agreement(config.model.dtype, 1.0, policy, policy, torch.device("cpu"))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_a_window_is_kept_where_prompts_are_shared(family: str, attention: str) -> None:
    reference, policy = (model_of(family, sliding_window=20) for _ in range(2))
    for hf in (reference, policy):
        hf.set_attn_implementation(attention)
    cut = rows_of(samples(), 1000, replace(ALWAYS, window=window_of(policy.config)))
    assert sorted(len(row) for row in cut) == [1, 1, 1, 1, 2]
    parts = [row for row in cut if len(row) == 1], [row for row in cut if len(row) > 1]
    wanted = torch.cat([own(reference, s) for part in parts for row in part for s in row])
    ours = torch.cat([Policy(policy)(make_micro_batch(part), TEMPERATURE, 7)[0] for part in parts])
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-4)
    mine, theirs = gradient(policy, ours), gradient(reference, wanted)
    assert float((mine - theirs).norm() / theirs.norm()) < 1e-4


def test_completions_of_a_family_with_state_through_all_tokens_share_no_prompt(tmp_path: Path) -> None:
    layers = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
    full = AutoConfig.for_model("lfm2", **(GROUPED | TOKENS | layers))
    full.save_pretrained(tmp_path)
    name, unshared = check_family(*sections(config_of(tmp_path)))
    assert name == "Lfm2ForCausalLM"
    assert unshared
    other = config_of(write_model("qwen3", tmp_path / "other"))
    assert check_family(*sections(other)) == ("Qwen3ForCausalLM", "")


def test_a_forward_that_reads_a_factor_from_its_backbone_is_followed(tmp_path: Path) -> None:
    state = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
    full = AutoConfig.for_model("falcon_h1", **(GROUPED | TOKENS | state | {"lm_head_multiplier": 0.5}))
    full.save_pretrained(tmp_path)
    assert check_family(*sections(config_of(tmp_path)))[0] == "FalconH1ForCausalLM"


@pytest.mark.parametrize("family", ["granite", "gpt2", "gpt_neox", "phi3"])
def test_dropout_is_off_and_activations_are_still_recomputed(tmp_path: Path, family: str) -> None:
    config = config_of(write_model(family, tmp_path), "learner.gradient_checkpointing=true")
    policy, micro = Policy(load_model(config.model, config.learner)), make_micro_batch(rows())
    calls: list[str] = []
    for module in policy.hf.modules():
        if isinstance(module, torch.nn.LayerNorm) or type(module).__name__.endswith("RMSNorm"):
            module.register_forward_hook(lambda m, i, o: calls.append(type(m).__name__))
    first = policy(micro, TEMPERATURE, 7)[0]
    forward = len(calls)
    first.sum().backward()
    assert len(calls) > forward, "nothing was recomputed"
    assert torch.equal(first, policy(micro, TEMPERATURE, 7)[0])


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_a_family_of_another_shape_is_refused_by_name(tmp_path: Path, family: str) -> None:
    config = config_of(write_model(family, tmp_path))
    with pytest.raises(ConfigError, match=REFUSED[family]) as refused:
        check_family(*sections(config))
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=REFUSED[family]):
        start(config)


@pytest.mark.parametrize("family", ["granite", "cohere", "gemma2"])
def test_logits_that_lack_what_follows_the_head_are_refused(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bare(self: OwnPath, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(states, weight, bias)

    config = config_of(write_model(family, tmp_path))
    check_family(*sections(config))
    monkeypatch.setattr(OwnPath, "logits", bare)
    policy = Policy(load_model(config.model, config.learner))
    line = r"differ by \S+ in the mean .* 1\.\d+e-0[345] is allowed in float32"
    with pytest.raises(ConfigError, match=line):
        check_agreement(config.model.dtype, 1.0, policy, policy, torch.device("cpu"))
    with pytest.raises(ConfigError, match="differ by"):
        check_family(*sections(config))
