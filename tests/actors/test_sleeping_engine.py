"""A real vLLM engine sleeps and wakes, for full weights and for an adapter. On a CPU it frees nothing, but
its bookkeeping is that of a GPU."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.learner.model.loading import load_model
from hora_rl.learner.model.logprobs import Policy
from tests.support.adapters import errors, policy_with_adapter, published
from tests.support.engines import N, engine_of, never_end

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]
EXACT = 2e-4
SLEEPS = ("rollout.max_staleness=0", "rollout.max_prompt_tokens=96", "rollout.max_response_tokens=400")
LORA = ("learner.lora.rank=8", "learner.lora.alpha=16")


def policy(config: Config, seed: int) -> Policy:
    """Another policy for each seed but 0, which is the initial one."""
    if config.learner.lora is not None:
        return policy_with_adapter(config, seed or None)
    hf, source = load_model(config.model, config.learner), torch.Generator().manual_seed(seed)
    for parameter in hf.parameters() if seed else ():
        with torch.no_grad():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=source))
    return Policy(hf)


def tensors(config: Config, of: Policy) -> dict[str, torch.Tensor]:
    if config.learner.lora is not None:
        return published(of)
    return {name: p.detach().clone() for name, p in of.hf.named_parameters()}


def noting(did: list[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    async def noted(*args: Any, **named: Any) -> Any:
        did.append(" ".join(map(str, [name, *args, *named.values()])))
        return await call(*args, **named)

    return noted


@pytest.mark.parametrize("more", [(), pytest.param(LORA, marks=pytest.mark.slow)], ids=["full", "adapter"])
async def test_it_wakes_on_new_weights_and_every_token_is_of_the_version_it_is_labelled_with(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hora_rl.actors.generator import vllm_engine as module

    config = load("tiny", [*SLEEPS, *more])
    policies = {version: policy(config, version) for version in (0, 1)}
    prompt = np.random.default_rng(0).integers(4, 60, 80).astype(np.int32)
    file = tmp_path / "1.safetensors"
    save_file(tensors(config, policies[1]), file)
    did = list[str]()
    async with engine_of(config) as engine:
        never_end(monkeypatch)
        for name in ("sleep", "wake_up", "pause_generation", "resume_generation"):
            monkeypatch.setattr(engine._llm, name, noting(did, name, getattr(engine._llm, name)))
        label = "update_weight_version" if more else "finish_weight_update"
        monkeypatch.setattr(engine._llm, label, noting(did, "label", getattr(engine._llm, label)))
        running = asyncio.create_task(engine.generate(prompt, N, seed=1, temperature=1.0))
        while not engine.load.running:
            await asyncio.sleep(0)
        await engine.sleep()
        await engine.sleep()  # a learner that restarted asks again
        monkeypatch.setattr(module, "STILL_S", 0.5)
        came = asyncio.create_task(engine.generate(prompt, 2, seed=2, temperature=1.0))
        await asyncio.sleep(2.0)
        await engine.check_health()
        assert not running.done()
        assert not came.done()
        await engine.receive({"version": 1, "path": str(file)})
        installed = await engine.install(1)
        assert 0.0 < installed.checksum_s < installed.pause_s < 1.9, "the sleep is not the update's"
        across, after = errors(policies, prompt, await running), errors(policies, prompt, await came)
        assert set(across) == {0, 1}, "sequences are kept"
        assert max(across.values()) < EXACT
        assert set(after) == {1}
        assert after[1] < EXACT
        assert did == ["sleep 1 keep", "wake_up ['weights']", "label 1", "wake_up ['kv_cache']"]

        did.clear()
        await engine.sleep()
        late = asyncio.create_task(engine.generate(prompt, 2, seed=3, temperature=1.0))
        await engine.wake()
        await engine.wake()
        assert errors(policies, prompt, await late)[1] < EXACT, "without new weights, on the old ones"
        assert did == ["sleep 1 keep", "wake_up ['weights']", "wake_up ['kv_cache']"]
        await engine.check_health()


def test_an_engine_that_could_not_free_its_memory_is_refused() -> None:
    from vllm.platforms import current_platform

    from hora_rl.actors.generator.engine_args import engine_args

    if current_platform.is_sleep_mode_available():
        pytest.skip("this machine's engine can sleep")
    config = load("tiny", ["generator.sleep=step", *SLEEPS])
    with pytest.raises(ConfigError, match=r"generator.sleep \(step\): .* \(cpu\)"):
        engine_args(config)
