"""What vLLM is told of a replica's engine."""

import json
import os

import pytest

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.common.processes import KEEP_FREED_MEMORY

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def args(*overrides: str):
    from hora_rl.actors.generator.engine_args import engine_args

    return engine_args(load("tiny", overrides))


def test_further_arguments_reach_vllm() -> None:
    found = args('generator.engine_args={"kv_cache_dtype": "fp8", "block_size": 64}')
    assert (found.kv_cache_dtype, found.block_size) == ("fp8", 64)
    assert args().block_size == 32


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"kv_cache_dtyp": "fp8"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "fp9"}, "kv_cache_dtype"),
        ({"block_size": "many"}, "block_size"),
        ({"dtype": "float32"}, "model.dtype"),
        ({"logprobs_mode": "raw_logprobs"}, "logprobs_mode"),
    ],
)
def test_what_vllm_lacks_or_hora_sets_is_refused(more: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        args(f"generator.engine_args={json.dumps(more)}")
    assert "\n" not in str(refused.value)


def test_every_argument_that_hora_sets_has_its_key() -> None:
    from hora_rl.actors.generator.engine_args import KEYS, _own

    config = load("tiny", ["learner.lora.rank=8", "learner.lora.alpha=16"])
    free = {"block_size", "config_format", "enable_chunked_prefill", "hf_overrides", "load_format"}
    assert _own(config).keys() - KEYS.keys() == free


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's platform is not a CPU. Nothing is started there."""
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)


@pytest.mark.usefixtures("on_card")
def test_an_engine_on_a_card_plans_beside_its_worker_with_graphs_for_all_its_sequences() -> None:
    found = args("generator.max_sequences=1024")
    assert (found.distributed_executor_backend, found.max_num_batched_tokens) == ("mp", 8192)
    assert found.max_cudagraph_capture_size == 1280
    assert args("generator.max_sequences=128").max_cudagraph_capture_size == 256, "as vLLM's own"
    assert args("generator.enforce_eager=true").max_cudagraph_capture_size is None
    assert args("generator.max_batched_tokens=512").max_num_batched_tokens == 512
    assert found.compilation_config.pass_config.fuse_allreduce_rms is None
    two = args("generator.tensor_parallel=2")
    assert two.compilation_config.pass_config.fuse_allreduce_rms is False
    assert two.max_cudagraph_capture_size == 512


@pytest.mark.usefixtures("on_card")
@pytest.mark.parametrize(
    "more", [{"cudagraph_capture_sizes": [1, 8]}, {"compilation_config": {"max_cudagraph_capture_size": 8}}]
)
def test_somebody_s_own_graphs_are_the_only_answer_that_vllm_gets(more: dict[str, object]) -> None:
    found = args(f"generator.engine_args={json.dumps(more)}")
    assert found.max_cudagraph_capture_size is None
    sizes = (found.cudagraph_capture_sizes, found.compilation_config.max_cudagraph_capture_size)
    assert sizes in (([1, 8], None), (None, 8))


def test_an_engine_on_a_cpu_compiles_nothing_unless_the_key_says_otherwise() -> None:
    assert args().enforce_eager
    assert not args("generator.enforce_eager=false").enforce_eager
    assert args().distributed_executor_backend is None


@pytest.mark.usefixtures("on_card")
def test_an_engine_on_a_card_captures_graphs() -> None:
    assert not args().enforce_eager


def test_an_engine_keeps_the_memory_that_it_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    from hora_rl.actors.generator.engine_args import set_environment

    monkeypatch.setattr(os, "environ", dict(os.environ))
    set_environment(load("tiny", ["generator.threads=3"]).generator)
    assert KEEP_FREED_MEMORY.items() <= os.environ.items()
    assert os.environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.usefixtures("on_card")
def test_nothing_of_flashinfer_is_compiled_while_a_run_starts_or_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import vllm.envs

    from hora_rl.actors.generator.engine_args import set_environment

    monkeypatch.setattr(os, "environ", dict(os.environ))
    set_environment(load("tiny", []).generator)
    assert vllm.envs.VLLM_USE_FLASHINFER_SAMPLER is False
    assert vllm.envs.VLLM_ALLREDUCE_USE_FLASHINFER is False
    assert args().enable_flashinfer_autotune is False
