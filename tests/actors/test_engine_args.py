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
    free = {"block_size", "enable_chunked_prefill", "ir_op_priority", "load_format"}
    assert _own(config).keys() - KEYS.keys() == free


@pytest.mark.parametrize("shape", [(128, 576), (1, 64), (4, 3, 64)])
def test_layer_norms_on_a_cpu_are_those_of_the_learner(shape: tuple[int, ...]) -> None:
    import torch
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from vllm import ir

    from hora_rl.actors.generator.cpu_kernels import PRIORITY, PROVIDER
    from hora_rl.actors.generator.vllm_plugin import register

    register()
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(shape, generator=generator).bfloat16() for _ in range(2))
    norm = LlamaRMSNorm(shape[-1], eps=1e-5).bfloat16()
    norm.weight.data = weight = torch.rand(shape[-1], generator=generator).bfloat16()
    plain, fused = (op.impls[PROVIDER] for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm))

    found = plain.impl_fn(x, weight, 1e-5)
    torch.testing.assert_close(found, norm(x), rtol=2**-6, atol=0.0)
    added = x + residual
    found, kept = fused.impl_fn(x.clone(), residual.clone(), weight, 1e-5)
    assert torch.equal(kept, added)
    torch.testing.assert_close(found, norm(added), rtol=2**-6, atol=0.0)

    assert plain.supports_args(x, weight, 1e-5)
    assert not plain.supports_args(x, weight.float(), 1e-5)  # the native one computes these
    strided = torch.stack([residual, residual], dim=-1)[..., 0]
    assert not fused.supports_args(x, strided, weight, 1e-5)
    assert args().ir_op_priority.rms_norm == PRIORITY["rms_norm"]
    assert args("generator.enforce_eager=false").ir_op_priority.rms_norm == []


def test_graphs_are_captured_on_gpus_unless_the_key_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform

    assert args().enforce_eager
    assert not args("generator.enforce_eager=false").enforce_eager
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    assert not args().enforce_eager


def test_an_engine_keeps_the_memory_that_it_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    from hora_rl.actors.generator.engine_args import set_environment

    monkeypatch.setattr(os, "environ", dict(os.environ))
    set_environment(load("tiny", ["generator.threads=3"]).generator)
    assert KEEP_FREED_MEMORY.items() <= os.environ.items()
    assert os.environ["OMP_NUM_THREADS"] == "3"
