"""Tokens and FLOPs of one optimizer step, and the model of its seconds that decides how `run.resources: auto`
divides cards. Seconds are compared with each other, never shown."""

from dataclasses import dataclass

from hora_rl.deploy.checks.estimate import GIB, Estimate
from hora_rl.learner.model.flops import PEAK_BF16, peak_flops

MEAN = 0.5
"""Assumed mean response length relative to the limit."""
MFU = 0.27
"""Share of a card's peak in training with recomputed activations, measured: 1.5B on one H200. Kept ones save
the second forward pass, a quarter of the FLOPs."""
REACHED = 0.7
"""Expected share of a card's memory bandwidth in decoding. Not measured."""
STEP_S, SEQUENCE_S, TOKEN_S = 0.005, 28e-6, 33e-6
"""Processor time of an engine, for each step and for each sequence in it, and of its replica for each token.
Measured with 1.5B on one H200 and a machine of 16 processors, scheduler and worker in one process."""
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
"""Bytes per second of a card's memory, from data sheets. The first name in the card's name counts."""


@dataclass(frozen=True, slots=True)
class StepArithmetic:
    """Totals of one step over all ranks and replicas. `responses` counts the sampled tokens of `tokens`.
    `computed` counts the learner's tokens, with one prompt per row. `flops` are the learner's model FLOPs
    (`learner/model/flops.py`)."""

    rollouts: int
    responses: float
    tokens: float
    computed: float
    flops: float


def arithmetic(estimate: Estimate) -> StepArithmetic:
    """A step with prompts of half the limit and responses of `MEAN` times the limit."""
    rollout, learner, shape = estimate.config.rollout, estimate.config.learner, estimate.shape
    rollouts = rollout.batch_size
    response, prompt = MEAN * rollout.max_response_tokens, rollout.max_prompt_tokens / 2
    length = prompt + response
    rows = estimate.shared_rows(int(prompt), int(response))
    shared = rollout.prompts_per_batch * (rollout.group_size - len(rows))  # prompts saved by sharing rows
    computed = rollouts * length - shared * prompt
    pairs = shape.layers * shape.queries * (rollouts * length**2 - shared * prompt**2)
    per_weight = 4 * shape.parameters + 6 * shape.adapter if shape.adapter else 6 * shape.parameters
    flops = learner.objective.updates_per_batch * (per_weight * computed + 6 * pairs)
    return StepArithmetic(rollouts, rollouts * response, rollouts * length, computed, flops)


def card_flops(device: str, *, again: bool = True) -> float:
    """Expected FLOP/s of a card in 16 bits. `again`: activations are recomputed."""
    return MFU * (1.0 if again else 4 / 3) * (peak_flops(device, "bfloat16") or PEAK_BF16[UNKNOWN])


def decoding(estimate: Estimate, device: str, gib: float) -> tuple[float, float]:
    """Seconds of each card and of each engine's processors, at the same time, to sample one batch on cards
    with `gib` each.

    One decoding step adds a token to each of an engine's B running sequences. On the card it reads W bytes
    of weights and K bytes of keys and values for each of L tokens of context, or is bound by 2 · P · B FLOPs
    (Pope et al. 2022, "Efficiently Scaling Transformer Inference", arXiv 2211.05102, section 2). The engines
    of a card take turns:

        card       engines · max((W + B · L · K) / bandwidth, 2 · P · B / flops)
        processors max(STEP_S + SEQUENCE_S · B, TOKEN_S · B)

    `max_sequences`, the batch and the KV cache limit B. A prompt is computed once for its group.
    """
    shape, generator, rollout = estimate.shape, estimate.config.generator, estimate.config.rollout
    batch, entry, flops = arithmetic(estimate), estimate.kv_token_bytes, card_flops(device)
    bandwidth = REACHED * next((b for name, b in BANDWIDTH.items() if name in device), BANDWIDTH[UNKNOWN])
    weights, parallel = 2 * (shape.parameters + shape.adapter), generator.tensor_parallel
    context = (batch.tokens - batch.responses / 2) / batch.rollouts
    cache = generator.kv_cache_gib or gib * 0.9 / estimate.engines - estimate.generator(0.0).gib
    room = cache * GIB / (entry * context)
    running = max(1.0, min(generator.max_sequences, batch.rollouts / generator.replicas, room))
    read = (weights / parallel + running * context * entry) / bandwidth
    step_s = max(read, weights * running / parallel / flops)
    prompts = rollout.prompts_per_batch * rollout.max_prompt_tokens / 2
    prefill_s = weights * prompts / flops / parallel / generator.replicas
    steps = batch.responses / generator.replicas / running
    processors_s = max(STEP_S + SEQUENCE_S * running, TOKEN_S * running)
    return estimate.engines * (steps * step_s + prefill_s), steps * processors_s


def step_seconds(estimate: Estimate, device: str, gib: float) -> float:
    """Seconds of a step: the slower side, or the sum of both if `rollout.max_staleness` is 0. On a card that
    both use, the learner also waits for the engines' share of it."""
    learner = estimate.config.learner
    per_rank = card_flops(device, again=learner.gradient_checkpointing)
    learner_s = arithmetic(estimate).flops / per_rank / learner.workers
    card_s, processors_s = decoding(estimate, device, gib)
    if not estimate.config.rollout.max_staleness:
        return learner_s + max(card_s, processors_s)
    shared_s = card_s if (learner.gpus or 1.0) < 1 else 0.0
    return max(learner_s + shared_s, card_s, processors_s)
