"""Log-probs and gradients are those of the model's own forward, for every family; or the family is refused by
name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.config import Config
from common.errors import ConfigError
from common.load import load
from learner.agreement import check_agreement, check_family
from learner.batch import Sample, make_micro_batch
from learner.engine import load_model
from learner.head import OwnPath
from learner.logprobs import Policy
from tests.support.families import SETTINGS, VOCABULARY, model_of, write_model

REFUSED = {"opt": "OPTForCausalLM", "mamba": "MambaForCausalLM", "bloom": "BloomForCausalLM"}
TRAINED = sorted(set(SETTINGS) - set(REFUSED))
TEMPERATURE = 0.7


def samples() -> list[Sample]:
    rng, made = np.random.default_rng(0), []
    for prompt, length in [(3, 20), (5, 12), (1, 30)]:
        ids = rng.integers(0, VOCABULARY, prompt + length).astype(np.int32)
        zeros = np.zeros(length, np.float32)
        made.append(Sample(ids[:prompt], ids[prompt:], zeros, 1.0, 1.0, np.ones(length, dtype=bool)))
    return made


def own(hf: Any, sample: Sample) -> torch.Tensor:
    """Log-probs of the model's own forward on one completion alone."""
    ids = torch.from_numpy(np.concatenate([sample.prompt, sample.tokens])).long()[None]
    logits = hf(ids).logits[0, len(sample.prompt) - 1 : -1] / TEMPERATURE
    return torch.log_softmax(logits, -1).gather(-1, ids[0, len(sample.prompt) :, None])[:, 0]


def gradient(hf: Any, logprobs: torch.Tensor) -> torch.Tensor:
    hf.zero_grad()
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    return torch.cat([p.grad.flatten() for p in hf.parameters() if p.grad is not None])


def start(config: Config) -> None:
    policy = Policy(load_model(config))
    check_agreement(config, policy, policy, torch.device("cpu"))


def config_of(folder: Path, *more: str) -> Config:
    return load("tiny", [f"model.path={folder}", f"rollout.temperature={TEMPERATURE}", *more])


@pytest.mark.parametrize("checkpointing", ["false", "true"])
@pytest.mark.parametrize("family", TRAINED)
def test_logprobs_and_gradients_are_the_models_own(tmp_path: Path, family: str, checkpointing: str) -> None:
    config = config_of(write_model(family, tmp_path), f"learner.gradient_checkpointing={checkpointing}")
    policy, reference = Policy(load_model(config)), model_of(family)
    wanted = torch.cat([own(reference, s) for s in samples()])
    for packed in (False, True):
        if family == "falcon" and packed:
            continue  # refused, below
        ours = policy(make_micro_batch(samples(), packed), TEMPERATURE, 7)[0]
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-4)
        mine, theirs = gradient(policy.hf, ours), gradient(reference, wanted)
        assert float((mine - theirs).norm() / theirs.norm()) < 1e-4
        wanted = torch.cat([own(reference, s) for s in samples()])
    check_agreement(config, policy, policy, torch.device("cpu"))


@pytest.mark.parametrize("family", ["granite", "gpt2", "gpt_neox", "phi3"])
def test_dropout_is_off_and_activations_are_still_recomputed(tmp_path: Path, family: str) -> None:
    config = config_of(write_model(family, tmp_path), "learner.gradient_checkpointing=true")
    policy, micro = Policy(load_model(config)), make_micro_batch(samples(), False)
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
        check_family(config)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=REFUSED[family]):
        start(config)


def test_a_family_that_cannot_be_packed_is_refused_where_it_would_be(tmp_path: Path) -> None:
    check_family(config_of(write_model("falcon", tmp_path)))
    packed = config_of(tmp_path, "learner.attention=flash_attention_2", "model.dtype=bfloat16")
    with pytest.raises(ConfigError, match=r"FalconForCausalLM.*differ by .* flash_attention_2"):
        check_family(packed)


@pytest.mark.parametrize("family", ["granite", "cohere", "gemma2"])
def test_logits_that_lack_what_follows_the_head_are_refused(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bare(self: OwnPath, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(states, weight, bias)

    config = config_of(write_model(family, tmp_path))
    check_family(config)
    monkeypatch.setattr(OwnPath, "logits", bare)
    policy = Policy(load_model(config))
    with pytest.raises(
        ConfigError, match=r"differ by \S+ in the mean .* 1\.\d+e-0[345] is allowed in float32"
    ):
        check_agreement(config, policy, policy, torch.device("cpu"))
    with pytest.raises(ConfigError, match="differ by"):
        check_family(config)
