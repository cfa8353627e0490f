"""`run.resources: auto`: divide one machine's cards between generators and learner, for unset keys only.

One card is shared by the learner and as many engines as its processors can serve: Ray gets fractions, and the
engines' KV caches get the memory that the learner leaves, because vLLM would otherwise take it. Several cards
are divided between replicas and ranks. For every number of replicas the learner gets the fastest choice that
memory allows. The number with the fewest expected seconds is taken. Seconds are only compared, never shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import psutil

from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError
from hora_rl.common.processes import free_memory, processors
from hora_rl.deploy.checks.estimate import CONTEXT_GIB, GIB, Estimate, total
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
SPARE = 0.05
"""Unallocated share of a card or of the host's memory, for fragmentation and the error of the estimate."""
MOST_ENGINES, ENGINE_PROCESSORS, OTHER_PROCESSORS = 8, 3, 4
"""Most engines on a card; processors that one keeps busy there (replica, scheduler and worker), and those of
learner, Ray, Redis, coordinator and verifier."""
ENGINE_S = 20.0
"""Seconds that one more engine on a card adds to the start (expected)."""
SEQUENCES, LEAST_SEQUENCES, MOST_SEQUENCES = 256, 64, 1024
"""Sequences of a generator's card even where a batch has fewer, because evaluations have more; the fewest and
the most of an engine."""
MICRO_BATCHES = (65_536, 32_768, 16_384, 8192, 4096)
"""Tokens of a micro-batch to choose from: more make no card faster, fewer leave it idle between kernels."""


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


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    gib: float

    @property
    def usable_gib(self) -> float:
        return self.gib * (1 - SPARE)


def read_cards(lines: Sequence[str]) -> list[Card]:
    """Cards from `nvidia-smi`'s `name, 81559 MiB` lines. `[N/A]` is a card that uses host memory (GB10)."""
    parts = [line.rpartition(", ") for line in lines]
    sizes = [memory.partition(" ")[0] for _, _, memory in parts]
    host = psutil.virtual_memory().total / GIB
    return [
        Card(name, int(size) / 1024 if size.isdigit() else host)
        for (name, _, _), size in zip(parts, sizes, strict=True)
    ]


def filled(config: Config, **sections: Mapping[str, object]) -> Config:
    """Set these values, by section, where the user set none."""
    new = {}
    for name, values in sections.items():
        section = getattr(config, name)
        unwritten = {key: v for key, v in values.items() if key not in section.model_fields_set}
        new[name] = section.model_copy(update=unwritten)
    return config.model_copy(update=new)


def _filled(estimate: Estimate, **sections: Mapping[str, object]) -> Estimate:
    return replace(estimate, config=filled(estimate.config, **sections))


