"""Commands of `hora` that show what runs have left in their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
Runs = Annotated[list[Path], typer.Argument(help="Run folders.")]


@app.command()
def report(
    runs: Runs, out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report")
) -> None:
    """The paper's tables and figures for any set of runs: one HTML file and PNGs."""
    from deploy.monitor.progress import working

    with working(f"report of {len(runs)} runs"):
        from evaluation.report.runs_report import write_report

        written = write_report(runs, out)
    print(written)


@app.command()
def compare(
    runs: Runs,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="A metric of steps.jsonl; may be repeated. Success, reward, length and entropy."),
    ] = None,
    over: Annotated[
        str, typer.Option(help="What curves are drawn over: step, rollouts, tokens or hours.")
    ] = "step",
    out: Annotated[Path | None, typer.Option(help="Write this HTML page too.")] = None,
) -> None:
    """Curves of runs over each other, and where their configurations differ; of runs that last or have
    ended."""
    from rich.console import Console

    from deploy.monitor.progress import working

    with working(f"reading {len(runs)} runs"):
        from evaluation.report import compare as comparison

        found = comparison.compare(runs, metric or (), over)
    comparison.show(found, Console())
    if out is not None:
        print(comparison.write(found, out))
