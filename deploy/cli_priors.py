"""`hora prior`: fit a learned prior on recorded rollouts, and compare one with the outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hora_rl.deploy.cli_results import RunFolder

app = typer.Typer(
    help="Learned priors: fit them on recorded rollouts, see how right they were.", no_args_is_help=True
)


@app.command()
def fit(
    run: RunFolder,
    name: Annotated[str, typer.Option(help="hidden-static, hidden-online, hidden-dual, mpnet-dual or gp.")],
    features: Annotated[
        str | None, typer.Option(help="Sentence-embedding model of mpnet-dual and gp.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; in the run's folder by default.")] = None,
) -> None:
    """Fit a prior offline on the Phase A outcomes of a run."""
    from hora_rl.deploy.runs.fit_prior import fit as fit_prior

    fit_prior(run, name, features, out)


@app.command()
def calibrate(
    run: RunFolder,
    name: Annotated[str | None, typer.Option(help="Replay this prior; else the one the run used.")] = None,
    features: Annotated[
        str | None, typer.Option(help="Sentence-embedding model of mpnet-dual and gp.")
    ] = None,
) -> None:
    """Reliability and log-loss of a prior against the outcomes that followed."""
    from hora_rl.deploy.runs.fit_prior import calibrate as show

    show(run, name, features)
