"""Fit learned priors on recorded rollouts.

python -m hora_rl.deploy.fit_prior RUN --name hidden-static
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hora_rl.actors.coordinator.deployment import render_prompts
from hora_rl.actors.coordinator.prompt_features import features_of
from hora_rl.allocator.priors import NAMES, UNCONDITIONED, fit_prior, make_prior, outcomes
from hora_rl.allocator.priors.base import save_state
from hora_rl.common.console import say, working
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.files import text_override
from hora_rl.common.load import load
from hora_rl.deploy.cli import main
from hora_rl.deploy.result_commands import RunFolder
from hora_rl.evaluation.run_folders import records

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
SENTENCE = ("mpnet-dual", "gp")
"""Priors with features of a sentence-embedding model. Other priors use features of the policy."""


@app.command()
def fit(
    run: RunFolder,
    name: Annotated[str, typer.Option(help="Any learned prior (docs/explanation/method.md).")],
    features: Annotated[
        str | None, typer.Option(help="Sentence-embedding model of mpnet-dual and gp.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; by default in the run folder.")] = None,
) -> Path:
    """Fit prior `name` offline on the Phase A outcomes of a run. Returns the file for
    `allocation.prior_state`."""
    if name == "fixed":
        raise ConfigError(f"prior fixed learns nothing: fit {', '.join(n for n in NAMES if n != name)}")
    overrides = [
        f"allocation.prior={name}",
        text_override("run.folder", str(run.resolve().parent)),
        text_override("run.name", run.resolve().name),
        *([text_override("allocation.features", features)] if features else []),
    ]
    config = load(str(run / "config.yaml"), overrides)
    if name in SENTENCE and not config.allocation.features:
        raise ConfigError(
            f"prior {name} sees prompts through a sentence-embedding model: name one, by folder or hub name, "
            "with --features (the paper's: --features sentence-transformers/all-mpnet-base-v2)"
        )
    file = run / "groups.jsonl"
    groups = records(file) if file.exists() else []
    if not groups:
        raise RunError(f"{file}: no groups; a run writes them from its first step on")
    with working(f"fitting {name}"):
        prompts = render_prompts(config)
        sections = config.allocation, config.run, config.model.path
        known = None if name in UNCONDITIONED else features_of(*sections, prompts)
        prior = make_prior(name, n=len(prompts), features=known, seed=config.run.seed)
        fit = fit_prior(prior, *outcomes(groups), seed=config.run.seed)
    path = out or run / f"prior-{name}.npz"
    save_state(path, name, prior.state_dict())
    say(
        Console(),
        f"{name}: fitted on {fit.fitted_on} prompts of {run}; on {fit.held_out} held out its log-loss is "
        f"{fit.log_loss:.4f} per rollout, that of their mean rate alone {fit.mean_rate_log_loss:.4f}. "
        "Use it with\n"
        f"  allocation.prior={name} allocation.prior_state={path}",
    )
    return path


if __name__ == "__main__":
    main(app)
