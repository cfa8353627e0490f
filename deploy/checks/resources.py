"""`run.resources: auto`: divide one machine's cards between generators and learner, for unset keys only.

One card is shared by the learner and as many engines as its processors can serve: Ray gets fractions, and the
engines' KV caches get the memory that the learner's estimate leaves, because vLLM would otherwise take it.
Several cards are divided between replicas and ranks for the shortest expected step. The learner keeps its
activations where memory allows, in micro-batches as large as memory allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil

from hora_rl.common.config import Config, GeneratorConfig, LearnerConfig
from hora_rl.common.errors import ConfigError
from hora_rl.common.processes import free_memory, processors
from hora_rl.deploy.checks.estimate import GIB, Estimate
from hora_rl.deploy.checks.step_costs import decoding, step_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPARE = 0.05
"""Unallocated share of a card or of the host's memory, for fragmentation and the error of the estimate."""
MOST_ENGINES, ENGINE_PROCESSORS, OTHER_PROCESSORS = 8, 3, 4
"""Most engines on a card; processors that one keeps busy there (replica, scheduler and worker), and those of
learner, Ray, Redis, coordinator and verifier."""
WORTH, ENGINE_S = 0.9, 20.0
"""More engines on a card are chosen where generation then takes at most this share of the time, and a run's
steps save the seconds that one more engine adds to the start (expected)."""
SEQUENCES, LEAST_SEQUENCES, MOST_SEQUENCES = 256, 64, 1024
"""Sequences of a generator's card even where a batch has fewer, because evaluations have more; the fewest and
the most of an engine."""
MICRO_BATCHES = (65_536, 32_768, 16_384, 8192, 4096)
"""Tokens of a micro-batch to choose from: more make no card faster, fewer leave it idle between kernels."""


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    gib: float

    @property
    def usable_gib(self) -> float:
        """Memory that may be allocated."""
        return self.gib * (1 - SPARE)


def read_cards(lines: Sequence[str]) -> list[Card]:
    """Cards from `nvidia-smi`'s `name, 81559 MiB` lines. `[N/A]` is a card that uses host memory (GB10)."""
    cards = []
    for line in lines:
        name, _, memory = line.rpartition(", ")
        number = memory.partition(" ")[0]
        gib = int(number) / 1024 if number.isdigit() else psutil.virtual_memory().total / GIB
        cards.append(Card(name, gib))
    return cards


def choose(estimate: Estimate, cards: Sequence[Card]) -> Estimate:
    """Choose the keys of a training run on one machine with `cards`. Raises ConfigError if the configuration
    cannot be divided over them."""
    if estimate.config.run.resources != "auto" or not cards:
        return estimate
    return _shared(estimate, cards[0]) if len(cards) == 1 else _divided(estimate, cards)


def shares_a_card(generator: GeneratorConfig, learner: LearnerConfig) -> bool:
    """Whether generator and learner share a card."""
    return 0 < (generator.gpus or 1.0) < 1 and 0 < (learner.gpus or 1.0) < 1


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


