"""vLLM loads all that the learner publishes, also where names in memory are not those of the files."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, MixtralConfig, PreTrainedModel, Qwen3MoeConfig

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer, render
from hora_rl.common.load import ROOT, load
from tests.support.engines import engine_of

SHAPE = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
SHAPE |= {"num_experts_per_tok": 2, "max_position_embeddings": 512, "tie_word_embeddings": False}


def mixtral(**also: Any) -> MixtralConfig:
    return MixtralConfig(**SHAPE, **also, intermediate_size=64, num_local_experts=4, head_dim=32)


def qwen3_moe(**also: Any) -> Qwen3MoeConfig:
    return Qwen3MoeConfig(**SHAPE, **also, moe_intermediate_size=64, num_experts=4, head_dim=32)


def saved(folder: Path, config_of: Callable[..., Any]) -> tuple[Config, PreTrainedModel]:
    """A random model of the family with the demo's tokenizer, in `folder`."""
    tokenizer = load_tokenizer(str(ROOT / "deploy" / "demo" / "model"))
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(config_of(vocab_size=len(tokenizer), **ends)).float().eval()
    hf.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load("tiny", [f"model.path={folder}", "rollout.max_response_tokens=12"]), hf


class Learner:
    """What publication needs of the learner's engine."""

    device = torch.device("cpu")

    def __init__(self, hf: PreTrainedModel) -> None:
        self.hf = hf

    def published(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, p.detach()) for name, p in self.hf.named_parameters())


def published(hf: PreTrainedModel, version: int) -> Any:
    """What the learner takes of its engine to publish it."""
    from hora_rl.learner.weights.host_copy import HostCopy

    learner: Any = Learner(hf)
    return HostCopy(learner, rank=0).snapshot(version, learner.device)


def file_of(config: Config, folder: Path, weights: Any) -> dict[str, object]:
    from hora_rl.common.weights.file_sender import FileTransport

    nobody: Any = SimpleNamespace()
    transport = FileTransport(folder, "r", lambda _: None, nobody, weights.version)
    return {"version": weights.version, "path": transport.write(weights).path}


async def differences(engine: Any, config: Config, hf: PreTrainedModel) -> float:
    """The mean difference of the engine's log-probs of what it samples from the model's own."""
    prompt = render(load_tokenizer(config.model.path), "57+68=?", config.data)
    found = []
    for answer in await engine.generate(prompt, 4, seed=1, temperature=1.0):
        ids = torch.tensor([*prompt.tolist(), *answer.tokens.tolist()])
        with torch.no_grad():
            own = hf(input_ids=ids[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        of_tokens = own.gather(1, ids[len(prompt) :, None])[:, 0]
        found.append((of_tokens - torch.from_numpy(answer.logprobs.copy())).abs().mean())
    return float(torch.stack(found).mean())


@pytest.mark.system
def test_every_copy_has_the_names_of_files(tmp_path: Path) -> None:
    from hora_rl.learner.weights.host_copy import HostCopy

    _, hf = saved(tmp_path / "model", mixtral)
    copy = HostCopy(cast(Any, Learner(hf)), rank=0)
    for factor in (1.0, 2.0):
        with torch.no_grad():
            for parameter in hf.parameters():
                parameter.mul_(factor)
        hf.save_pretrained(tmp_path / "now")
        expected = load_file(tmp_path / "now" / "model.safetensors")
        taken = dict(cast(Any, copy.snapshot(1, torch.device("cpu"))))
        assert taken.keys() == expected.keys()
        assert all(torch.equal(taken[name], expected[name]) for name in expected)


@pytest.mark.system
@pytest.mark.timeout(280)
@pytest.mark.parametrize("family", [mixtral, pytest.param(qwen3_moe, marks=pytest.mark.slow)])
async def test_experts_of_one_tensor_reach_the_engine(tmp_path: Path, family: Callable[..., Any]) -> None:
    config, hf = saved(tmp_path / "model", family)
    async with engine_of(config) as engine:
        assert await differences(engine, config, hf) < 1e-4
        for version in (1, 2):
            with torch.no_grad():
                for name, parameter in hf.named_parameters():
                    if "experts" in name or "embed" in name:
                        parameter.mul_(2.0)
            assert await differences(engine, config, hf) > 0.01, "the engine still has the old ones"
            update = file_of(config, tmp_path / "weights", published(hf, version))
            await engine.receive(update)
            await engine.install(version)
            assert await differences(engine, config, hf) < 1e-4
