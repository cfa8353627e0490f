"""Commands of `hora` that read run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer()
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run, e.g. runs/tiny.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders.")]


@app.command()
def runs(folder: Annotated[Path, typer.Argument(help="Folder that holds runs.")] = Path("runs")) -> None:
    """List the runs of a folder with state, step and last reward."""
    from hora_rl.deploy.runs.listing import list_runs, show_runs

    show_runs(list_runs(folder))


@app.command()
def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    compare: Annotated[bool, typer.Option("--compare", help="Curves in the terminal.")] = False,
    metric: Annotated[
        list[str] | None, typer.Option(help="With --compare: a metric of steps.jsonl; may be repeated.")
    ] = None,
    over: Annotated[str, typer.Option(help="With --compare: step, rollouts, tokens or hours.")] = "step",
) -> None:
    """The paper's tables and figures for any set of runs: one HTML file and PNGs. With --compare: curves of
    live or ended runs, and the differences of their configurations."""
    from rich.console import Console

    from hora_rl.common.console import working

    if compare:
        from hora_rl.evaluation.report import compare as comparison

        with working(f"reading {len(runs)} runs"):
            found = comparison.compare(runs, metric or (), over)
        comparison.show(found, Console())
        print(comparison.write(found, out / "compare.html"))
        return
    with working(f"report of {len(runs)} runs"):
        from hora_rl.evaluation.report.runs_report import write_report

        written = write_report(runs, out)
    print(written)


@app.command()
def rollouts(
    run: RunFolder,
    step: Annotated[int | None, typer.Option(min=0, help="Only those of this step.")] = None,
    prompt: Annotated[int | None, typer.Option(min=0, help="Only those of the prompt of this index.")] = None,
    success: Annotated[bool | None, typer.Option("--success/--failure", help="Only hits, or misses.")] = None,
    phase: Annotated[Literal["A", "B"] | None, typer.Option(help="Only those of phase A or B.")] = None,
    source: Annotated[str | None, typer.Option(help="Only those of this data set.")] = None,
    longest: Annotated[bool, typer.Option("--longest", help="Longest first, over all steps.")] = False,
    least_likely: Annotated[
        bool, typer.Option("--least-likely", help="Lowest mean log-prob per token first, over all steps.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Number of rollouts to show.")] = 10,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten long texts.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Read the rollouts of a run: prompts, completions, rewards. The newest step comes first."""
    from hora_rl.deploy.runs.rollout_list import Choice, order_of, show_rollouts

    order = order_of(longest=longest, least_likely=least_likely)
    choice = Choice(step, prompt, success, phase, source, order, limit)
    show_rollouts(run, choice, as_json=json, full=full)


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist or be empty.")],
    step: Annotated[int | None, typer.Option(min=0, help="Checkpoint; the newest by default.")] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="Write only the LoRA adapter.")] = False,
) -> None:
    """Write a checkpoint's model as a Hugging Face folder. Needs neither a GPU nor a cluster."""
    from hora_rl.deploy.runs.export_run import export_run

    print(export_run(run, step, out, adapter=adapter))


@app.command()
def audit(run: RunFolder) -> None:
    """Prove from a run's records that no group is missing or doubled and that budgets and staleness held."""
    from hora_rl.deploy.runs.audit_run import audit_run

    if not audit_run(run):
        raise typer.Exit(1)