def choose(estimate: Estimate, cards: Sequence[Card]) -> Estimate:
    """Choose the keys of a training run on one machine with `cards`; what fits nowhere is reported by the
    memory check. Raises ConfigError if the configuration cannot be divided over them."""
    config, generator = estimate.config, estimate.config.generator
    if config.run.resources != "auto" or not cards:
        return estimate
    _refuse_undividable(config, len(cards))
    card, free = min(cards, key=lambda c: c.gib), free_memory() * (1 - SPARE) / GIB
    least, most = 1, min(MOST_ENGINES, (processors() - OTHER_PROCESSORS) // ENGINE_PROCESSORS)
    if len(cards) > 1:
        most = (len(cards) - config.learner.workers) // generator.tensor_parallel
        least = most if "workers" in config.learner.model_fields_set else 1
    if "replicas" in generator.model_fields_set or generator.sleep == "step":
        least = most = generator.replicas

    def preference(choice: Estimate) -> tuple[bool, bool, float]:
        fits = choice.card_gib <= card.usable_gib
        fits &= choice.engines == 1 or total(choice.host(cards=True)) <= free
        seconds = choice.config.learner.steps * step_seconds(choice, card.name, card.gib)
        recomputes = choice.shared and choice.config.learner.gradient_checkpointing
        return not fits, recomputes, seconds + ENGINE_S * choice.engines

    counts = range(max(1, least), max(1, most) + 1)
    return min((_with_replicas(estimate, count, len(cards), card) for count in counts), key=preference)


def _refuse_undividable(config: Config, cards: int) -> None:
    """Raise ConfigError if generators and learner cannot both have a part of `cards`."""
    generator, transport = config.generator, config.weights.transport
    replicas = generator.replicas if "replicas" in generator.model_fields_set else 1
    parallel, single = generator.tensor_parallel, cards == 1
    taken = f"generator.replicas {replicas} · generator.tensor_parallel {parallel}"
    for applies, reason in (
        (single and transport == "nccl", "weights.transport (nccl) needs several: use file or gloo"),
        (single and parallel > 1, f"generator.tensor_parallel ({parallel}) needs as many: set it to 1"),
        (not single and generator.sleep == "step", "generator.sleep (step) is for one: set it to none"),
        (not single and replicas * parallel >= cards, f"{taken} leave the learner none: lower one of them"),
    ):
        if applies:
            raise ConfigError(f"this machine has {cards} GPUs: {reason}")


def _with_replicas(estimate: Estimate, count: int, cards: int, card: Card) -> Estimate:
    """`count` replicas, and the rank's fastest settings that fit: recomputed activations cost a third more
    time (6 + 2 FLOPs per weight and token), and small micro-batches less than that. Activations take no more
    than half of what the largest useful caches on their card would need too."""
    shares: dict[str, object] = {"replicas": count}
    ranks: dict[str, object] = {"workers": cards - count * estimate.config.generator.tensor_parallel}
    if cards == 1:
        shares["gpus"], ranks = math.floor(5000 / count) / 10_000, {"workers": 1, "gpus": 0.5}
    divided = _filled(estimate, generator=shares, learner=ranks)
    sizes = [max(tokens, divided.config.longest) for tokens in MICRO_BATCHES]
    names = ("zero_stage", "gradient_checkpointing", "tokens_per_microbatch")
    memory = product((0,) if cards == 1 else (0, 3), (False, True), sizes)
    choices = [_filled(divided, learner=dict(zip(names, values, strict=True))) for values in memory]
    enough = 0.0
    if divided.shared and divided.config.generator.kv_cache_gib is None:
        enough = min(_room(choices[-1], card) / 2, _wanted(divided) * divided.longest_kv_gib)
    complete = [_with_cache(choice, card) for choice in choices]
    for choice in complete:
        cache = choice.config.generator.kv_cache_gib or 0.0
        if cache >= enough and choice.card_gib <= card.usable_gib:
            return choice
    return complete[-1]


def _room(choice: Estimate, card: Card) -> float:
    """GiB for sequences and KV cache of one engine."""
    generator = choice.config.generator
    room = card.gib * generator.memory_utilization
    if choice.shared:
        rank, _ = choice.phases()[-1]
        room = (card.usable_gib - rank) / choice.engines
    return room - total(choice.generator(0.0)) + generator.max_sequences * choice.sampler_gib


def _wanted(choice: Estimate) -> int:
    """Sequences of an engine that memory does not limit: its part of the batches in flight."""
    generator = choice.config.generator
    if "max_sequences" in generator.model_fields_set:
        return generator.max_sequences
    eighths = -(-max(SEQUENCES, choice.config.rollout.in_flight) // (8 * generator.replicas))
    return max(LEAST_SEQUENCES, min(MOST_SEQUENCES, 8 * eighths))


def largest_share(estimate: Estimate, card: Card) -> float:
    """Share of a card for an engine alone on it: vLLM does not count the context and a transfer's buffers."""
    return max(0.0, math.floor(100 * (1 - (CONTEXT_GIB + estimate.transfer_gib) / card.gib)) / 100)


def _with_cache(choice: Estimate, card: Card) -> Estimate:
    """Sequences of an engine and its share of the card. The KV cache holds all of the longest sequences, or
    half of them where memory is short, because they grow over time: vLLM sets back the newest where that is
    too many."""
    if not choice.shared:
        choice = _filled(choice, generator={"memory_utilization": min(0.9, largest_share(choice, card))})
    room, longest = _room(choice, card), choice.longest_kv_gib
    held = 8 * int(room / (choice.sampler_gib + longest / 2) / 8)
    sequences = min(_wanted(choice), max(LEAST_SEQUENCES, held))
    choice = _filled(choice, generator={"max_sequences": sequences})
    if not choice.shared:
        return choice
    sequences = choice.config.generator.max_sequences
    left = math.floor(100 * (_room(choice, card) - sequences * choice.sampler_gib)) / 100
    least, most = (math.ceil(100 * n * longest) / 100 for n in (8, max(8, sequences)))
    choice = _filled(choice, generator={"kv_cache_gib": max(least, min(left, most))})
    share = min(0.95, math.ceil(100 * total(choice.generator()) / card.gib) / 100)
    return _filled(choice, generator={"memory_utilization": share})
