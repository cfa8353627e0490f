"""Arithmetic of one optimizer step: tokens, FLOPs, bytes and expected seconds. Estimated from configuration
and model shape; `steps.jsonl` holds measurements."""

from dataclasses import dataclass

from hora_rl.deploy.checks.estimate import GIB, Estimate
from hora_rl.learner.flops import PEAK_BF16, peak_flops

MEAN = 0.5
"""Assumed mean response length relative to the limit."""
WANTED_MFU = 0.3
"""Expected share of a card's peak in training. Checkpointing computes each forward pass twice, which allows
40% at most; head, small kernels and padding take the rest. Not measured."""
REACHED = 0.7
"""Expected share of a card's memory bandwidth in decoding. Not measured."""
UNKNOWN = "H100"
"""Card to assume if the card is unknown."""
BANDWIDTH = {
    "H100 PCIe": 2.0e12,
    "H100 NVL": 3.9e12,
    "H100": 3.35e12,
    "H200": 4.8e12,
    "B200": 7.7e12,
    "A100": 2.0e12,
    "L40S": 0.86e12,
    "RTX 4090": 1.0e12,
}
"""Memory bandwidth in bytes per second from data sheets. The first name contained in the card's name
counts."""


@dataclass(frozen=True, slots=True)
class StepArithmetic:
    """Totals of one step over all ranks and replicas. `responses` counts the sampled tokens of `tokens`.
    `computed` counts the learner's tokens, with one prompt per row. `flops` are the learner's model FLOPs
    (`learner/flops.py`), `sampling` those of generation. `published` is in GiB, to each replica."""

    rollouts: int
    responses: float
    tokens: float
    computed: float
    flops: float
    sampling: float
    micro_batches: float
    published: float


def arithmetic(estimate: Estimate) -> StepArithmetic:
    """A step with prompts of half the limit and responses of `MEAN` times the limit."""
    rollout, learner, shape = estimate.config.rollout, estimate.config.learner, estimate.shape
    rollouts = rollout.batch_size
    response = MEAN * rollout.max_response_tokens
    prompt = rollout.max_prompt_tokens / 2
    length = prompt + response
    tokens = rollouts * length
    attention = shape.layers * shape.queries * length * tokens
    rows = estimate.shared_rows(int(prompt), int(response))
    # Prompts saved by sharing rows.
    again = rollout.prompts_per_batch * (rollout.group_size - len(rows))
    computed = tokens - again * prompt
    pairs = shape.layers * shape.queries * (rollouts * length**2 - again * prompt**2)
    per_weight = 4 * shape.parameters + 6 * shape.adapter if shape.adapter else 6 * shape.parameters
    return StepArithmetic(
        rollouts=rollouts,
        responses=rollouts * response,
        tokens=tokens,
        computed=computed,
        flops=learner.objective.updates_per_batch * (per_weight * computed + 6 * pairs),
        sampling=2 * (shape.parameters + shape.adapter) * tokens + 2 * attention,
        micro_batches=max(1.0, computed / (learner.tokens_per_microbatch * learner.workers)),
        published=estimate.published_gib,
    )


def card_flops(device: str = UNKNOWN) -> float:
    """Expected training FLOP/s of a card in 16 bits."""
    return WANTED_MFU * (peak_flops(device, "bfloat16") or PEAK_BF16[UNKNOWN])


def learner_seconds(found: StepArithmetic, ranks: int, device: str) -> float:
    """Seconds for one step's gradients."""
    return found.flops / card_flops(device) / ranks


def generator_seconds(estimate: Estimate, device: str = UNKNOWN, gib: float = 80.0) -> float:
    """Seconds for sampling one batch on cards with `gib` each.

    One decoding step adds a token to each of a replica's B running sequences. The step reads W bytes of
    weights and K bytes of keys and values for each of L tokens of context, or is bound by 2 · P · B FLOPs
    (Pope et al. 2022, "Efficiently Scaling Transformer Inference", arXiv 2211.05102, section 2):

        max((W + B · L · K) / bandwidth, 2 · P · B / flops) · responses / (replicas · B) + prompts

    `max_sequences`, the batch and the KV cache limit B. A prompt is computed once for its group.
    """
    shape, generator, rollout = estimate.shape, estimate.config.generator, estimate.config.rollout
    found, entry = arithmetic(estimate), estimate.kv_token_bytes
    bandwidth = REACHED * next((b for name, b in BANDWIDTH.items() if name in device), BANDWIDTH[UNKNOWN])
    weights, parallel = 2 * (shape.parameters + shape.adapter), generator.tensor_parallel
    context = found.tokens / found.rollouts - found.responses / found.rollouts / 2
    room = gib * GIB * 0.9 - estimate.generator(0.0).gib * GIB
    most = min(generator.max_sequences, found.rollouts / generator.replicas, room / (entry * context))
    running = max(1.0, most)
    read = (weights / parallel + running * context * entry) / bandwidth
    step = max(read, weights * running / parallel / card_flops(device))
    prompts = rollout.prompts_per_batch * rollout.max_prompt_tokens / 2
    prefill = weights * prompts / card_flops(device) / parallel / generator.replicas
    return step * found.responses / generator.replicas / running + prefill


def step_seconds(estimate: Estimate, device: str = UNKNOWN, gib: float = 80.0) -> float:
    """Seconds of a step: the slower side, or the sum of both if `rollout.max_staleness` is 0."""
    learner = learner_seconds(arithmetic(estimate), estimate.config.learner.workers, device)
    sides = (learner, generator_seconds(estimate, device, gib))
    return max(sides) if estimate.config.rollout.max_staleness else sum(sides)


def said(estimate: Estimate, device: str | None) -> list[str]:
    """The arithmetic in words, one line each. `device` is the card's name; None on a CPU, without seconds."""
    found, config = arithmetic(estimate), estimate.config
    ranks, replicas = config.learner.workers, config.generator.replicas
    mean = MEAN * config.rollout.max_response_tokens
    learner = generators = ""
    unknown = ["seconds: unknown on this CPU before a run; `hora report RUN` has what it took"]
    if device is not None:
        unknown = []
        where = f"expected on {device}, at {WANTED_MFU:.0%} of its peak and {REACHED:.0%} of its bandwidth"
        learner = f"; {learner_seconds(found, ranks, device):.1f} s {where}"
        generators = f"; {generator_seconds(estimate, device):.1f} s expected, bound by memory"
    return [
        f"a step: {found.rollouts:,} rollouts, {found.tokens / 1e6:.2f} million tokens at a mean response of "
        f"{mean:,.0f}",
        f"learner: {found.flops / 1e12:,.3g} TFLOPs over {ranks} ranks, {found.micro_batches:.0f} "
        f"micro-batches each{learner}",
        f"generators: {found.sampling / 1e12:,.3g} TFLOPs over {replicas} replicas{generators}",
        *unknown,
        f"weights: {found.published:.3f} GiB to each replica over {config.weights.transport}; "
        f"{found.published * replicas:.3f} GiB in all",
    ]
