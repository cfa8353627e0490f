"""This machine's GPUs (driver, precision, Triton's compiler, MPS) and, without any, its processors:
precision and threads, which `run.resources: auto` chooses for unset keys."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hora_rl.common.config import Config, ModelConfig
from hora_rl.common.load import ROOT
from hora_rl.common.model.model_files import own_configuration
from hora_rl.common.processes import processors
from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.findings import Finding, Target, must, ok, plural, should
from hora_rl.deploy.checks.resources import filled
from hora_rl.deploy.machine import mps
from hora_rl.learner.model.flops import head_size

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Oldest branch of the driver for every minor version of a CUDA release (NVIDIA, "Minor Version
# Compatibility", table 1).
OLDEST = {13: 580, 12: 525, 11: 450}
BFLOAT16 = 8
"""First compute capability with bfloat16 (Ampere)."""
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


def driver(target: Target) -> Iterator[Finding]:
    """Compare the driver with torch's CUDA. No finding without a driver."""
    import torch

    versions = machine.ask_driver("driver_version")
    if versions:
        yield judge_driver(versions[0], cuda_version(), works=torch.cuda.is_available())


def judge_driver(version: str, cuda: str, *, works: bool) -> Finding:
    """Judge a driver `version` such as 535.104.05. An old driver fails unless torch finds the cards, which
    NVIDIA's forward-compatibility packages allow on some cards."""
    oldest, branch = OLDEST.get(_major(cuda)), _major(version)
    known = oldest is not None and branch > 0
    says = f"{version or 'unknown'}; torch's CUDA {cuda or 'unknown'} needs {oldest or 'unknown'} or newer"
    fix = f"install a driver of branch {oldest}, or see whether torch.cuda.is_available()"
    recent = known and branch >= (oldest or 0)
    return (should if works or not known else must)(recent, "GPU driver", says, fix)


def mps_daemon(target: Target) -> Iterator[Finding]:
    """Whether processes that share a card can use it at the same time. No finding where none do."""
    if target.on_cluster or not machine.gpus() or not mps.wanted_by(target.config.generator):
        return
    on = f"{mps.CONTROL} starts with the run; processes on the card work at the same time"
    off = f"off: {mps.CONTROL}, a part of NVIDIA's driver, is not installed: processes on the card take turns"
    yield ok("MPS", on if mps.installed() else off)


def precision(target: Target) -> Iterator[Finding]:
    """Fail if the cards do not support the model's precision. vLLM would refuse them only after a long
    start."""
    if target.config.model.dtype == "bfloat16" and (old := without_bfloat16()):
        says = f"{old[0]}, and model.dtype bfloat16 needs {BFLOAT16}.0"
        yield must(False, "precision", says, "use model.dtype: float16, or other cards")


def without_bfloat16() -> list[str]:
    """Visible cards without bfloat16 (Turing and older): name and compute capability."""
    cards = (line.rpartition(", ") for line in machine.shown("name,compute_cap"))
    return [f"{name} has compute capability {cap}" for name, _, cap in cards if 0 < _major(cap) < BFLOAT16]


def cuda_version() -> str:
    """CUDA of the installed torch, or of the pinned GPU set for a CPU build."""
    import torch

    toolkit = machine.pinned(ROOT / "requirements" / "gpu.txt").get("cuda-toolkit", "")
    return torch.version.cuda or ".".join(toolkit.split(".")[:2])


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def triton_build(target: Target) -> Iterator[Finding]:
    """Whether Triton can build kernel launchers for vLLM and the learner. No finding without GPUs."""
    if machine.gpus() and find_spec("triton") is not None:
        yield judge_compiler(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"), headers())


def headers() -> Path:
    """Folder in which Triton looks for Python.h."""
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme  # Debian's own Python
    return Path(sysconfig.get_paths(scheme=scheme)["include"])


def judge_compiler(compiler: str | None, include: Path) -> Finding:
    """Fail with the packages to install if the compiler or Python.h is missing."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    missing = {
        "C compiler": ("gcc", compiler is None),
        f"{include}/Python.h": (f"{python}-dev", not (include / "Python.h").is_file()),
    }
    says = " and no ".join(what for what, (_, lacks) in missing.items() if lacks)
    packages = " ".join(package for package, lacks in missing.values() if lacks)
    fix = f"apt-get install {packages} (Fedora, RHEL: -devel for -dev)"
    return must(not says, "Triton", f"no {says}" if says else f"{compiler}, {include}/Python.h", fix)


def fastest_dtype() -> str:
    """The fastest precision of this machine's processors: bfloat16 where they have it."""
    text = CPUINFO.read_text() if CPUINFO.is_file() else ""
    lines = (line.partition(":") for line in text.splitlines())
    flags = (set(value.split()) for key, _, value in lines if key.strip() in ("flags", "Features"))
    return "bfloat16" if next(flags, set()) & BFLOAT16_FLAGS else "float32"


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
    if not target.on_cluster and not machine.gpus():
        yield _threads(target)
        yield from _kernels(target)
        yield _precision(target.config.model)


def _threads(target: Target) -> Finding:
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
