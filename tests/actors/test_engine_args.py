"""What vLLM is told of a replica's engine."""

import json
import os
from typing import Any

import pytest

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.common.processes import KEEP_FREED_MEMORY

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
GRAPHS = "max_cudagraph_capture_size"


def args(*overrides: str) -> Any:
    from hora_rl.actors.generator.engine_args import engine_args

    return engine_args(load("tiny", overrides))


def more(**arguments: object) -> str:
    return f"generator.engine_args={json.dumps(arguments)}"


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's platform is not a CPU. Nothing is started there."""
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)


def held(arguments: Any, expected: dict[str, Any]) -> bool:
    return all(getattr(arguments, name) == value for name, value in expected.items())


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("run.seed=0", {"block_size": 32, "enforce_eager": True, "distributed_executor_backend": None}),
        ("generator.enforce_eager=false", {"enforce_eager": False}),
        (more(kv_cache_dtype="fp8", block_size=64), {"kv_cache_dtype": "fp8", "block_size": 64}),
    ],
)
def test_on_a_cpu(override: str, expected: dict[str, Any]) -> None:
    assert held(args(override), expected)


@pytest.mark.usefixtures("on_card")
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("run.seed=0", {"enforce_eager": False, "enable_flashinfer_autotune": False}),
        (
            "generator.max_sequences=1024",
            {"distributed_executor_backend": "mp", "max_num_batched_tokens": 8192, GRAPHS: 1280},
        ),
        ("generator.max_sequences=128", {GRAPHS: 256}),  # as vLLM's own
        ("generator.enforce_eager=true", {GRAPHS: None}),
        ("generator.max_batched_tokens=512", {"max_num_batched_tokens": 512}),
        ("generator.tensor_parallel=2", {GRAPHS: 512}),
        (more(cudagraph_capture_sizes=[1, 8]), {GRAPHS: None, "cudagraph_capture_sizes": [1, 8]}),
        (more(compilation_config={GRAPHS: 8}), {GRAPHS: None}),
    ],
)
def test_on_a_card(override: str, expected: dict[str, Any]) -> None:
    arguments = args(override)
    assert held(arguments, expected)
    passes = arguments.compilation_config.pass_config
    assert passes.fuse_allreduce_rms is (False if "tensor_parallel" in override else None)
    assert arguments.compilation_config.max_cudagraph_capture_size == (
        8 if "compilation" in override else None
    )


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("kv_cache_dtyp", "fp8", "kv_cache_dtype"),
        ("kv_cache_dtype", "fp9", "kv_cache_dtype"),
        ("block_size", "many", "block_size"),
        ("dtype", "float32", "model.dtype"),
        ("logprobs_mode", "raw_logprobs", "logprobs_mode"),
    ],
)
def test_what_vllm_lacks_or_hora_sets_is_refused(name: str, value: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        args(more(**{name: value}))


def test_every_argument_that_hora_sets_has_its_key() -> None:
    from hora_rl.actors.generator.engine_args import KEYS, _own

    config = load("tiny", ["learner.lora.rank=8", "learner.lora.alpha=16"])
    free = {"block_size", "config_format", "enable_chunked_prefill", "hf_overrides", "load_format"}
    assert _own(config).keys() - KEYS.keys() == free


@pytest.mark.parametrize("card", [False, True])
def test_an_engine_keeps_its_memory_and_compiles_nothing_of_flashinfer(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, card: bool
) -> None:
    import vllm.envs

    from hora_rl.actors.generator.engine_args import set_environment

    if card:
        request.getfixturevalue("on_card")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    set_environment(load("tiny", ["generator.threads=3"]).generator)
    assert KEEP_FREED_MEMORY.items() <= os.environ.items()
    if card:
        assert vllm.envs.VLLM_USE_FLASHINFER_SAMPLER is False
        assert vllm.envs.VLLM_ALLREDUCE_USE_FLASHINFER is False
    else:
        assert os.environ["OMP_NUM_THREADS"] == "3"