def _shared(estimate: Estimate, card: Card) -> Estimate:
    """Generator and learner on one card, with the KV cache that the learner leaves. What does not fit is
    reported by the memory check."""
    generator = estimate.config.generator
    if estimate.config.weights.transport == "nccl":
        raise ConfigError(
            "weights.transport (nccl) joins processes on different cards, and this machine has 1: use file "
            "or gloo"
        )
    if (parallel := generator.tensor_parallel) > 1:
        raise ConfigError(
            f"generator.tensor_parallel ({parallel}) needs as many cards, and this machine has 1: set it to 1"
        )
    if "replicas" in generator.model_fields_set or generator.sleep == "step":
        return _with_engines(estimate, generator.replicas, card)
    engines = min(MOST_ENGINES, (processors() - OTHER_PROCESSORS) // ENGINE_PROCESSORS)
    best = _with_engines(estimate, 1, card)
    for count in range(2, engines + 1):
        more = _with_engines(estimate, count, card)
        if _is_better(more, best, card):
            best = more
    return best


def _is_better(more: Estimate, best: Estimate, card: Card) -> bool:
    """Whether more engines fit, leave the learner its activations, and make the whole run faster."""
    seconds, before = (max(decoding(estimate, card.name, card.gib)) for estimate in (more, best))
    recomputes, recomputed = (e.config.learner.gradient_checkpointing for e in (more, best))
    return (
        recomputes == recomputed
        and seconds < WORTH * before
        and (before - seconds) * more.config.learner.steps > ENGINE_S
        and more.shared_gib(more.generator()) <= card.usable_gib
        and sum(more.host(cards=True).values()) <= (1 - SPARE) * free_memory() / GIB
    )


def _with_engines(unchosen: Estimate, count: int, card: Card, sequences: int = 0) -> Estimate:
    """`count` engines and the learner on one card. Each engine's KV cache holds `max_sequences` of the
    longest sequences, or takes its part of the memory that the learner leaves."""
    gpus = {"replicas": count, "gpus": math.floor(5000 / count) / 10_000}
    estimate = _filled(unchosen, generator=gpus, learner={"workers": 1, "gpus": 0.5})
    estimate = _with_sequences(estimate, sequences or wanted_sequences(estimate))
    at_once = estimate.config.generator.max_sequences
    fewer = at_once > LEAST_SEQUENCES and "max_sequences" not in unchosen.config.generator.model_fields_set
    least, usable, wanted = estimate.least_kv_gib, card.usable_gib, at_once * estimate.longest_kv_gib
    choices = learners(estimate)
    room = (usable - choices[-1].shared_gib(estimate.generator(0.0))) / count
    if room < least:
        return _with_engines(unchosen, count, card, at_once // 2) if fewer else choices[-1]
    # Activations take no more than half of what the largest useful cache would need too.
    engine = estimate.generator(max(least, min(room / 2, wanted)))
    estimate = next(choice for choice in choices if choice.shared_gib(engine) <= usable)
    rank, fixed = estimate.rank(), estimate.generator(0.0).gib
    taken = rank.idle_gib if estimate.config.generator.sleep == "step" else rank.gib
    left = math.floor(100 * ((usable - taken) / count - fixed)) / 100
    cache = estimate.config.generator.kv_cache_gib or min(left, math.ceil(100 * max(least, wanted)) / 100)
    if fewer and (held := _held(estimate, cache)) < at_once:
        return _with_engines(unchosen, count, card, held)
    share = min(0.95, math.ceil(100 * (fixed + cache) / card.gib) / 100)
    return _filled(estimate, generator={"kv_cache_gib": cache, "memory_utilization": share})


def _with_sequences(estimate: Estimate, count: int) -> Estimate:
    """`max_sequences` for `count` sequences, in the steps in which vLLM captures graphs."""
    sequences = min(MOST_SEQUENCES, max(LEAST_SEQUENCES, -(-count // 8) * 8))
    return _filled(estimate, generator={"max_sequences": sequences})


def wanted_sequences(estimate: Estimate) -> int:
    """Sequences that a replica has at a time when no memory limits it: its part of the batches in flight."""
    generator, rollout = estimate.config.generator, estimate.config.rollout
    return -(-max(SEQUENCES, rollout.in_flight) // generator.replicas)


def _held(estimate: Estimate, cache: float) -> int:
    """Sequences for a KV cache of `cache` GiB: twice as many as it holds of the longest, because they grow
    over time. vLLM sets back the newest where that is too many."""
    return 8 * int(2 * cache / estimate.longest_kv_gib / 8)


def learners(estimate: Estimate) -> list[Estimate]:
    """Choices of a rank's memory, fastest first: recomputed activations cost a third more time (6 + 2 FLOPs
    per weight and token), and small micro-batches less than that."""
    sizes = [max(tokens, estimate.config.longest) for tokens in MICRO_BATCHES]
    return [
        _filled(estimate, learner={"gradient_checkpointing": again, "tokens_per_microbatch": tokens})
        for again in (False, True)
        for tokens in sizes
    ]


def _divided(estimate: Estimate, cards: Sequence[Card]) -> Estimate:
    """The split of the cards with the fastest expected step among those that fit into memory."""
    generator, learner = estimate.config.generator, estimate.config.learner
    if generator.sleep == "step":
        raise ConfigError(
            f"generator.sleep (step) is for one card that generator and learner share, and this machine has "
            f"{len(cards)}: set generator.sleep: none, which gives each cards of its own, or show one card "
            "(CUDA_VISIBLE_DEVICES)"
        )
    card, parallel = min(cards, key=lambda c: c.gib), generator.tensor_parallel
    if "replicas" in generator.model_fields_set:
        counts = [generator.replicas]
    elif "workers" in learner.model_fields_set:
        counts = [max(1, (len(cards) - learner.workers) // parallel)]
    else:
        counts = list(range(1, max(2, (len(cards) - 1) // parallel + 1)))
    if (taken := counts[0] * parallel) >= len(cards):
        raise ConfigError(
            f"generator.replicas {counts[0]} · generator.tensor_parallel {parallel} "
            f"take {taken} of the {len(cards)} GPUs of this machine, and the learner needs one: lower one of "
            "them"
        )

    def rank(split: Estimate) -> tuple[bool, float]:
        return split.rank().gib > card.usable_gib, step_seconds(split, card.name, card.gib)

    return min((_with_replicas(estimate, count, len(cards), card) for count in counts), key=rank)


def _with_replicas(estimate: Estimate, count: int, cards: int, card: Card) -> Estimate:
    """`count` replicas; the remaining cards are ranks, sharded only as far as memory requires."""
    ranks = cards - count * estimate.config.generator.tensor_parallel
    estimate = _filled(estimate, generator={"replicas": count}, learner={"workers": ranks})
    cache = card.gib * estimate.config.generator.memory_utilization - estimate.generator(0.0).gib
    estimate = _with_sequences(estimate, min(wanted_sequences(estimate), _held(estimate, cache)))
    two, three = (_filled(estimate, learner={"zero_stage": stage}) for stage in (2, 3))
    choices = [*learners(estimate)[: len(MICRO_BATCHES)], *learners(two), *learners(three)]
    return next((choice for choice in choices if choice.rank().gib <= card.usable_gib), choices[-1])
