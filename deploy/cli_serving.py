"""Commands of `hora` that serve a run's policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run, e.g. runs/tiny.")]
Step = Annotated[
    int | None, typer.Option(min=0, help="A step whose weights the run keeps; the newest by default.")
]


@app.command()
def serve(
    run: RunFolder,
    step: Step = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; the run's by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; a free one by default.")] = None,
) -> None:
    """Serve a run's model as an OpenAI-compatible endpoint, keyed by a token. Ctrl-C ends it."""
    from deploy.launch.serving import serve_run
    from deploy.launch.signals import stopped_by_signals

    with stopped_by_signals():
        serve_run(run, step, host, port)


@app.command()
def chat(
    run: RunFolder,
    step: Step = None,
    url: Annotated[
        str | None, typer.Option(help="Endpoint of this run that is up, e.g. http://127.0.0.1:8000.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="Sampling temperature.")] = 1.0,
) -> None:
    """Talk to a run's policy in the terminal."""
    from deploy.launch.chat import chat_with_run
    from deploy.launch.signals import stopped_by_signals

    with stopped_by_signals():
        chat_with_run(run, step, url, temperature)
