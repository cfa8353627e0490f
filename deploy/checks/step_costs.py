"""The model of a step's seconds that decides how `run.resources: auto` divides cards. Seconds are compared
with each other, never shown."""

from hora_rl.deploy.checks.estimate import Estimate, total
from hora_rl.learner.model.flops import PEAK_BF16, peak_flops

MEAN = 0.5
"""Assumed mean prompt and response length relative to the limits."""
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


def training_flops(estimate: Estimate) -> float:
    """Model FLOPs of the learner in one step (`learner/model/flops.py`), with one prompt per group."""
    rollout, learner, shape = estimate.config.rollout, estimate.config.learner, estimate.shape
    prompt, response = MEAN * rollout.max_prompt_tokens, MEAN * rollout.max_response_tokens
    size, length = rollout.group_size, prompt + response
    tokens = rollout.prompts_per_batch * (prompt + size * response)
    pairs = rollout.prompts_per_batch * (size * length**2 - (size - 1) * prompt**2)
    per_weight = 4 * shape.parameters + 6 * shape.adapter if shape.adapter else 6 * shape.parameters
    attention = 6 * shape.layers * shape.query_width * pairs
    return learner.objective.updates_per_batch * (per_weight * tokens + attention)


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

    `max_sequences`, the batch and the KV cache limit B, which it holds of the longest sequences. A prompt is
    computed once for its group.
    """
    shape, generator, rollout = estimate.shape, estimate.config.generator, estimate.config.rollout
    entry, flops, batch = estimate.kv_token_bytes, card_flops(device), rollout.batch_size
    bandwidth = REACHED * next((b for name, b in BANDWIDTH.items() if name in device), BANDWIDTH[UNKNOWN])
    weights, parallel = 2 * (shape.parameters + shape.adapter), generator.tensor_parallel
    prompt, response = MEAN * rollout.max_prompt_tokens, MEAN * rollout.max_response_tokens
    context = prompt + response / 2
    cache = generator.kv_cache_gib or gib * 0.9 / estimate.engines - total(estimate.generator(0.0))
    held = cache / estimate.longest_kv_gib
    running = max(1.0, min(generator.max_sequences, batch / generator.replicas, held))
    read = (weights / parallel + running * context * entry) / bandwidth
    step_s = max(read, weights * running / parallel / flops)
    prefill_s = weights * rollout.prompts_per_batch * prompt / flops / parallel / generator.replicas
    steps = batch * response / generator.replicas / running
    processors_s = max(STEP_S + SEQUENCE_S * running, TOKEN_S * running)
    return estimate.engines * (steps * step_s + prefill_s), steps * processors_s


def step_seconds(estimate: Estimate, device: str, gib: float) -> float:
    """Seconds of a step: the slower side, or the sum of both if they share a card or `rollout.max_staleness`
    is 0."""
    learner = estimate.config.learner
    per_rank = card_flops(device, again=learner.gradient_checkpointing)
    learner_s = training_flops(estimate) / per_rank / learner.workers
    generation_s = max(decoding(estimate, device, gib))
    if not estimate.config.rollout.max_staleness or (learner.gpus or 1.0) < 1:
        return learner_s + generation_s
    return max(learner_s, generation_s)
