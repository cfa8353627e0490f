"""A real vLLM engine serves the policy's adapter, sleeps and wakes: each log-prob is of the version on its
label. On a CPU sleep frees nothing, but its bookkeeping is that of a GPU."""

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
from hora_rl.common.types import Completion, Tokens
from hora_rl.learner.model.loading import load_model
from hora_rl.learner.model.logprobs import Policy
from tests.support.adapters import errors, policy_with_adapter, published
from tests.support.engines import N, engine_of, never_end

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]
PROMPT = 80
EXACT = 5e-4  # of 19,200 tokens; a stale cache differs by more than 0.1
CLOSE = 2e-4  # of fewer tokens
LORA = ("learner.lora.rank=8", "learner.lora.alpha=16")


class Served:
    """An engine, the policies it was given by version, and the files of their adapters."""

    def __init__(self, engine: Any, config: Config, folder: Path) -> None:
        self.engine, self.config, self.folder = engine, config, folder
        self.policies = {0: policy_with_adapter(config, None)}
        self.prompt: Tokens = np.random.default_rng(0).integers(4, 60, PROMPT).astype(np.int32)

    def prepare(self, version: int, seed: int) -> None:
        self.policies[version] = policy_with_adapter(self.config, seed)
        save_file(published(self.policies[version]), self.folder / f"{version}.safetensors")

    async def update(self, version: int) -> Any:
        path = self.folder / f"{version}.safetensors"
        await self.engine.receive({"version": version, "path": str(path)})
        return await self.engine.install(version)

    async def sample(self, seed: int = 1, n: int = 4) -> list[Completion]:
        return await self.engine.generate(self.prompt, n, seed=seed, temperature=1.0)

    def error(self, completions: list[Completion]) -> dict[int, float]:
        return errors(self.policies, self.prompt, completions)


def configuration(*more: str) -> Config:
    limits = ("rollout.max_prompt_tokens=96", "rollout.max_response_tokens=300")
    return load("tiny", [*LORA, *limits, *more])


async def test_log_probs_are_those_of_the_labelled_version_with_cached_prompts_and_running_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hora_rl.actors.generator.engine_args import CPU_BLOCK

    config = configuration()
    async with engine_of(config) as engine:
        served = Served(engine, config, tmp_path)
        never_end(monkeypatch)
        assert served.error(await served.sample())[0] < EXACT
        assert served.error(await served.sample(2))[0] < EXACT
        assert engine.load.prefix_hits >= 2 * CPU_BLOCK, "the prompt is in the cache now"

        for version, seed in ((1, 1), (2, 2), (3, 1), (4, 4)):
            served.prepare(version, seed)
        first = await served.update(1)
        assert served.error(await served.sample(3))[1] < EXACT, "the old cache is not used"
        running = asyncio.create_task(served.sample(4, N))
        while not engine.load.running:
            await asyncio.sleep(0)
        second = await served.update(2)
        across = served.error(await running)
        assert set(across) == {1, 2}, "sequences ran through the update"
        assert max(across.values()) < EXACT
        hits = engine.load.prefix_hits
        after = served.error(await served.sample(5)) | served.error(await served.sample(6))
        assert set(after) == {2}
        assert after[2] < EXACT, "nothing of the old adapter's cache is used"
        assert engine.load.prefix_hits > hits, "and the cache is in use"

        third = await served.update(3)
        assert served.error(await served.sample(7))[3] < EXACT
        assert first.checksum == third.checksum != second.checksum
        assert 0.0 < first.checksum_s < first.pause_s

        # The same update without an emptied cache, as vLLM's own loading in place would be.
        await served.sample(8)
        llm, pause = engine._llm, engine._llm.pause_generation
        monkeypatch.setattr(llm, "pause_generation", lambda mode, **_: pause(mode=mode, clear_cache=False))
        await served.update(4)
        assert served.error(await served.sample(9))[4] > 0.1, "this test would see a stale cache"


async def test_an_adapter_of_a_folder_is_served_and_a_misfit_leaves_it(tmp_path: Path) -> None:
    from hora_rl.learner.model.lora import write_adapter

    config = configuration()
    start = policy_with_adapter(config, 7)
    write_adapter(tmp_path, published(start), config.model.path, config.learner.lora)
    config = configuration("learner.lora=null", f"model.adapter={tmp_path}")
    async with engine_of(config) as engine:
        served = Served(engine, configuration(), tmp_path)
        served.policies[0] = start
        assert served.error(await served.sample())[0] < EXACT
        strange = {name.replace("q_proj", "query"): t for name, t in published(served.policies[0]).items()}
        save_file(strange, tmp_path / "strange.safetensors")
        await engine.receive({"version": 1, "path": str(tmp_path / "strange.safetensors")})
        with pytest.raises(Exception, match=r"self_attn\.query"):
            await engine.install(1)
        await engine._llm.resume_generation()
        engine.paused_since = None
        assert served.error(await served.sample(2)) == pytest.approx({0: 0.0}, abs=EXACT)


SLEEPS = ("rollout.max_staleness=0", "rollout.max_prompt_tokens=96", "rollout.max_response_tokens=400")


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
        assert max(across.values()) < CLOSE
        assert set(after) == {1}
        assert after[1] < CLOSE
        assert did == ["sleep 1 keep", "wake_up ['weights']", "label 1", "wake_up ['kv_cache']"]

        did.clear()
        await engine.sleep()
        late = asyncio.create_task(engine.generate(prompt, 2, seed=3, temperature=1.0))
        await engine.wake()
        await engine.wake()
        assert errors(policies, prompt, await late)[1] < CLOSE, "without new weights, on the old ones"
        assert did == ["sleep 1 keep", "wake_up ['weights']", "wake_up ['kv_cache']"]
        await engine.check_health()


def test_an_engine_that_could_not_free_its_memory_is_refused() -> None:
    from vllm.platforms import current_platform

    from hora_rl.actors.generator.engine_args import engine_args

    if current_platform.is_sleep_mode_available():
        pytest.skip("this machine's engine can sleep")
    config = load("tiny", ["generator.sleep=step", *SLEEPS])
    with pytest.raises(ConfigError, match=r"generator\.sleep"):
        engine_args(config)
