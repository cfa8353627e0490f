"""The arithmetic of a step in words, for `hora check --estimate`."""

from hora_rl.deploy.checks.estimate import Estimate
from hora_rl.deploy.checks.step_costs import MEAN, arithmetic, decoding, learner_seconds


def sampling_flops(estimate: Estimate) -> float:
    """Model FLOPs of generation in one step."""
    found, shape = arithmetic(estimate), estimate.shape
    attention = shape.layers * shape.queries * (found.tokens / found.rollouts) * found.tokens
    return 2 * (shape.parameters + shape.adapter) * found.tokens + 2 * attention


def said(estimate: Estimate, device: str | None) -> list[str]:
    """The arithmetic in words, one line each. `device` is the card's name; None on a CPU, without seconds."""
    found, config = arithmetic(estimate), estimate.config
    ranks, replicas = config.learner.workers, config.generator.replicas
    micro_batches = max(1.0, found.computed / (config.learner.tokens_per_microbatch * ranks))
    mean = MEAN * config.rollout.max_response_tokens
    learner = generators = ""
    unknown = ["seconds: unknown on this CPU before a run; `hora report RUN` has what it took"]
    if device is not None:
        unknown, made = [], decoding(estimate, device)
        bound = "the card" if made.card_s > made.processor_s else "processors"
        several = f", {estimate.engines} on a card" if estimate.engines > 1 else ""
        learner = f"; {learner_seconds(estimate, device):.1f} s expected on {device}"
        generators = (
            f"{several}; {made.seconds:.1f} s expected, {found.responses / made.seconds:,.0f} tokens/s, "
            f"bound by {bound} with {made.running:.0f} sequences in each"
        )
    return [
        f"a step: {found.rollouts:,} rollouts, {found.tokens / 1e6:.2f} million tokens at a mean response of "
        f"{mean:,.0f}",
        f"learner: {found.flops / 1e12:,.3g} TFLOPs over {ranks} ranks, {micro_batches:.0f} "
        f"micro-batches each{learner}",
        f"generators: {sampling_flops(estimate) / 1e12:,.3g} TFLOPs over {replicas} replicas{generators}",
        *unknown,
        f"weights: {estimate.published_gib:.3f} GiB to each replica over {config.weights.transport}; "
        f"{estimate.published_gib * replicas:.3f} GiB in all",
    ]
