"""What can be known before anything starts: the configuration, its files, the data, this machine's memory and ports."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil
from rich.console import Console

from common.config import Config
from common.datasets import load_dataset, load_held_out
from common.errors import ConfigError, RunError
from common.load import check_paths, load
from common.prompts import load_tokenizer, render
from common.rewards import gold_test
from deploy.launch.ports import check_port
from deploy.monitor.progress import working
from deploy.preflight.names import check_names
from evaluation.benchmarks import known_leaks

GIB = 2**30
# Measured on CPU: the three processes of a replica beside its weights, one learner rank, Ray with Redis.
REPLICA_GIB, RANK_GIB, BASE_GIB = 2.2, 1.0, 1.5
# Bytes of the optimizer per byte of weights: Adam's two moments, and in 16 bits the float32 master copy.
OPTIMIZER = {"float32": 2.0, "bfloat16": 6.0, "float16": 6.0}


def check(source: str, overrides: Sequence[str]) -> None:
    """Print what a run of this configuration would use, row by row of trouble; raises on what would stop it."""
    console = Console()
    config = load(source, overrides)
    check_paths(config)
    with working("checking", 3) as begin:
        begin("tokenizer")
        tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
        check_names(config)
        begin("data")
        dataset = load_dataset(config.data, gold_test(config.reward))
        begin("prompts")
        lengths = [len(render(tokenizer, row.problem, config.data)) for row in dataset.rows]
    for rejected in dataset.rejected:
        console.print(f"left out: {rejected.place}: {rejected.reason}", markup=False, soft_wrap=True)
    too_long = sum(n > config.rollout.max_prompt_tokens for n in lengths)
    if too_long:
        console.print(
            f"left out: {too_long} prompts longer than rollout.max_prompt_tokens = {config.rollout.max_prompt_tokens}"
        )
    if len(lengths) - too_long < config.rollout.prompts_per_batch:
        raise ConfigError(
            f"data.path {config.data.path}: {len(lengths) - too_long} usable prompts are fewer than "
            f"rollout.prompts_per_batch = {config.rollout.prompts_per_batch}; use more rows or a smaller batch"
        )
    for leak in known_leaks(config, dataset.rows):
        console.print(
            f"warning: training row {leak.index} equals row {leak.row} of {leak.benchmark}", markup=False
        )
    if config.evaluation.path:
        load_held_out(config)
    check_packages(config)
    rollout = config.rollout
    console.print(
        f"{source}: valid. {len(lengths) - too_long} prompts of {min(lengths)} to {max(lengths)} tokens; "
        f"{config.learner.steps} steps of Γ·G = {rollout.prompts_per_batch}·{rollout.group_size} = "
        f"{rollout.prompts_per_batch * rollout.group_size} rollouts, rule {config.allocation.rule}.",
        markup=False,
        soft_wrap=True,
    )


def check_machine(config: Config) -> None:
    """Raise RunError when this machine cannot hold a one-machine run, naming what is short and what to change."""
    check_memory(config)
    check_port(config.telemetry.http_host, config.telemetry.http_port)
    check_packages(config)


def check_packages(config: Config) -> None:
    """Raise ConfigError when the configuration asks for a package that `make setup` does not install and nobody else did."""
    attention = config.learner.attention
    # transformers takes flash attention from either.
    if attention == "flash_attention_2" and not (find_spec("flash_attn") or find_spec("kernels")):
        raise ConfigError(
            f"learner.attention = {attention}: neither flash_attn nor kernels is installed here, for they are no part of "
            "`make setup`; install one (.venv/bin/pip install kernels) or set learner.attention to sdpa"
        )
    if config.learner.wandb and find_spec("wandb") is None:
        raise ConfigError(
            f"learner.wandb = {config.learner.wandb}: the package wandb is not installed here, for it is no part of "
            "`make setup`; install it (.venv/bin/pip install wandb, then wandb login) or set learner.wandb to null"
        )


def check_memory(config: Config, *, train: bool = True) -> None:
    """Raise RunError when this machine has too little memory for generators and, with `train`, the learner."""
    need, free = memory_gib(config, train=train), psutil.virtual_memory().available / GIB
    if free < need:
        ranks = f"learner.workers = {config.learner.workers}, " if train else ""
        raise RunError(
            f"too little memory: about {need:.1f} GiB are needed (generator.replicas = {config.generator.replicas}, "
            f"{ranks}weights {model_gib(config.model.path):.1f} GiB), {free:.1f} GiB are free; "
            "lower generator.replicas or generator.kv_cache_gib, or use a larger machine"
        )


def memory_gib(config: Config, *, train: bool = True) -> float:
    """Host memory of a whole run. With GPUs weights and caches are in theirs; here are the processes, an optimizer that
    was sent here, and the copy of the weights that rank 0 sends over the network."""
    weights, learner = model_gib(config.model.path), config.learner
    replica, rank, once = REPLICA_GIB, RANK_GIB, 0.0
    if gpus():
        once += weights * (config.weights.transport != "file")
        once += weights * OPTIMIZER[config.model.dtype] * learner.offload_optimizer
    else:
        replica += config.generator.kv_cache_gib + weights
        rank += 4 * weights
    return BASE_GIB + config.generator.replicas * replica + train * (learner.workers * rank + once)


def model_gib(path: str) -> float:
    """Size of a local model's weight files; 0 for a hub name, whose size is not known here."""
    folder = Path(path)
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")] if folder.is_dir() else []
    return sum(f.stat().st_size for f in files) / GIB


def gpus() -> list[str]:
    """Names of this machine's NVIDIA GPUs; empty without a driver."""
    if not shutil.which("nvidia-smi"):
        return []
    asked = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return [line.strip() for line in asked.stdout.splitlines()] if asked.returncode == 0 else []
