"""`run.resources: auto`: divide one machine's cards between generators and learner, for unset keys only.

One card is shared: Ray gets fractions, and the KV cache gets the memory that the learner's estimate leaves,
because vLLM would otherwise take it. Several cards are divided for the shortest expected step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from hora_rl.common.config import Config, Generator, Learner
from hora_rl.common.errors import ConfigError
from hora_rl.deploy.checks.estimate import (
    ModelShape,
    generator_need,
    kv_token_bytes,
    least_kv_gib,
    on_one_card,
    rank_need,
    waiting_gib,
)
from hora_rl.deploy.checks.step_costs import step_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 2**30
SPARE = 0.05
"""Unallocated share of a card, for fragmentation and the error of the estimate."""


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


def choose(config: Config, cards: Sequence[Card], shape: ModelShape) -> Config:
    """Choose the keys of a training run on one machine with `cards`. Raises ConfigError if the configuration
    cannot be divided over them."""
    if config.run.resources != "auto" or not cards:
        return config
    return _shared(config, cards[0], shape) if len(cards) == 1 else _divided(config, cards, shape)


def shares_a_card(generator: Generator, learner: Learner) -> bool:
    """Whether generator and learner share a card."""
    return 0 < (generator.gpus or 1.0) < 1 and 0 < (learner.gpus or 1.0) < 1


class Plan:
    """A configuration under construction. Keys that the user wrote are never changed."""

    def __init__(self, config: Config) -> None:
        sections = ("model", "generator", "learner")
        self._written = {name: getattr(config, name).model_fields_set for name in sections}
        self.config = config

    def wrote(self, section: str, key: str) -> bool:
        return key in self._written[section]

    def put(self, section: str, **values: object) -> None:
        free = {key: value for key, value in values.items() if key not in self._written[section]}
        new = getattr(self.config, section).model_copy(update=free)
        self.config = self.config.model_copy(update={section: new})


def _shared(config: Config, card: Card, shape: ModelShape) -> Config:
    """Generator and learner on one card, with the KV cache that the learner leaves."""
    plan = Plan(config)
    if plan.config.weights.transport == "nccl":
        raise ConfigError(
            "weights.transport (nccl) joins processes on different cards, and this machine has 1: use file "
            "or gloo"
        )
    if (parallel := plan.config.generator.tensor_parallel) > 1:
        raise ConfigError(
            f"generator.tensor_parallel ({parallel}) needs as many cards, and this machine has 1: set it to 1"
        )
    plan.put("generator", replicas=1, gpus=0.5)
    plan.put("learner", workers=1, gpus=0.5)
    usable = card.usable_gib
    least = least_kv_gib(shape, plan.config)
    smallest = generator_need(shape, plan.config, least)
    sleep = plan.config.generator.sleep
    if on_one_card(rank_need(shape, plan.config), smallest, sleep) > usable:
        plan.put("learner", gradient_checkpointing=True)
    rank, fixed = rank_need(shape, plan.config), generator_need(shape, plan.config, 0.0).gib
    beside = waiting_gib(rank) if sleep == "step" else rank.gib
    left = usable - beside - fixed
    if on_one_card(rank, smallest, sleep) > usable:
        return plan.config  # reported by the memory check
    each = kv_token_bytes(shape, plan.config.model.dtype, parallel)
    useful = plan.config.generator.max_sequences * plan.config.longest * each / GIB
    cache = max(least, min(left, useful))
    plan.put("generator", kv_cache_gib=math.floor(100 * cache) / 100)
    share = math.ceil(100 * (fixed + cache) / card.gib) / 100
    plan.put("generator", memory_utilization=min(0.95, share))
    return plan.config


def _divided(config: Config, cards: Sequence[Card], shape: ModelShape) -> Config:
    """The split of the cards with the fastest expected step among those that fit into memory."""
    if config.generator.sleep == "step":
        raise ConfigError(
            f"generator.sleep (step) is for one card that generator and learner share, and this machine has "
            f"{len(cards)}: set generator.sleep: none, which gives each cards of its own, or show one card "
            "(CUDA_VISIBLE_DEVICES)"
        )
    card, plan = min(cards, key=lambda c: c.gib), Plan(config)
    parallel, generator, learner = config.generator.tensor_parallel, config.generator, config.learner
    if plan.wrote("generator", "replicas"):
        counts = [generator.replicas]
    elif plan.wrote("learner", "workers"):
        counts = [max(1, (len(cards) - learner.workers) // parallel)]
    else:
        counts = list(range(1, max(2, (len(cards) - 1) // parallel + 1)))
    if (taken := counts[0] * parallel) >= len(cards):
        raise ConfigError(
            f"generator.replicas {counts[0]} · generator.tensor_parallel {parallel} "
            f"take {taken} of the {len(cards)} GPUs of this machine, and the learner needs one: lower one of "
            "them"
        )
    made = [_with_replicas(config, count, len(cards), card, shape) for count in counts]

    def rank(one: Config) -> tuple[bool, float]:
        too_large = rank_need(shape, one).gib > card.usable_gib
        return too_large, step_seconds(one, shape, card.name, card.gib)

    return min(made, key=rank)


def _with_replicas(config: Config, count: int, cards: int, card: Card, shape: ModelShape) -> Config:
    """`count` replicas; the remaining cards are ranks, sharded only as far as memory requires."""
    plan = Plan(config)
    plan.put("generator", replicas=count)
    plan.put("generator", max_sequences=most_sequences(plan.config, card, shape))
    plan.put("learner", workers=cards - count * config.generator.tensor_parallel)
    for change in ({"zero_stage": 2}, {"gradient_checkpointing": True}, {"zero_stage": 3}):
        if rank_need(shape, plan.config).gib <= card.usable_gib:
            break
        plan.put("learner", **change)
    return plan.config


def most_sequences(config: Config, card: Card, shape: ModelShape) -> int:
    """`max_sequences` for a generator's card, 64 to 1,024: twice the number of longest sequences that fit,
    because sequences grow over time."""
    room = card.gib * config.generator.memory_utilization - generator_need(shape, config, 0.0).gib
    each = kv_token_bytes(shape, config.model.dtype, config.generator.tensor_parallel)
    longest = config.longest * each / GIB
    return min(1024, max(64, 8 * int(2 * room / longest / 8)))
