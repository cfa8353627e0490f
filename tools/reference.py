"""Generate the pages of docs/reference/ that the code determines (`make reference`): commands, configuration
keys, metrics, and which models fit how many cards by the estimate of `hora check`.

    python -m tools.reference docs/reference
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torch
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config
from typer.cli import get_docs_for_click

from hora_rl.common.config import Config
from hora_rl.common.config.base import Scope, scope_of, section_of
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.deploy.checks.estimate import Estimate, ModelShape, total
from hora_rl.deploy.checks.memory import fits_cards
from hora_rl.deploy.checks.resources import SPARE, Card, choose
from hora_rl.deploy.cli import app
from hora_rl.deploy.monitor.prometheus import COUNTERS, GAUGES

COMMANDS = """\
Every command prints its options with `--help`, and `hora --version` the version. A mistake that you can
correct is one line on standard error, with exit status 1. A command that Ctrl-C or a signal stopped exits
with 130. `config` is a YAML file, a Serve file, or the name of a preset in `deploy/presets/`. `run` is the
folder of a run. Generated from `deploy/cli.py`.

"""
CONFIGURATION = """# Configuration

One YAML file per experiment feeds `serve deploy` (as application arguments), the learner and the one-machine
run. `hora check FILE` validates it; any value is changed on the command line with `-s section.key=value`.
Unknown keys and impossible values are refused with the key and the reason. Γ is `rollout.prompts_per_batch`,
G `rollout.group_size`, G0 `rollout.pre_rollouts`. A key with ⟳ may change when the run starts
again (`--resume`, another `serve deploy`); one with ⇄ may also differ between application and learner; all
others are fixed for the run. Generated from `common/config/`.
"""
MARKS = {Scope.RUN: "", Scope.START: " ⟳", Scope.PART: " ⇄"}
METRICS = """# Prometheus metrics

Ray exports these with its own metrics, and every one carries the label `run`. Several ingress replicas
export the same snapshot, so aggregate with `max by (run)`. The scrape file, the alerts and the dashboard are
described in [Prometheus and Grafana](monitoring.md#prometheus-and-grafana). Generated from
`deploy/monitor/prometheus.py`.

## Gauges

| name | labels | meaning |
|---|---|---|
"""
TOTALS = """
## Counters

They count from the start of the process that exports them. A restart is an ordinary counter reset.

| name | labels | meaning |
|---|---|---|
"""
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
MEMORY = f"""\
# Memory by model and cards

Expected GiB on cards of {CARD.gib:g} GiB (H100), from the functions that `hora check` uses; not measured on
a GPU. Γ·G = 60·32, prompts and responses of up to 2,048 tokens, micro-batches of 8,192, gradient
checkpointing, 16 bits, weights over `file`, adapters of rank 16. 1.5B, 3B and 7B have Qwen2.5's shapes, 8B
has Llama 3.1's. A cell has the split that `run.resources: auto` chooses (generators + ranks; one generator on
a shared card), ZeRO's stage, and the need of one rank and of one generator, whose KV cache is the smallest
that is of use where it has a card of its own. {SPARE:.0%} of a card is left free.

