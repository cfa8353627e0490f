"""Memory of a run: a table per part, and checks against this machine's cards and host memory."""

import math
from collections.abc import Iterator, Sequence

from hora_rl.common.config import Config
from hora_rl.common.load import differences
from hora_rl.common.model.model_files import own_configuration
from hora_rl.common.model.pretrained import obtain
from hora_rl.common.processes import free_memory
from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.estimate import CONTEXT_GIB, GIB, Estimate, amounts
from hora_rl.deploy.checks.findings import Finding, Target, must, ok, should
from hora_rl.deploy.checks.model_shape import ModelShape
from hora_rl.deploy.checks.processors import on_processors
from hora_rl.deploy.checks.resources import SPARE, Card, choose, filled, read_cards, shares_a_card
from hora_rl.deploy.checks.step_costs import MEAN, arithmetic

HOST_KEYS = (
    "learner.tokens_per_microbatch, learner.gradient_checkpointing, learner.logit_chunk, learner.lora, "
    "learner.async_checkpoint, generator.kv_cache_gib or generator.replicas"
)
HOST_ACTIVATIONS_GIB, LEAST_TOKENS = 1.0, 1024
"""Activations of a micro-batch on processors, which gain nothing from larger ones."""
KEYS = (
    "learner.tokens_per_microbatch, learner.logit_chunk, learner.gradient_checkpointing, learner.zero_stage, "
    "learner.offload_optimizer, learner.lora, generator.kv_cache_gib or rollout.max_response_tokens"
)


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
        return Target(on_processors(_in_small_steps(config)))
    if config.run.resources != "auto" or (estimate := estimate_of(config)) is None:
        return Target(config)
    chosen = choose(estimate, cards).config
    changed = [d.replace(": ", " = ", 1).split(" != ")[0] for d in differences(chosen, config)]
    names = f"{len(cards)} × {cards[0].name}" if len(cards) > 1 else cards[0].name
    return Target(chosen, chosen=f"chosen for {names}: {', '.join(changed)}" if changed else "")


