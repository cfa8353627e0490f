"""The arguments of a replica's vLLM engine, and the environment of its processes."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from vllm import AsyncEngineArgs
from vllm.config import WeightTransferConfig
from vllm.engine import arg_utils
from vllm.platforms import current_platform

from hora_rl.common.config import Config, GeneratorConfig, LoraConfig, ModelConfig
from hora_rl.common.errors import ConfigError
from hora_rl.common.model.adapters import read_adapter
from hora_rl.common.model.model_files import own_configuration, text_part
from hora_rl.common.processes import KEEP_FREED_MEMORY

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

PRIMITIVES = "64"
"""Capacity of oneDNN's cache of compiled matrix products. oneDNN compiles one per number of rows (sequences
in a step), at 0.3 to 0.4 MiB each. Its default of 1,024 fills over hundreds of steps and takes 290 MiB, plus
fragmentation, although vLLM already keeps the last 32 of each shape."""
CPU_BLOCK = 32
"""Tokens per KV cache block on a CPU: the smallest size that its attention prefers. Rollouts share only full
blocks of their prompt, so with vLLM's default of 128 each rollout would compute a short prompt again."""
FORMAT = "hora"
"""Load format of the loader that refuses NaN and infinite weights (`actors.generator.vllm_plugin`)."""
ATTENTION = frozenset({"attention", "full_attention", "sliding_attention", "chunked_attention"})
"""Kinds of layers that keep keys and values of tokens, unlike linear attention, short convolutions, Mamba."""
PART = "hora_part"
"""Set in the configuration of a text part: its files have the names of the whole model."""
BACKENDS = {"file": "file", "gloo": "gloo", "nccl": "hora-nccl"}
"""Name in vLLM of each transport's engine. vLLM already has an engine `nccl`."""
KEYS = {
    "model": "model.path",
    "dtype": "model.dtype",
    "trust_remote_code": "model.trust_remote_code",
    "seed": "run.seed",
    "tensor_parallel_size": "generator.tensor_parallel",
    "gpu_memory_utilization": "generator.memory_utilization",
    "kv_cache_memory_bytes": "generator.kv_cache_gib",
    "max_model_len": "rollout.max_prompt_tokens and rollout.max_response_tokens",
    "max_num_seqs": "generator.max_sequences",
    "max_num_batched_tokens": "generator.max_batched_tokens",
    "enforce_eager": "generator.enforce_eager",
    "enable_sleep_mode": "generator.sleep",
    "weight_transfer_config": "weights.transport",
    **dict.fromkeys(("enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank"), "learner.lora"),
    **dict.fromkeys(
        ("scheduling_policy", "logprobs_mode", "worker_extension_cls", "enable_log_requests"),
        "nothing: training depends on it",
    ),
}
"""vLLM's arguments that HORA sets, and the configuration keys that determine them."""


def set_environment(generator: GeneratorConfig) -> None:
    """Set the variables that glibc and vLLM read when the engine's processes start."""
    # The logits of a step are one block of many MiB. By default glibc returns the block after each step.
    os.environ.update(KEEP_FREED_MEMORY)
    if not current_platform.is_cpu():
        # FlashInfer's kernels are in no pinned package. Where there is a CUDA toolkit, vLLM would compile its
        # all-reduce at the start, and its sampler while a run samples.
        os.environ["VLLM_ALLREDUCE_USE_FLASHINFER"] = "0"
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        return
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # with `auto` two replicas bind to the same core
    os.environ["OMP_NUM_THREADS"] = str(generator.threads)
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", PRIMITIVES)
    if generator.tensor_parallel == 1:
        # Run the model in the engine's process. With a second process the two busy-wait on shared memory,
        # which takes the cores from everything else. vLLM separates them to bind threads; we do not bind.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def engine_args(config: Config) -> AsyncEngineArgs:
    """All arguments of a replica's engine. Raises ConfigError for invalid `generator.engine_args`, and if
    `generator.sleep` is set on a machine where engines cannot sleep."""
    more = config.generator.engine_args
    check_engine_args(more)
    args = _own(config)
    # vLLM refuses two answers about the graphs to capture.
    if more.keys() & {"cudagraph_capture_sizes", "compilation_config"}:
        args.pop("max_cudagraph_capture_size", None)
    return AsyncEngineArgs(**(args | more))