"""


def commands() -> str:
    """The commands with their arguments and options, in the order of `hora --help`."""
    root = typer.main.get_group(app)
    root.commands.pop("study", None)  # of a checkout alone: research/README.md
    page = get_docs_for_click(obj=root, ctx=typer.Context(root), name="hora", title="Commands")
    title, _, rest = page.rstrip().partition("\n\n")
    return f"{title}\n\n{COMMANDS}{rest}\n"


def configuration() -> str:
    """The keys, with the sections in the order of the models."""
    sections = (_section(name, field.annotation) for name, field in Config.model_fields.items())
    return CONFIGURATION + "".join(sections)


def _section(path: str, model: Any) -> str:
    lines = [f"\n## {path}\n"]
    if text := (model.__doc__ or "").strip():
        lines.append(f"\n{' '.join(text.split())}\n")
    lines.append("\n| key | default | meaning |\n|---|---|---|\n")
    nested = []
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is not None:
            nested.append(_section(f"{path}.{name}", section))
            if field.default is not None:
                continue
        elif (each := _named(field.annotation)) is not None:
            nested.append(_section(f"{path}.{name}.NAME", each))
        key = f"`{path}.{field.alias or name}`"
        description = field.description or ""
        meaning = description.replace("|", "\\|") + _choices(field.annotation, description)
        mark = MARKS[scope_of(Config, f"{path}.{name}")]
        default = "required" if field.default is PydanticUndefined else f"`{field.default!r}`"
        lines.append(f"| {key}{mark} | {default} | {meaning} |\n")
    return "".join(lines + nested)


def _named(annotation: Any) -> type[BaseModel] | None:
    """The model of a section's values if the user names the keys, else None."""
    values = get_args(annotation)[1:]
    return next((v for v in values if isinstance(v, type) and issubclass(v, BaseModel)), None)


def _choices(annotation: Any, description: str) -> str:
    """The allowed values of a `Literal` key, unless `description` names them all."""
    kinds = [annotation, *get_args(annotation)]
    values = [str(v) for kind in kinds if get_origin(kind) is Literal for v in get_args(kind)]
    if all(value in description for value in values):
        return ""
    return f" One of {', '.join(f'`{value}`' for value in values)}."


def metrics() -> str:
    """Gauges, then counters, with the names of Ray's metrics endpoint."""
    gauges = [_row(f"ray_{name}", *about) for name, about in GAUGES.items()]
    counters = [_row(f"ray_{name}_total", *about) for name, about in COUNTERS.items()]
    return "".join([METRICS, *gauges, TOTALS, *counters])


def _row(name: str, meaning: str, labels: tuple[str, ...]) -> str:
    return f"| `{name}` | {', '.join(f'`{label}`' for label in labels)} | {meaning} |\n"


def memory() -> str:
    """What each model needs on each number of cards."""
    rows = ["| model | " + " | ".join(f"{n} card{'s' * (n > 1)}" for n in COUNTS) + " |\n"]
    rows.append("|---|" + "---|" * len(COUNTS) + "\n")
    for name, (kind, *sizes) in MODELS.items():
        architecture = kind(max_position_embeddings=32_768, **dict(zip(SIZES, sizes, strict=True)))
        for lora in (False, True):
            cells = " | ".join(_cell(architecture, lora, count) for count in COUNTS)
            rows.append(f"| {name}, {'LoRA' if lora else 'full'} | {cells} |\n")
    return MEMORY + "".join(rows)


def _cell(architecture: PretrainedConfig, lora: bool, count: int) -> str:
    single = ["generator.replicas=1"] if count == 1 else []  # more are chosen by this machine's processors
    config = load("tiny", [*SETTINGS, *single, *(["learner.lora.rank=16"] if lora else [])])
    with torch.device("meta"):
        shape = ModelShape.of(AutoModelForCausalLM.from_config(architecture), config.learner.lora)
    cards = [CARD] * count
    try:
        chosen = choose(Estimate(config, shape), cards)
    except ConfigError:
        return "does not fit"
    rank, generator = total(chosen.rank()), total(chosen.generator())
    if fits_cards(chosen, cards).level == "fail":
        return f"does not fit: {chosen.card_gib:.0f}"
    replicas, learner = chosen.config.generator.replicas, chosen.config.learner
    stage = learner.zero_stage or 2
    split = "shared" if count == 1 else f"{replicas} + {learner.workers}"
    return f"{split}, ZeRO-{stage} · {rank:.0f} · {generator:.0f}"


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "configuration": configuration,
    "memory": memory,
    "metrics": metrics,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(sys.argv[1]) / f"{name}.md").write_text(page(), encoding="utf-8")
