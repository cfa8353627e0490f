"""Memory and disk of a run: a table per process, and checks against this machine's cards, memory and disk."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from hora_rl.common.config import Config, RolloutConfig, TelemetryConfig
from hora_rl.common.load import differences
from hora_rl.common.model.model_files import own_configuration
from hora_rl.common.model.pretrained import obtain
from hora_rl.common.processes import free_memory
from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.estimate import CONTEXT_GIB, GIB, Estimate, ModelShape, Table, total
from hora_rl.deploy.checks.findings import Finding, Target, must, ok, should, size
from hora_rl.deploy.checks.hardware import on_processors
from hora_rl.deploy.checks.resources import SPARE, Card, choose, largest_share, read_cards

KEYS = "learner.{tokens_per_microbatch, gradient_checkpointing, logit_chunk, lora"
CARD_KEYS = KEYS + ", zero_stage, offload_optimizer}, generator.kv_cache_gib or rollout.max_response_tokens"
HOST_KEYS = KEYS + "}, generator.kv_cache_gib or generator.replicas"
# Bytes of one line of groups.jsonl, and of a step in steps.jsonl and TensorBoard; rounded up.
OF_GROUP, OF_STEP = 1024, 8192
# Bytes of files of 640 rollouts of 2,000 tokens of English, and of short ones; rounded up.
OF_FILE, OF_ROW, OF_TOKEN, OF_TOKEN_WITH_LOGPROBS = 24 * 2**10, 80, 2.0, 6.0
SPARE_GIB = 1.0
"""Reserved for other writers."""
QUEUED_TOKEN = 8
"""Bytes of a token in Redis: the token and its log-prob."""
REWRITE_GIB = 2.0
"""Redis rewrites its append-only file at this size, or at twice the live data, and briefly keeps both files
(`deploy/machine/redis_server.py`)."""
LIMITS = {
    "rollouts": "telemetry.rollouts_gib",
    "Redis": "learner.checkpoint_every",
    "checkpoints": "learner.keep_checkpoints",
    "best weights": "learner.keep_best",
}
"""The keys that bound parts of the run folder."""


def estimate_of(config: Config) -> Estimate | None:
    """The estimate of a run, by the shape of `model.path`; None if its configuration cannot be read. Loads no
    weights."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        settings = own_configuration(config.model)
        with torch.device("meta"):
            trusted = config.model.trust_remote_code
            empty = AutoModelForCausalLM.from_config(settings, trust_remote_code=trusted)
            return Estimate(config, ModelShape.of(empty, config.learner.lora))
    except (OSError, ValueError):
        return None  # reported by the checks of model and family


def run_target(config: Config) -> Target:
    """Target of `hora run` on this machine, with the values that `run.resources: auto` chooses. Downloads a
    named model first."""
    obtain(config.model.path)
    cards = read_cards(machine.gpus())
    if not cards:
        return Target(on_processors(config))
    if config.run.resources != "auto" or (estimate := estimate_of(config)) is None:
        return Target(config)
    chosen = choose(estimate, cards).config
    changed = [d.replace(": ", " = ", 1).split(" != ")[0] for d in differences(chosen, config)]
    names = f"{len(cards)} × {cards[0].name}" if len(cards) > 1 else cards[0].name
    return Target(chosen, chosen=f"chosen for {names}: {', '.join(changed)}" if changed else "")


def memory(target: Target) -> Iterator[Finding]:
    """Memory per process. Fails if this machine has too little; on a cluster Ray spreads the processes."""
    if target.chosen:
        yield ok("resources", target.chosen)
    estimate = estimate_of(target.config)
    if estimate is None:
        return
    cards = [] if target.on_cluster else read_cards(machine.gpus())
    if target.trains:
        elsewhere = target.on_cluster and target.config.model.dtype != "float32"
        yield ok("memory per part", table(estimate, cards=bool(cards) or elsewhere))
        if cards:
            yield fits_cards(estimate, cards)
            yield from beside_engine(estimate, cards)
    if not target.on_cluster:
        need, free = estimate.host(cards=bool(cards), trains=target.trains), free_memory() / GIB
        says = f"about {total(need):.1f} GiB = {amounts(need)}; {free:.1f} GiB are free"
        fix = f"change {HOST_KEYS}, or use a larger machine"
        yield must(total(need) <= free * (1 - SPARE), "memory", says, fix)


def fits_cards(estimate: Estimate, cards: Sequence[Card]) -> Finding:
    card, need, shared = min(cards, key=lambda c: c.gib), estimate.card_gib, estimate.shared
    engines = f"{estimate.engines} · " if shared and estimate.engines > 1 else ""
    in_turn = ", not at the same time," if estimate.config.generator.sleep == "step" else ""
    says = (
        f"learner rank {total(estimate.rank()):.1f} {'and' if shared else 'or'} {engines}generator "
        f"{total(estimate.generator()):.1f} GiB{in_turn} = {need:.1f} GiB on one {card.name} of "
        f"{card.gib:.1f} GiB, of which {card.usable_gib:.1f} can be given out"
    )
    return must(need <= card.usable_gib, "GPU memory", says, f"change {CARD_KEYS}, or use another card")


