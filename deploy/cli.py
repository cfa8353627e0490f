"""The `hora` command. Thin: every command imports what it needs when it runs, so that `hora --help` answers at once.

Errors that a user can mend are one line on standard error and exit status 1; anything else is a fault of ours and
shows its trace.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from common.errors import HoraError

app = typer.Typer(
    help="Train a model with HORA: rollouts go where one more is most likely to be a hit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
ConfigPath = Annotated[
    str, typer.Argument(help="Configuration: a YAML file, a Serve file, or the name of a preset.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="Change one value, e.g. -s rollout.group_size=32. May be repeated."),
]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run, e.g. runs/tiny.")]


@app.command()
def run(
    config: ConfigPath,
    set_: Overrides = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run of this name.")] = False,
    fresh: Annotated[
        bool, typer.Option(help="Set an older run of this name aside instead of refusing.")
    ] = False,
) -> None:
    """Train on this machine: starts Redis, Ray, Serve and the learner, and stops them again."""
    from common.load import load
    from deploy.local import run_local

    run_local(load(config, set_ or ()), resume=resume, fresh=fresh)


@app.command()
def train(config: ConfigPath, set_: Overrides = None) -> None:
    """Run the learner against an application that `serve deploy` started."""
    from common.load import load
    from deploy.cluster import train_on_cluster

    train_on_cluster(load(config, set_ or ()))


@app.command()
def check(config: ConfigPath, set_: Overrides = None) -> None:
    """Validate a configuration, its model folder and its data without starting anything."""
    from deploy.check import check as run_check

    run_check(config, set_ or ())


@app.command()
def monitor(
    config: ConfigPath,
    set_: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="One snapshot as JSON.")] = False,
    once: Annotated[bool, typer.Option(help="One screen, then exit.")] = False,
) -> None:
    """Watch a run live: queue, rates, replicas and their weight versions, learner."""
    from deploy.monitor import monitor as show
    from deploy.runs import redis_of

    url, name = redis_of(config, set_ or ())
    show(url, name, json_=json, once=once)


def main() -> None:
    try:
        app()
    except HoraError as error:
        print(f"hora: {error}", file=sys.stderr)
        sys.exit(1)
