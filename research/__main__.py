"""`hora study`."""

from pathlib import Path
from typing import Annotated

import typer

from hora_rl.deploy.cli import main
from hora_rl.deploy.machine.signals import stopped_by_signals

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command("hora study")
def study(
    file: Annotated[str, typer.Argument(help="Study: a YAML file, or the name of a shipped one.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the cells and the report; studies/NAME.")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Cells at once; by default as many as the processors hold.")
    ] = None,
    loop: Annotated[
        bool, typer.Option("--loop", help="Train recall tasks in one process a cell, without servers.")
    ] = False,
) -> None:
    """Compare arms of an experiment over seeds at equal compute. The same command continues after an
    interruption."""
    from research.study.command import study as run_study

    with stopped_by_signals():
        complete = run_study(file, out, parallel, loop)
    if not complete:
        raise typer.Exit(1)


if __name__ == "__main__":
    main(app)
