"""Generate docs/reference/memory.md: which models fit how many cards, by the estimate of `hora check`."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.deploy.checks.estimate import Estimate, ModelShape
from hora_rl.deploy.checks.memory import holds
from hora_rl.deploy.checks.resources import SPARE, Card, choose

CARD = Card("H100", 79.65)
COUNTS = (1, 2, 4, 8)
SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "tie_word_embeddings",
)  # fmt: skip
MODELS: dict[str, tuple[type[PretrainedConfig], *tuple[int, ...]]] = {
    "1.5B": (Qwen2Config, 151_936, 1536, 8960, 28, 12, 2, True),
    "3B": (Qwen2Config, 151_936, 2048, 11_008, 36, 16, 2, True),
    "7B": (Qwen2Config, 152_064, 3584, 18_944, 28, 28, 4, False),
    "8B": (LlamaConfig, 128_256, 4096, 14_336, 32, 32, 8, False),
}
SETTINGS = (
    "model.dtype=bfloat16", "rollout.prompts_per_batch=60", "rollout.group_size=32",
    "rollout.pre_rollouts=8", "rollout.max_prompt_tokens=2048", "rollout.max_response_tokens=2048",
    "learner.tokens_per_microbatch=8192", "learner.gradient_checkpointing=true",
    "generator.enforce_eager=false", "generator.max_batched_tokens=8192",
)  # fmt: skip
HEAD = f"""\
# Memory by model and cards

Expected GiB on cards of {CARD.gib:g} GiB (H100), from the functions that `hora check` uses; not measured on
a GPU. Γ·G = 60·32, prompts and responses of up to 2,048 tokens, micro-batches of 8,192, gradient
checkpointing, 16 bits, weights over `file`, adapters of rank 16. 1.5B, 3B and 7B have Qwen2.5's shapes, 8B
has Llama 3.1's. A cell has the split that `run.resources: auto` chooses (generators + ranks), ZeRO's stage,
and the need of one rank and of one generator, whose KV cache is the smallest that is of use where it has a
card of its own. {SPARE:.0%} of a card is left free.

"""


def document() -> str:
    """The page."""
    rows = ["| model | " + " | ".join(f"{n} card{'s' * (n > 1)}" for n in COUNTS) + " |\n"]
    rows.append("|---|" + "---|" * len(COUNTS) + "\n")
    for name, (kind, *sizes) in MODELS.items():
        architecture = kind(max_position_embeddings=32_768, **dict(zip(SIZES, sizes, strict=True)))
        for lora in (False, True):
            cells = " | ".join(_cell(architecture, lora, count) for count in COUNTS)
            rows.append(f"| {name}, {'LoRA' if lora else 'full'} | {cells} |\n")
    return HEAD + "".join(rows)


def _cell(architecture: PretrainedConfig, lora: bool, count: int) -> str:
    config = load("tiny", [*SETTINGS, *(["learner.lora.rank=16"] if lora else [])])
    with torch.device("meta"):
        shape = ModelShape.of(AutoModelForCausalLM.from_config(architecture), config.learner.lora)
    cards = [CARD] * count
    try:
        chosen = choose(Estimate(config, shape), cards)
    except ConfigError:
        return "does not fit"
    rank, generator = chosen.rank(), chosen.generator()
    if holds(chosen, cards).level == "fail":
        need = chosen.shared_gib(generator) if count == 1 else rank.gib
        return f"does not fit: {need:.0f}"
    replicas, learner = chosen.config.generator.replicas, chosen.config.learner
    stage = learner.zero_stage or 2
    split = "shared" if count == 1 else f"{replicas} + {learner.workers}"
    return f"{split}, ZeRO-{stage} · {rank.gib:.0f} · {generator.gib:.0f}"


if __name__ == "__main__":
    print(document(), end="")
