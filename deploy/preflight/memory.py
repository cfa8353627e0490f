"""Memory of a run per part, as a table, and whether this machine's cards hold it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from common.config import Config
from common.model_files import own_configuration
from common.pretrained import obtain
from deploy.preflight import machine
from deploy.preflight.estimate import (
    ModelShape,
    Need,
    checkpoint_gib,
    generator_need,
    least_kv_gib,
    on_one_card,
    published_gib,
    rank_need,
)
from deploy.preflight.findings import Finding, Target, must, ok
from deploy.preflight.processors import on_processors
from deploy.preflight.resources import SPARE, Card, choose, read_cards, shares_a_card

KEYS = (
    "learner.tokens_per_microbatch, learner.logit_chunk, learner.gradient_checkpointing, learner.zero_stage, "
    "learner.offload_optimizer, learner.lora, generator.gpu_kv_cache_gib or rollout.max_response_tokens"
)


def model_shape(config: Config) -> ModelShape | None:
    """The shape of `model.path`, without its weights; None where its configuration cannot be read here."""
    import torch
    from transformers import AutoModelForCausalLM

    trusted = config.model.trust_remote_code
    try:
        whole = own_configuration(config)
        with torch.device("meta"):
            return ModelShape.of(AutoModelForCausalLM.from_config(whole, trust_remote_code=trusted), config)
    except (OSError, ValueError):
        return None  # the checks of model and family say why


def run_target(config: Config) -> Target:
    """`hora run` of `config` on this machine, with the numbers that `run.resources: auto` chooses for it.
    Obtains a named model first."""
    obtain(config.model.path)
    cards = read_cards(machine.gpus())
    if not cards:
        return Target(on_processors(config))
    if config.run.resources != "auto" or (shape := model_shape(config)) is None:
        return Target(config)
    chosen = choose(config, cards, shape)
    names = f"{len(cards)} × {cards[0].name}" if len(cards) > 1 else cards[0].name
    return Target(chosen.config, chosen=f"chosen for {names}: {chosen.says}" if chosen.choices else "")


def card_memory(target: Target) -> Iterator[Finding]:
    """What each part takes on its card, the host and the disk; refused where a card of this machine cannot
    hold it."""
    if not target.trains:
        return
    if target.chosen:
        yield ok("resources", target.chosen)
    shape = model_shape(target.config)
    if shape is None:
        return
    cards = [] if target.on_cluster else read_cards(machine.gpus())
    yield ok("memory per part", table(target, shape))
    if cards:
        yield holds(target.config, shape, cards)


def holds(config: Config, shape: ModelShape, cards: Sequence[Card]) -> Finding:
    """Whether the smallest of `cards` holds what would lie on it."""
    rank, generator = needs(config, shape)
    together = len(cards) == 1 or shares_a_card(config)
    need = [rank, generator] if together else [max((rank, generator), key=lambda n: n.gib)]
    card = min(cards, key=lambda c: c.gib)
    total = on_one_card(rank, generator, config) if together else need[0].gib
    in_turn = ", not at the same time," if together and config.generator.sleep == "step" else ""
    says = (
        f"{' and '.join(f'{n.part} {n.gib:.1f}' for n in need)} GiB{in_turn} = {total:.1f} GiB on one "
        f"{card.name} of {card.gib:.1f} GiB, of which {card.gib * (1 - SPARE):.1f} can be given out"
    )
    return must(total <= card.gib * (1 - SPARE), "GPU memory", says, f"change {KEYS}, or use another card")


def needs(config: Config, shape: ModelShape) -> tuple[Need, Need]:
    """Of a learner rank, and of one tensor-parallel rank of a generator with the least cache that is of use,
    or the one that is set."""
    cache = config.generator.gpu_kv_cache_gib or least_kv_gib(shape, config)
    return rank_need(shape, config), generator_need(shape, config, cache)


def table(target: Target, shape: ModelShape) -> str:
    """GiB per part, one line each. On a machine without cards the first two lie in host memory too."""
    config = target.config
    rank, generator = needs(config, shape)
    replicas, ranks = config.generator.replicas * config.generator.tensor_parallel, config.learner.workers
    kept = config.learner.keep_checkpoints + 1
    one, version = checkpoint_gib(shape, config), published_gib(shape, config)
    copies = version + one * config.learner.checkpoint_aside
    rows = [
        (f"generator, {replicas} of", generator.gib, _parts(generator)),
        (f"learner rank, {ranks} of", rank.gib, _parts(rank)),
        (
            "host, all ranks' copies",
            copies,
            f"published weights {version:.2f}, checkpoint {copies - version:.2f}",
        ),
        ("disk, checkpoints", one * kept, f"{kept} of {one:.2f} at a time, in {Path(config.run.folder)}"),
    ]
    if config.generator.sleep == "step":
        weights = generator.parts["weights"]
        rows.insert(3, ("host, engine asleep", weights, f"weights {weights:.2f}, pinned"))
    lines = [f"\n  {name:<24}{gib:>9.2f}  {what}" for name, gib, what in rows]
    trained = f", trains {shape.adapter / 1e6:.1f} million" if shape.adapter else ""
    return f"{shape.parameters / 1e6:,.1f} million parameters{trained}, estimated GiB:" + "".join(lines)


def _parts(need: Need) -> str:
    return ", ".join(f"{name} {gib:.2f}" for name, gib in need.parts.items())