def beside_engine(estimate: Estimate, cards: Sequence[Card]) -> Iterator[Finding]:
    """Whether the smallest of `cards` has room for what vLLM does not count when it sizes the KV cache."""
    generator, card = estimate.config.generator, min(cards, key=lambda c: c.gib)
    if not estimate.transfer_gib or generator.kv_cache_gib is not None:
        return
    share, largest = generator.memory_utilization, largest_share(estimate, card)
    says = (
        f"generator.memory_utilization {share:g} leaves {card.gib * (1 - share):.1f} GiB of one {card.name} "
        f"of {card.gib:.1f} GiB; CUDA's context and the buffers of weights.transport nccl take about "
        f"{CONTEXT_GIB + estimate.transfer_gib:.1f}"
    )
    fix = f"set generator.memory_utilization to {largest:g} or less, or weights.transport: file"
    yield should(share <= largest, "GPU memory beside vLLM", says, fix)


def table(estimate: Estimate, *, cards: bool = True) -> str:
    """GiB per process, one line each. With `cards`, generator and learner are on cards."""
    shape, generator = estimate.shape, estimate.config.generator
    rows = {
        f"generator, {generator.replicas * generator.tensor_parallel} of": estimate.generator(
            None if cards else generator.cpu_kv_cache_gib, card=cards
        ),
        f"learner rank, {estimate.config.learner.workers} of": estimate.rank(card=cards),
        "host": estimate.host(cards=cards),
    }
    lines = [f"\n  {name:<24}{total(row):>9.2f}  {amounts(row)}" for name, row in rows.items()]
    trained = f", trains {shape.adapter / 1e6:.1f} million" if shape.adapter else ""
    return f"{shape.parameters / 1e6:,.1f} million parameters{trained}, estimated GiB:" + "".join(lines)


def amounts(row: Table) -> str:
    """`weights 2.90, KV cache 1.20`, without what takes nothing."""
    return ", ".join(f"{name} {gib:.2f}" for name, gib in row.items() if gib)


def uses(config: Config, estimate: Estimate | None) -> dict[str, float]:
    """GiB that the run writes at most, by part. Without an estimate, only parts independent of the model."""
    learner, rollout = config.learner, config.rollout
    batch_gib = rollout.batch_size * rollout.max_response_tokens * QUEUED_TOKEN / GIB
    kept_steps = learner.checkpoint_every * learner.keep_checkpoints + rollout.max_staleness + 1
    held = min(kept_steps, learner.steps) * batch_gib
    parts = {
        "rollouts": expected_gib(rollout, config.telemetry, learner.steps),
        "records": learner.steps * (rollout.prompts_per_batch * OF_GROUP + OF_STEP) / GIB,
        "Redis": min(learner.steps * batch_gib, max(REWRITE_GIB, 2 * held)) + held,
    }
    if estimate is not None:
        # The kept checkpoints and the one being written; the best weights, those under evaluation, the next
        # ones, and those being written.
        parts |= {
            "checkpoints": (learner.keep_checkpoints + 1) * estimate.checkpoint_gib,
            "published weights": 2 * estimate.published_gib,
            "model": estimate.weights_gib,
            "best weights": 4 * estimate.weights_gib * (learner.keep_best is not None),
        }
    return {part: gib for part, gib in parts.items() if gib}


def disk(target: Target) -> Iterator[Finding]:
    path = Path(target.config.run.folder).absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    estimate = estimate_of(target.config)
    parts = uses(target.config, estimate)
    largest, need = sorted(parts.items(), key=lambda item: -item[1]), sum(parts.values())
    named = (
        f"{part} {size(gib)}" + (f" ({LIMITS[part]})" if part in LIMITS else "") for part, gib in largest
    )
    unknown = "" if estimate else "; the model's size is not known here, and comes on top"
    steps = target.config.learner.steps
    says = f"{steps} steps take about {size(need)} at most: {', '.join(named)}{unknown}"
    if target.command == "elsewhere":
        yield ok("disk", says)
        return
    free = shutil.disk_usage(existing).free / GIB
    says += f"; {size(SPARE_GIB)} must remain, and {size(free)} are free in {existing}"
    fix = "lower learner.keep_checkpoints or telemetry.rollouts_gib, or set run.folder to a larger disk"
    yield must(not target.trains or free >= need + SPARE_GIB, "disk", says, fix)


def expected_gib(rollout: RolloutConfig, telemetry: TelemetryConfig, steps: int) -> float:
    """Maximal size of RUN/rollouts after `steps`: every completion has the longest allowed length."""
    if telemetry.rollouts == "none":
        return 0.0
    per_token = OF_TOKEN_WITH_LOGPROBS if telemetry.rollouts == "logprobs" else OF_TOKEN
    per_rollout = OF_ROW + per_token * rollout.max_response_tokens
    return min(steps * (OF_FILE + rollout.batch_size * per_rollout) / GIB, telemetry.rollouts_gib)