def _in_small_steps(config: Config) -> Config:
    """The configuration with micro-batches for a machine without GPUs, if nobody wrote their size: the
    largest whose activations stay within `HOST_ACTIVATIONS_GIB`."""
    if config.run.resources != "auto" or "tokens_per_microbatch" in config.learner.model_fields_set:
        return config
    if (estimate := estimate_of(config)) is None:
        return config
    tokens = config.learner.tokens_per_microbatch
    least = max(LEAST_TOKENS, config.longest)
    while tokens > least and tokens * estimate.token_bytes > HOST_ACTIVATIONS_GIB * GIB:
        tokens = max(least, tokens // 2)
    return filled(config, learner={"tokens_per_microbatch": tokens})


def memory(target: Target) -> Iterator[Finding]:
    """Memory per part. Fails if this machine has too little; on a cluster Ray spreads the parts."""
    if target.chosen:
        yield ok("resources", target.chosen)
    estimate = estimate_of(target.config)
    if estimate is None:
        return
    cards = [] if target.on_cluster else read_cards(machine.gpus())
    if target.trains:
        yield ok("memory per part", table(estimate, cards=bool(cards) or target.on_cluster))
        if cards:
            yield holds(estimate, cards)
            yield from beside_engine(estimate, cards)
    if not target.on_cluster:
        yield fits_host(estimate, cards=bool(cards), trains=target.trains)


def estimated(target: Target) -> Iterator[Finding]:
    """Only the table, for a configuration that is meant for another machine."""
    if target.trains and (estimate := estimate_of(target.config)) is not None:
        yield ok("memory per part", table(estimate, cards=target.config.model.dtype != "float32"))


def fits_host(estimate: Estimate, *, cards: bool, trains: bool = True) -> Finding:
    """Whether the host has enough free memory."""
    needs = estimate.host(cards=cards, trains=trains)
    need, free = sum(needs.values()), free_memory() / GIB
    parts = " + ".join(f"{name} {gib:.1f}" for name, gib in needs.items() if gib)
    says = f"about {need:.1f} GiB = {parts}; {free:.1f} GiB are free"
    return must(need <= free * (1 - SPARE), "memory", says, f"change {HOST_KEYS}, or use a larger machine")


def holds(estimate: Estimate, cards: Sequence[Card]) -> Finding:
    """Whether the smallest of `cards` has enough memory."""
    rank, generator, config = estimate.rank(), estimate.generator(), estimate.config
    together = len(cards) == 1 or shares_a_card(config.generator, config.learner)
    need = [rank, generator] if together else [max((rank, generator), key=lambda n: n.gib)]
    card = min(cards, key=lambda c: c.gib)
    total = estimate.shared_gib(generator) if together else need[0].gib
    several = f"{estimate.engines} · " if together and estimate.engines > 1 else ""
    in_turn = ", not at the same time," if together and config.generator.sleep == "step" else ""
    says = (
        f"{f' and {several}'.join(f'{n.part} {n.gib:.1f}' for n in need)} GiB{in_turn} = {total:.1f} GiB on "
        f"one {card.name} of {card.gib:.1f} GiB, of which {card.usable_gib:.1f} can be given out"
    )
    return must(total <= card.usable_gib, "GPU memory", says, f"change {KEYS}, or use another card")


def beside_engine(estimate: Estimate, cards: Sequence[Card]) -> Iterator[Finding]:
    """Whether the smallest of `cards` has room for CUDA's context and the weight-transfer buffers, which vLLM
    does not count when it sizes the KV cache."""
    generator = estimate.config.generator
    card, transfer = min(cards, key=lambda c: c.gib), estimate.transfer_gib
    if not transfer or generator.kv_cache_gib is not None:
        return
    need, left = transfer + CONTEXT_GIB, card.gib * (1 - generator.memory_utilization)
    says = (
        f"generator.memory_utilization {generator.memory_utilization:g} leaves {left:.1f} GiB of one "
        f"{card.name} of {card.gib:.1f} GiB; CUDA's context and the buffers of weights.transport nccl take "
        f"about {need:.1f}"
    )
    most = max(0.0, math.floor(100 * (1 - need / card.gib)) / 100)
    fix = f"set generator.memory_utilization to {most:g} or less, or weights.transport: file"
    yield should(need <= left, "GPU memory beside vLLM", says, fix)


def table(estimate: Estimate, *, cards: bool = True) -> str:
    """GiB per part, one line each. With `cards`, generator and learner are on cards."""
    config, shape, rank = estimate.config, estimate.shape, estimate.rank(card=cards)
    generator = estimate.generator(None if cards else config.generator.cpu_kv_cache_gib, card=cards)
    replicas, ranks = config.generator.replicas * config.generator.tensor_parallel, config.learner.workers
    kept, checkpoint = config.learner.keep_checkpoints + 1, estimate.checkpoint_gib
    host = estimate.host(cards=cards)
    rows = [
        (f"generator, {replicas} of", generator.gib, str(generator)),
        (f"learner rank, {ranks} of", rank.gib, str(rank)),
        ("host", sum(host.values()), amounts(host)),
        (
            "disk, checkpoints",
            checkpoint * kept,
            f"{kept} of {checkpoint:.2f} at a time, in {config.run.folder}",
        ),
    ]
    lines = [f"\n  {name:<24}{gib:>9.2f}  {what}" for name, gib, what in rows]
    trained = f", trains {shape.adapter / 1e6:.1f} million" if shape.adapter else ""
    return f"{shape.parameters / 1e6:,.1f} million parameters{trained}, estimated GiB:" + "".join(lines)


def step_table(estimate: Estimate) -> str:
    """Tokens, FLOPs and bytes of a step, for `hora check --estimate`."""
    step, shape, config = arithmetic(estimate), estimate.shape, estimate.config
    ranks, replicas = config.learner.workers, config.generator.replicas
    attention = 2 * shape.layers * shape.queries * step.tokens**2 / step.rollouts
    sampling = 2 * (shape.parameters + shape.adapter) * step.tokens + attention
    micro_batches = max(1.0, step.computed / (config.learner.tokens_per_microbatch * ranks))
    published, mean = estimate.published_gib, MEAN * config.rollout.max_response_tokens
    return (
        f"a step: {step.rollouts:,} rollouts, {step.tokens / 1e6:.2f} million tokens at a mean response of "
        f"{mean:,.0f}\n"
        f"learner: {step.flops / 1e12:,.3g} TFLOPs over {ranks} ranks, {micro_batches:.0f} micro-batches "
        "each\n"
        f"generators: {sampling / 1e12:,.3g} TFLOPs over {replicas} replicas\n"
        f"weights: {published:.3f} GiB to each replica over {config.weights.transport}; "
        f"{published * replicas:.3f} GiB in all"
    )
