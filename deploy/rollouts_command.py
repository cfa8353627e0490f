"""`hora rollouts`, a command of `deploy/cli.py`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def rollouts(
    run: Annotated[Path, typer.Argument(help="Folder of a run, e.g. runs/tiny.")],
    step: Annotated[int | None, typer.Option(min=0, help="Only those of this step.")] = None,
    prompt: Annotated[int | None, typer.Option(min=0, help="Only those of the prompt of this index.")] = None,
    success: Annotated[bool | None, typer.Option("--success/--failure", help="Only hits, or misses.")] = None,
    phase: Annotated[Literal["A", "B"] | None, typer.Option(help="Only those of this phase.")] = None,
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
    from deploy.runs.rollouts import Choice, order_of, show_rollouts

    order = order_of(longest=longest, least_likely=least_likely)
    choice = Choice(step, prompt, success, phase, source, order, limit)
    show_rollouts(run, choice, as_json=json, full=full)
