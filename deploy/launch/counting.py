"""Count successes of training prompts for `hora plan CONFIG` on this machine."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hora_rl.actors.coordinator.deployment import render_prompts
from hora_rl.actors.coordinator.store import mixture_of
from hora_rl.allocator.planning.forecast import LEAST_PROMPTS
from hora_rl.common.config import Config, DataConfig, RewardConfig
from hora_rl.common.console import say
from hora_rl.common.data.prompt_order import mixed_rows
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.common.types import Prompt
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.hardware import on_processors
from hora_rl.deploy.checks.machine import check_writable
from hora_rl.deploy.checks.run_checks import require
from hora_rl.deploy.launch.evaluation import draw, stopped_and_kept
from hora_rl.deploy.launch.stack import stack
from hora_rl.evaluation.plan import write_counts


def count_local(source: str, overrides: Sequence[str], number: int, samples: int, out: Path) -> None:
    """Draw `samples` completions of `number` training prompts on model.path; write counts to `out`, and the
    samples beside it. Raises ConfigError before the start if the numbers do not suffice for a plan, or if
    `out` holds counts of another origin."""
    console, out = Console(stderr=True), out.resolve()
    drawn = out.with_suffix(".samples.jsonl")
    check_writable(out.parent, "--out")
    if out.exists() and not drawn.exists():
        raise ConfigError(
            f"--out ({out}): exists, without samples of this command beside it: move it, or name another file"
        )
    config = on_processors(load(source, overrides), trains=False)
    require(Target(config, "eval"), console)
    prompts = choose(config, number)
    with (
        stopped_and_kept(f"every sample is kept in {drawn}", console),
        tempfile.TemporaryDirectory(prefix="hora-sample-") as folder,
        stack(config, Path(folder), console),
    ):
        about = about_data(config.data, config.reward)
        counts = draw(config, prompts, samples, drawn, about, "training prompts", console)
    write_counts(out, counts)
    say(console, f"{out}: `hora plan {out}` plans from these counts again")


def choose(config: Config, number: int) -> list[Prompt]:
    """Draw `number` training prompts by run.seed, from several data sources in proportion to their weights. A
    larger number extends a smaller one. Prompts have the indices of a run of this configuration. Raises
    ConfigError if no reward defines success, or if the data or the number are too small."""
    if any(config.of(source).reward.success is None for source in config.source_names):
        raise ConfigError(
            f"a plan counts successes, and no reward of {config.run.name!r} says what a success is: name one "
            "in reward.success"
        )
    if number < LEAST_PROMPTS:
        raise ConfigError(f"--prompts ({number}): a plan needs {LEAST_PROMPTS} training prompts or more")
    prompts = render_prompts(config)
    mixture = mixture_of(config.data.sources, prompts)
    try:
        rows = mixed_rows(0, number, mixture, config.run.seed)
    except ValueError:
        paths = (config.of(source).data.path for source in config.source_names)
        usable = ", ".join(f"{path} has {n} usable" for path, n in zip(paths, mixture.rows, strict=True))
        raise ConfigError(f"--prompts ({number}): {usable}; ask for fewer") from None
    return [prompts[row] for _, row in rows]


def about_data(data: DataConfig, reward: RewardConfig) -> dict[str, object]:
    """Data sources and success rules of the counts, for the header of their file."""
    if not data.sources:
        return {"data": data.path}
    judged = [(name, source, source.reward or reward) for name, source in data.sources.items()]
    return {
        "data": {name: [source.path, source.weight, r.success, r.success_at] for name, source, r in judged}
    }
