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
from hora_rl.deploy.checks.estimate import GIB, Estimate, waiting_gib
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
SEQUENCES, LEAST_SEQUENCES = 256, 64
"""Sequences of a generator's card even where a batch has fewer, because evaluations have more; and the fewest
of an engine."""
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
    found = []
    for line in lines:
        name, _, memory = line.rpartition(", ")
        number = memory.partition(" ")[0]
        gib = int(number) / 1024 if number.isdigit() else psutil.virtual_memory().total / GIB
        found.append(Card(name, gib))
    return found


def choose(found: Estimate, cards: Sequence[Card]) -> Estimate:
    """Choose the keys of a training run on one machine with `cards`. Raises ConfigError if the configuration
    cannot be divided over them."""
    if found.config.run.resources != "auto" or not cards:
        return found
    return _shared(found, cards[0]) if len(cards) == 1 else _divided(found, cards)


def shares_a_card(generator: GeneratorConfig, learner: LearnerConfig) -> bool:
    """Whether generator and learner share a card."""
    return 0 < (generator.gpus or 1.0) < 1 and 0 < (learner.gpus or 1.0) < 1


def filled(config: Config, **sections: Mapping[str, object]) -> Config:
    """The configuration with these values, by section, for keys that nobody wrote."""
    new = {}
    for name, values in sections.items():
        section = getattr(config, name)
        unwritten = {key: v for key, v in values.items() if key not in section.model_fields_set}
        new[name] = section.model_copy(update=unwritten)
    return config.model_copy(update=new)


def _filled(found: Estimate, **sections: Mapping[str, object]) -> Estimate:
    return replace(found, config=filled(found.config, **sections))


def _shared(found: Estimate, card: Card) -> Estimate:
    """Generator and learner on one card, with the KV cache that the learner leaves."""
    generator = found.config.generator
    if found.config.weights.transport == "nccl":
        raise ConfigError(
            "weights.transport (nccl) joins processes on different cards, and this machine has 1: use file "
            "or gloo"
        )
    if (parallel := generator.tensor_parallel) > 1:
        raise ConfigError(
            f"generator.tensor_parallel ({parallel}) needs as many cards, and this machine has 1: set it to 1"
        )
    written = "replicas" in generator.model_fields_set or generator.sleep == "step"
    counts = [generator.replicas] if written else range(1, most_engines() + 1)
    best, *more = (_with_engines(found, count, card) for count in counts)
    for one in more:
        on_host = sum(one.host(cards=True).values()) <= (1 - SPARE) * free_memory() / GIB
        fits = on_host and one.shared_gib(one.generator()) <= card.usable_gib
        same = one.config.learner.gradient_checkpointing == best.config.learner.gradient_checkpointing
        seconds, before = (decoding(x, card.name, card.gib).seconds for x in (one, best))
        saved = (before - seconds) * found.config.learner.steps
        if fits and same and seconds < WORTH * before and saved > ENGINE_S:
            best = one
    return best  # what does not fit is reported by the memory check


