"""The arithmetic of one optimizer step: tokens, FLOPs, and bytes by the way that they take. Estimates from
the configuration and the model's shape alone; `steps.jsonl` has what a run measured."""

from __future__ import annotations

from dataclasses import dataclass

from common.config import Config
from deploy.preflight.estimate import GIB, WIDTH, ModelShape, published_gib

MEAN = 0.5
"""Mean response over the longest one, where nobody knows better."""
WANTED_MFU = 0.4
"""Share of a card's peak that training is expected to reach."""
CARD_FLOPS = 4e14
"""Of an H100 or H200 at `WANTED_MFU`, for configurations whose cards are not known."""
COPY_BYTES = 20e9
"""Bytes per second of a copy from a card to pinned host memory, over 16 lanes of PCIe 4; not measured."""


@dataclass(frozen=True, slots=True)
class StepArithmetic:
    """Of a whole step, over all ranks and replicas. `responses` are the sampled ones of `tokens`. `flops`
    are model FLOPs as in `learner/flops.py`, `sampling` those of generation. `refill` are the tokens that one
    replica recomputes after an update with `generator.clear_cache`, at most. GiB: `published` to each
    replica, `exchanged` by each rank with the others."""

    rollouts: int
    responses: float
    tokens: float
    flops: float
    sampling: float
    micro_batches: float
    refill: float
    published: float
    exchanged: float


def arithmetic(config: Config, shape: ModelShape) -> StepArithmetic:
    """A step whose prompts are half as long as they may be, and whose responses are `MEAN` of theirs."""
    rollout, learner = config.rollout, config.learner
    rollouts = rollout.prompts_per_batch * rollout.group_size
    response = MEAN * rollout.max_response_tokens
    length = rollout.max_prompt_tokens / 2 + response
    tokens = rollouts * length
    attention = shape.layers * shape.hidden * length * tokens
    per_weight = 4 * shape.parameters + 6 * shape.adapter if shape.adapter else 6 * shape.parameters
    running = min(config.generator.max_sequences, rollouts / config.generator.replicas)
    micro = max(1.0, tokens / (learner.tokens_per_microbatch * learner.workers))
    return StepArithmetic(
        rollouts=rollouts,
        responses=rollouts * response,
        tokens=tokens,
        flops=learner.objective.updates_per_batch * (per_weight * tokens + 6 * attention),
        sampling=2 * (shape.parameters + shape.adapter) * tokens + 2 * attention,
        micro_batches=micro,
        refill=running * (length - response / 2),
        published=published_gib(shape, config),
        exchanged=_exchanged(config, shape, micro),
    )


def _exchanged(config: Config, shape: ModelShape, micro: float) -> float:
    """What one rank sends in a step: gradients of each micro-batch, and the new weights once; in ZeRO-3
    instead the weights in each forward and backward pass."""
    from learner.engine import effective_stage

    world, stage = config.learner.workers, effective_stage(config)
    if world == 1:
        return 0.0
    width, share = WIDTH[config.model.dtype], (world - 1) / world
    trained = (shape.adapter or shape.parameters) * width
    whole = (shape.parameters + shape.adapter) * width
    if stage == 3:
        return micro * share * (2 * whole + trained) / GIB
    return share * trained * (micro + 1 if stage == 2 else 2) / GIB


def said(config: Config, shape: ModelShape) -> list[str]:
    """The arithmetic in words, a line each."""
    found, weights = arithmetic(config, shape), config.weights.transport
    ranks, replicas = config.learner.workers, config.generator.replicas
    mean = MEAN * config.rollout.max_response_tokens
    return [
        f"a step: {found.rollouts:,} rollouts, {found.tokens / 1e6:.2f} million tokens at a mean response of "
        f"{mean:,.0f}",
        f"learner: {found.flops / 1e12:,.1f} TFLOPs over {ranks} ranks, {found.micro_batches:.0f} "
        f"micro-batches each; {found.flops / CARD_FLOPS / ranks:.1f} s at 400 TFLOP/s a card",
        f"generators: {found.sampling / 1e12:,.1f} TFLOPs over {replicas} replicas; decoding is bound by "
        "memory, not by these",
        _refill(config, shape, found),
        f"weights: {found.published:.3f} GiB to each replica over {weights}; "
        f"{found.published * replicas:.3f} GiB in all",
        f"ranks: {found.exchanged:.2f} GiB sent by each to the others in a step",
    ]


def _refill(config: Config, shape: ModelShape, found: StepArithmetic) -> str:
    """What dropping the KV cache at an update costs a full replica, whose sequences are half done."""
    if not config.generator.clear_cache:
        return "an update: generator.clear_cache is false, nothing is recomputed"
    flops = 2 * (shape.parameters + shape.adapter) * found.refill
    seconds = flops / CARD_FLOPS / config.generator.tensor_parallel
    return (
        f"an update: generator.clear_cache recomputes at most {found.refill:,.0f} tokens of a replica, "
        f"{seconds:.1f} s at 400 TFLOP/s a card"
    )
