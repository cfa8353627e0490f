"""How much of the disk a run takes at most, part by part with the key that bounds it, said before the run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.config import Config
from deploy.preflight.findings import Finding, Target, must, ok
from deploy.preflight.machine import GIB, OPTIMIZER, model_gib
from deploy.preflight.rollouts import expected_gib

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Bytes of one line of groups.jsonl, and of a step in steps.jsonl and TensorBoard; rounded up.
OF_GROUP, OF_STEP = 1024, 8192
OF_TOKEN = 8
"""Of a rollout in Redis: the token and its log-prob."""
REWRITE_GIB = 2.0
"""Redis' file grows to this, or to twice what it must hold, before it is written anew beside the old one
(`deploy/launch/redis_server.py`)."""


@dataclass(frozen=True, slots=True)
class Use:
    """A part of the run's folder, its size at most, and the key that bounds it, where one does."""

    what: str
    gib: float
    key: str = ""

    def __str__(self) -> str:
        return f"{self.what} {_size(self.gib)}" + (f" ({self.key})" if self.key else "")


def uses(config: Config) -> list[Use]:
    """What the run writes, the largest first."""
    learner, rollout = config.learner, config.rollout
    weights = weights_gib(config)
    full = learner.lora is None  # an adapter's checkpoints and versions are small
    checkpoint = weights * (1 + OPTIMIZER[config.model.dtype]) * full
    batch = rollout.prompts_per_batch * rollout.group_size
    kept = learner.checkpoint_every * learner.keep_checkpoints + rollout.max_staleness + 1
    of_batch = batch * rollout.max_response_tokens * OF_TOKEN / GIB
    held = min(kept, learner.steps) * of_batch
    queue = min(learner.steps * of_batch, max(REWRITE_GIB, 2 * held)) + held
    lines = learner.steps * (rollout.prompts_per_batch * OF_GROUP + OF_STEP) / GIB
    found = [
        # Those that are kept and the one that is being written.
        Use("checkpoints", (learner.keep_checkpoints + 1) * checkpoint, "learner.keep_checkpoints"),
        Use("published weights", 2 * weights * full),
        Use("model", weights),
        # The best, what is being evaluated, what is due next, and one that is being written.
        Use("best weights", 4 * weights * (learner.keep_best is not None), "learner.keep_best"),
        Use("rollouts", expected_gib(config), "telemetry.rollouts_gib"),
        Use("Redis", queue, "learner.checkpoint_every"),
        Use("records", lines),
    ]
    return sorted((use for use in found if use.gib), key=lambda use: -use.gib)


def disk(target: Target) -> Iterator[Finding]:
    """Whether the folder's disk holds the run."""
    config, path = target.config, Path(target.config.run.folder).absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    free, needed = shutil.disk_usage(existing).free / GIB, uses(config)
    need = sum(use.gib for use in needed) + 1
    says = f"{in_words(config)}; {_size(free)} free in {existing}"
    fix = "lower learner.keep_checkpoints or telemetry.rollouts_gib, or set run.folder to a larger disk"
    yield must(free >= need * target.trains, "disk", says, fix)


def forecast(target: Target) -> Iterator[Finding]:
    """What a run will take, on a machine that is not this one."""
    if target.trains:
        yield ok("disk", in_words(target.config))


def in_words(config: Config) -> str:
    """`200 steps take about 221 GiB at most: checkpoints 159 GiB (learner.keep_checkpoints), …`."""
    found = uses(config)
    whole = _size(sum(use.gib for use in found))
    unknown = "" if weights_gib(config) else "; the model's size is not known here, and comes on top"
    return f"{config.learner.steps} steps take about {whole} at most: {', '.join(map(str, found))}{unknown}"


def weights_gib(config: Config) -> float:
    """Size of the model's weights: of its files, or by its configuration where only that is here. 0: neither
    is."""
    if found := model_gib(config.model.path):
        return found
    from transformers import AutoConfig

    try:
        of = AutoConfig.from_pretrained(
            config.model.path, trust_remote_code=config.model.trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError):
        return 0.0
    return parameters(of) * BYTES[config.model.dtype] / GIB


def parameters(of: object) -> float:
    """Parameters of a dense decoder with gated layers (Llama, Qwen) by its configuration; 0 where that lacks
    a size."""
    names = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "vocab_size")
    sizes = [getattr(of, name, None) for name in names]
    if not all(isinstance(size, int) for size in sizes):
        return 0.0
    hidden, layers, inner, heads, vocabulary = (float(size or 0) for size in sizes)
    head = getattr(of, "head_dim", None) or hidden / heads
    keys = getattr(of, "num_key_value_heads", None) or heads
    attention = 2 * hidden * head * (heads + keys)
    embeddings = vocabulary * hidden * (1 if getattr(of, "tie_word_embeddings", False) else 2)
    return float(layers * (attention + 3 * hidden * inner) + embeddings)


def _size(gib: float) -> str:
    if gib < 1:
        return f"{max(1, gib * 1024):.0f} MiB"
    return f"{gib:,.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB"
