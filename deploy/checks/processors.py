"""Precision and threads on a machine without GPUs, chosen by `run.resources: auto` for unset keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hora_rl.common.config import Config, ModelConfig
from hora_rl.common.model.model_files import own_configuration
from hora_rl.common.processes import processors
from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.findings import Finding, Target, must, plural, should
from hora_rl.deploy.checks.resources import filled
from hora_rl.learner.model.flops import head_size

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CPUINFO = Path("/proc/cpuinfo")
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags in /proc/cpuinfo: AVX-512, AMX, ARM."""
THREAD_GIB = 1 / 64
"""Weights per useful thread. For smaller models, synchronising threads costs more than it saves."""

SMALL_GIB, SMALL_STEP = 1 / 16, 1024
"""Weights of a model whose micro-batches have the default size, and tokens of those of larger models: they
gain nothing from more, and activations fill the memory."""
HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head for which vLLM has a kernel on a CPU."""


def has_bfloat16() -> bool:
    """Whether this machine's processors support bfloat16."""
    if not CPUINFO.is_file():
        return False
    lines = (line.partition(":") for line in CPUINFO.read_text().splitlines())
    flags = (set(value.split()) for key, _, value in lines if key.strip() in ("flags", "Features"))
    return bool(next(flags, set()) & BFLOAT16_FLAGS)


def fastest_dtype() -> str:
    """The fastest precision of this machine's processors."""
    return "bfloat16" if has_bfloat16() else "float32"


def on_processors(config: Config, *, trains: bool = True) -> Config:
    """Fill unset keys of `config` for this machine's processors. Generators and learner share the processors;
    with max_staleness 0 they take turns and each uses all. Unchanged on a machine with GPUs."""
    if config.run.resources != "auto" or machine.gpus():
        return config
    have, learner = processors(), config.learner
    in_turn = not trains or config.rollout.max_staleness == 0
    weights = machine.model_gib(config.model.path)
    small = 0 < weights < SMALL_GIB
    most = max(1, round(weights / THREAD_GIB)) if weights else have
    learners = have if in_turn else have // 2
    generators = have if in_turn else have - learners  # sampling takes most of a step's time
    return filled(
        config,
        model={"dtype": "bfloat16" if "linear_attention" in _layers(config.model) else fastest_dtype()},
        generator={"threads": max(1, min(most, generators // config.generator.replicas))},
        learner={
            "threads": max(1, min(most, learners // learner.workers)),
            "tokens_per_microbatch": (
                learner.tokens_per_microbatch if small else max(SMALL_STEP, config.longest)
            ),
        },
    )


def on_cpu(target: Target) -> Iterator[Finding]:
    """Threads, precision and kernels of a machine without GPUs."""
    if not target.on_cluster and not machine.gpus():
        yield _threads(target)
        yield from _kernels(target)
        yield _precision(target.config.model)


def _threads(target: Target) -> Finding:
    """Compare the threads of generators and learner with this machine's processors."""
    config, have = target.config, processors()
    parts = {"generator.replicas": (config.generator.replicas, config.generator.threads)}
    if target.trains:
        parts["learner.workers"] = (config.learner.workers, config.learner.threads)
    counts = [number * each for number, each in parts.values()]
    in_turn = config.rollout.max_staleness == 0
    says = " + ".join(f"{key} {n} · threads {each}" for key, (n, each) in parts.items())
    says += f"{', in turn,' if in_turn and target.trains else ''} on {plural(have, 'processor')}"
    fix = "they wait for each other: lower generator.threads or learner.threads, or leave both out"
    return should((max if in_turn else sum)(counts) <= have, "threads", says, fix)


def _precision(model: ModelConfig) -> Finding:
    fastest = fastest_dtype()
    if "linear_attention" in _layers(model):
        says = f"{model.dtype}; vLLM computes this model's linear attention on a CPU in bfloat16 alone"
        return must(model.dtype == "bfloat16", "model.dtype", says, "set model.dtype: bfloat16")
    says = f"{model.dtype}; these processors are fastest in {fastest}"
    return should(model.dtype in (fastest, "float32"), "model.dtype", says, f"set model.dtype: {fastest}")


def _kernels(target: Target) -> Iterator[Finding]:
    """Whether vLLM's kernels on a CPU agree with the learner and have the size of the model's attention
    heads. Latent attention has its own."""
    if "conv" in _layers(target.config.model) and target.trains:
        says = "vLLM's short convolution on a CPU gives other log-probs than the learner's: 0.1 nats and more"
        yield must(False, "model.path", says, "use another model, or a GPU")
    model = _read(target.config.model)
    if model is None or not hasattr(model, "num_attention_heads") or hasattr(model, "kv_lora_rank"):
        return
    sizes = {head_size(layer) for layer in model.per_layer_config}
    shown, have = (", ".join(map(str, sorted(heads))) for heads in (sizes, HEADS))
    says = f"heads of {shown} in {model.name_or_path}; on a CPU vLLM has kernels for {have}"
    yield must(sizes <= set(HEADS), "attention heads", says, "use another model, or a GPU")


def _layers(model: ModelConfig) -> set[str]:
    """The kinds of the model's layers; empty if its configuration does not name them."""
    return set(getattr(_read(model), "layer_types", None) or ())


def _read(model: ModelConfig) -> PreTrainedConfig | None:
    """The model's configuration; None if it is not on this machine, or cannot be read."""
    from huggingface_hub import try_to_load_from_cache

    try:
        here = Path(model.path).is_dir() or try_to_load_from_cache(model.path, "config.json")
        return own_configuration(model) if here else None
    except (OSError, ValueError):
        return None