def most_engines() -> int:
    """Engines that this machine's processors can serve beside everything else."""
    return min(MOST_ENGINES, max(1, (processors() - OTHER_PROCESSORS) // ENGINE_PROCESSORS))


def _with_engines(asked: Estimate, count: int, card: Card, sequences: int = 0) -> Estimate:
    """`count` engines and the learner on one card. Each engine's KV cache holds `max_sequences` of the
    longest sequences, or takes its part of the memory that the learner leaves."""
    gpus = {"replicas": count, "gpus": math.floor(5000 / count) / 10_000}
    found = _filled(asked, generator=gpus, learner={"workers": 1, "gpus": 0.5})
    found = _with_sequences(found, sequences or wanted_sequences(found))
    at_once = found.config.generator.max_sequences
    chosen = at_once > LEAST_SEQUENCES and "max_sequences" not in asked.config.generator.model_fields_set
    least, usable, wanted = found.least_kv_gib, card.usable_gib, at_once * found.longest_kv_gib
    choices = learners(found)
    room = (usable - choices[-1].shared_gib(found.generator(0.0))) / count
    if room < least:
        return _with_engines(asked, count, card, at_once // 2) if chosen else choices[-1]
    # Activations take no more than half of what the largest useful cache would need too.
    engine = found.generator(max(least, min(room / 2, wanted)))
    found = next(made for made in choices if made.shared_gib(engine) <= usable)
    rank, fixed = found.rank(), found.generator(0.0).gib
    taken = waiting_gib(rank) if found.config.generator.sleep == "step" else rank.gib
    left = math.floor(100 * ((usable - taken) / count - fixed)) / 100
    cache = found.config.generator.kv_cache_gib or min(left, math.ceil(100 * max(least, wanted)) / 100)
    if chosen and (held := _held(found, cache)) < at_once:
        return _with_engines(asked, count, card, held)
    share = min(0.95, math.ceil(100 * (fixed + cache) / card.gib) / 100)
    return _filled(found, generator={"kv_cache_gib": cache, "memory_utilization": share})


def _with_sequences(found: Estimate, count: int) -> Estimate:
    """`max_sequences` for `count` sequences, in the steps in which vLLM captures graphs."""
    sequences = min(1024, max(LEAST_SEQUENCES, -(-count // 8) * 8))
    return _filled(found, generator={"max_sequences": sequences})


def wanted_sequences(found: Estimate) -> int:
    """Sequences that a replica has at a time when no memory limits it: its part of the batches in flight."""
    generator, rollout = found.config.generator, found.config.rollout
    return -(-max(SEQUENCES, rollout.in_flight) // generator.replicas)


def _held(found: Estimate, cache: float) -> int:
    """Sequences for a KV cache of `cache` GiB: twice as many as it holds of the longest, because they grow
    over time. vLLM sets back the newest where that is too many."""
    return 8 * int(2 * cache / found.longest_kv_gib / 8)


def learners(found: Estimate) -> list[Estimate]:
    """Choices of a rank's memory, fastest first: recomputed activations cost a third more time (6 + 2 FLOPs
    per weight and token), and small micro-batches less than that."""
    sizes = [max(tokens, found.config.longest) for tokens in MICRO_BATCHES]
    return [
        _filled(found, learner={"gradient_checkpointing": again, "tokens_per_microbatch": tokens})
        for again in (False, True)
        for tokens in sizes
    ]


def _divided(found: Estimate, cards: Sequence[Card]) -> Estimate:
    """The split of the cards with the fastest expected step among those that fit into memory."""
    generator, learner = found.config.generator, found.config.learner
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
    made = [_with_replicas(found, count, len(cards), card) for count in counts]

    def rank(one: Estimate) -> tuple[bool, float]:
        return one.rank().gib > card.usable_gib, step_seconds(one, card.name, card.gib)

    return min(made, key=rank)


def _with_replicas(found: Estimate, count: int, cards: int, card: Card) -> Estimate:
    """`count` replicas; the remaining cards are ranks, sharded only as far as memory requires."""
    ranks = cards - count * found.config.generator.tensor_parallel
    found = _filled(found, generator={"replicas": count}, learner={"workers": ranks})
    found = _with_sequences(found, min(wanted_sequences(found), most_sequences(found, card)))
    two, three = (_filled(found, learner={"zero_stage": stage}) for stage in (2, 3))
    choices = [*learners(found)[: len(MICRO_BATCHES)], *learners(two), *learners(three)]
    return next((made for made in choices if made.rank().gib <= card.usable_gib), choices[-1])


def most_sequences(found: Estimate, card: Card) -> int:
    """Sequences that a generator's own card has memory for."""
    return _held(found, card.gib * found.config.generator.memory_utilization - found.generator(0.0).gib)
