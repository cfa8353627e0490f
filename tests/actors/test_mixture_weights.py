"""vLLM loads all that the learner publishes, also where names in memory are not those of the files."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, PreTrainedModel, Qwen3MoeConfig

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer, render
from hora_rl.common.load import ROOT, load
from hora_rl.common.weights.file_sender import FileTransport
from tests.support.engines import engine_of

SHAPE: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 32}
SHAPE |= {"num_key_value_heads": 2, "num_experts_per_tok": 2, "tie_word_embeddings": False}
FAMILIES: dict[str, Callable[..., Any]] = {
    "mixtral": lambda **also: MixtralConfig(**SHAPE, **also, intermediate_size=64, num_local_experts=4),
    "qwen3_moe": lambda **also: Qwen3MoeConfig(**SHAPE, **also, moe_intermediate_size=64, num_experts=4),
}
CPU = torch.device("cpu")


def saved(folder: Path, family: str) -> tuple[Config, PreTrainedModel]:
    """A random model of the family with the demo's tokenizer, in `folder`."""
    tokenizer = load_tokenizer(str(ROOT / "deploy" / "demo" / "model"))
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 512}
    torch.manual_seed(0)
    config = FAMILIES[family](**sizes, eos_token_id=tokenizer.eos_token_id, bos_token_id=None)
    hf = AutoModelForCausalLM.from_config(config).float().eval()
    hf.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load("tiny", [f"model.path={folder}", "rollout.max_response_tokens=12"]), hf


def published(hf: PreTrainedModel, version: int, folder: Path) -> dict[str, object]:
    """The update of a replica with the file that the learner makes of its model."""
    from hora_rl.learner.weights.host_copy import HostCopy

    def parameters() -> Any:
        return ((name, p.detach()) for name, p in hf.named_parameters())

    learner = cast(Any, SimpleNamespace(hf=hf, device=CPU, published=parameters))
    weights = HostCopy(learner, rank=0).snapshot(version, CPU)
    transport = FileTransport(folder, "r", lambda _: None, cast(Any, None), version)
    return {"version": version, "path": transport.write(weights).path}


async def difference(engine: Any, config: Config, hf: PreTrainedModel) -> float:
    """The mean difference of the engine's log-probs of what it samples from the model's own."""
    prompt = render(load_tokenizer(config.model.path), "57+68=?", config.data)
    differences = []
    for answer in await engine.generate(prompt, 4, seed=1, temperature=1.0):
        ids = torch.tensor([*prompt.tolist(), *answer.tokens.tolist()])
        with torch.no_grad():
            expected = hf(input_ids=ids[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        of_tokens = expected.gather(1, ids[len(prompt) :, None])[:, 0]
        differences.append((of_tokens - torch.from_numpy(answer.logprobs.copy())).abs().mean())
    return float(torch.stack(differences).mean())


@pytest.mark.system
@pytest.mark.timeout(280)
@pytest.mark.parametrize("family", ["mixtral", pytest.param("qwen3_moe", marks=pytest.mark.slow)])
async def test_experts_of_one_tensor_reach_the_engine(tmp_path: Path, family: str) -> None:
    config, hf = saved(tmp_path / "model", family)
    async with engine_of(config) as engine:
        assert await difference(engine, config, hf) < 1e-4
        for version in (1, 2):
            with torch.no_grad():
                for name, parameter in hf.named_parameters():
                    if "experts" in name or "embed" in name:
                        parameter.mul_(2.0)
            assert await difference(engine, config, hf) > 0.01, "the engine still has the old ones"
            await engine.receive(published(hf, version, tmp_path / "weights"))
            await engine.install(version)
            assert await difference(engine, config, hf) < 1e-4
