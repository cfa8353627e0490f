"""Commands of `hora` that show what runs have left in their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer()
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run, e.g. runs/tiny.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders.")]


@app.command()
def report(
    runs: Runs, out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report")
) -> None:
    """The paper's tables and figures for any set of runs: one HTML file and PNGs."""
    from deploy.monitor.progress import working

    with working(f"report of {len(runs)} runs"):
        from deploy.runs.prediction import predict
        from evaluation.report.runs_report import write_report

        written = write_report(runs, out, predict)
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


@app.command()
def rollouts(
    run: RunFolder,
    step: Annotated[int | None, typer.Option(min=0, help="Only those of this step.")] = None,
    prompt: Annotated[int | None, typer.Option(min=0, help="Only those of the prompt of this index.")] = None,
    success: Annotated[bool | None, typer.Option("--success/--failure", help="Only hits, or misses.")] = None,
    phase: Annotated[Literal["A", "B"] | None, typer.Option(help="Only those of phase A or B.")] = None,
    source: Annotated[str | None, typer.Option(help="Only those of this data set.")] = None,
    longest: Annotated[bool, typer.Option("--longest", help="The longest first, of all steps.")] = False,
    least_likely: Annotated[
        bool, typer.Option("--least-likely", help="The lowest mean log-prob per token first, of all steps.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most so many.")] = 10,
    full: Annotated[bool, typer.Option("--full", help="Long texts whole.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Read what a run was trained on: prompts, completions, rewards. The newest step first."""
    from deploy.runs.rollout_list import Choice, order_of, show_rollouts

    order = order_of(longest=longest, least_likely=least_likely)
    choice = Choice(step, prompt, success, phase, source, order, limit)
    show_rollouts(run, choice, as_json=json, full=full)
