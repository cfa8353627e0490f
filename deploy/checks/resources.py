"""`run.resources: auto`: divide one machine's cards between generators and learner, for unset keys only.

One card is shared: Ray gets fractions, and the KV cache gets the memory that the learner's estimate leaves,
because vLLM would otherwise take it. Several cards are divided for the shortest expected step. The learner
keeps its activations where memory allows, in micro-batches as large as memory allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil

from hora_rl.common.config import Config, Generator, Learner
from hora_rl.common.errors import ConfigError
from hora_rl.deploy.checks.estimate import GIB, Estimate, waiting_gib
from hora_rl.deploy.checks.step_costs import step_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPARE = 0.05
"""Unallocated share of a card, for fragmentation and the error of the estimate."""
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


def shares_a_card(generator: Generator, learner: Learner) -> bool:
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
    found = _filled(found, generator={"replicas": 1, "gpus": 0.5}, learner={"workers": 1, "gpus": 0.5})
    least, usable = found.least_kv_gib, card.usable_gib
    choices = learners(found)
    room = usable - choices[-1].shared_gib(found.generator(0.0))
    if room < least:
        return choices[-1]  # reported by the memory check
    # Activations take no more than half of what the largest useful cache would need too.
    wanted = found.generator(max(least, min(room / 2, generator.max_sequences * found.longest_kv_gib)))
    found = next(made for made in choices if made.shared_gib(wanted) <= usable)
    rank, fixed = found.rank(), found.generator(0.0).gib
    left = usable - fixed - (waiting_gib(rank) if generator.sleep == "step" else rank.gib)
    cache = max(least, min(left, generator.max_sequences * found.longest_kv_gib))
    share = min(0.95, math.ceil(100 * (fixed + cache) / card.gib) / 100)
    sizes = {"kv_cache_gib": math.floor(100 * cache) / 100, "memory_utilization": share}
    return _filled(found, generator=sizes)


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
    sampling = {"replicas": count, "max_sequences": most_sequences(found, card)}
    found = _filled(found, generator=sampling, learner={"workers": ranks})
    two, three = (_filled(found, learner={"zero_stage": stage}) for stage in (2, 3))
    choices = [*learners(found)[: len(MICRO_BATCHES)], *learners(two), *learners(three)]
    return next((made for made in choices if made.rank().gib <= card.usable_gib), choices[-1])


def most_sequences(found: Estimate, card: Card) -> int:
    """`max_sequences` for a generator's card, 64 to 1,024: twice the number of longest sequences that fit,
    because sequences grow over time."""
    room = card.gib * found.config.generator.memory_utilization - found.generator(0.0).gib
    return min(1024, max(64, 8 * int(2 * room / found.longest_kv_gib / 8)))