def check_engine_args(more: Mapping[str, Any]) -> None:
    """Raise ConfigError for a name that vLLM lacks or HORA sets, and for a value of the wrong type."""
    names = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name, value in more.items():
        key = f"generator.engine_args.{name}"
        if name in KEYS:
            raise ConfigError(f"{key}: HORA sets this argument: remove it here, and change {KEYS[name]}")
        if name not in names:
            near = difflib.get_close_matches(name, names.difference(KEYS), n=1)
            hint = f"did you mean {near[0]}?" if near else "`vllm serve --help=all` lists them"
            raise ConfigError(f"{key}: vLLM has no such argument; {hint}")
        try:
            TypeAdapter(_type_of(name)).validate_python(value)
        except ValidationError as error:
            raise ConfigError(f"{key} ({value!r}): {error.errors()[0]['msg']}") from None


def _type_of(name: str) -> Any:
    """The type of one argument; Any if its annotation needs names imported only for type checkers."""
    annotation = next(c.__annotations__[name] for c in AsyncEngineArgs.__mro__ if name in c.__annotations__)
    holder = type("One", (), {"__annotations__": {name: annotation}})
    try:
        return get_type_hints(holder, vars(arg_utils))[name]
    except NameError:
        return Any


def _own(config: Config) -> dict[str, object]:
    """The arguments that HORA sets. `generator.engine_args` may override those without a key in `KEYS`."""
    generator, longest, cpu = config.generator, config.longest, current_platform.is_cpu()
    args = {
        "model": config.model.path,
        "dtype": config.model.dtype,
        "trust_remote_code": config.model.trust_remote_code,
        "load_format": FORMAT,
        # Ministral's folders hold a second copy in Mistral's own format, which vLLM would prefer.
        "config_format": "hf",
        "hf_overrides": text_only,
        "seed": config.run.seed,
        "tensor_parallel_size": generator.tensor_parallel,
        "gpu_memory_utilization": generator.memory_utilization,
        "max_model_len": longest,
        "max_num_seqs": generator.max_sequences,
        "enforce_eager": cpu if generator.enforce_eager is None else generator.enforce_eager,
        # First come, first served, all shards in flight would finish together and leave the engine idle.
        "scheduling_policy": "priority",
        "logprobs_mode": "processed_logprobs",
        "weight_transfer_config": WeightTransferConfig(backend=BACKENDS[config.weights.transport]),
        "worker_extension_cls": f"{__package__}.vllm_plugin.WorkerExtension",
        "enable_log_requests": False,
    }
    adapter = adapter_settings(config.model, config.learner.lora)
    if adapter is not None:
        rank = LoraConfig(rank=int(str(adapter["r"]))).served_rank
        args |= {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": rank}
    if generator.sleep == "step":
        # An engine that cannot sleep would report success and keep its memory.
        if not current_platform.is_sleep_mode_available():
            raise ConfigError(
                "generator.sleep (step): vLLM cannot free an engine's memory on this machine "
                f"({current_platform.device_type}): set generator.sleep: none"
            )
        args["enable_sleep_mode"] = True
    if cpu:
        # Chunked prefill of a seeded sequence crashes the engine ("CPU Generator does not use offset").
        args |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(4096, longest)}
        args["block_size"] = CPU_BLOCK
        layers = getattr(own_configuration(config.model), "layer_types", None) or ()
        # Others carry a state through all tokens: vLLM shares their prompts only with chunked prefill.
        if not ATTENTION.issuperset(layers):
            args["enable_prefix_caching"] = False
    else:
        args |= card_args(generator)
    cache = generator.cpu_kv_cache_gib if cpu else generator.kv_cache_gib
    if cache is not None:
        args["kv_cache_memory_bytes"] = int(cache * 2**30)
    return args


def text_only(config: PreTrainedConfig) -> PreTrainedConfig:
    """For vLLM's `hf_overrides`: an engine holds the text part of a model alone, as the learner does."""
    text = text_part(config)
    if text is not config:
        setattr(text, PART, True)
    return text


def adapter_settings(model: ModelConfig, lora: LoraConfig | None) -> dict[str, object] | None:
    """The `adapter_config.json` of the served adapter; None without an adapter."""
    if model.adapter is not None:
        return read_adapter(model.adapter).settings
    return None if lora is None else lora.adapter_config


def card_args(generator: GeneratorConfig) -> dict[str, Any]:
    """The arguments that HORA sets on GPUs only. Decoding there is bound by processors, not by the card. So
    the model runs in a process of its own: the next step is planned while the card computes this one."""
    args: dict[str, Any] = {
        "distributed_executor_backend": "mp",
        "max_num_batched_tokens": generator.batched_tokens,
        "enable_flashinfer_autotune": False,  # in 16 bits nothing here uses its kernels
    }
    if not generator.enforce_eager:
        args["max_cudagraph_capture_size"] = generator.captured
    if generator.tensor_parallel > 1:
        args["compilation_config"] = {"pass_config": {"fuse_allreduce_rms": False}}
    return args
