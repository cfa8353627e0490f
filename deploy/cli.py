"""The `hora` command. Each command imports its code when it runs, so `hora --help` is fast.

Errors that a user can fix print one line on standard error and exit with status 1. Other errors are bugs and
show a traceback.
"""

import os
import sys
from errno import EACCES, EDQUOT, EEXIST, EISDIR, ENAMETOOLONG, ENOSPC, ENOTDIR, EPERM, EROFS
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal

import typer

from hora_rl.common.errors import HoraError
from hora_rl.common.user_code import working_folder
from hora_rl.deploy import result_commands
from hora_rl.deploy.result_commands import ConfigPath, Overrides, RunFolder

app = typer.Typer(
    help="Train a model with HORA: rollouts go where one more is most likely to be a hit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
FULL = {ENOSPC, EDQUOT}
PLACE = {EACCES, EPERM, ENOTDIR, EISDIR, EEXIST, EROFS, ENAMETOOLONG}
"""Errors of a path that the user can choose again."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"hora {version('hora-rl')}")
        raise typer.Exit


PRINTS = typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")


@app.callback()
def _options(version: Annotated[bool, PRINTS] = False) -> None:
    """Options of every command."""


@app.command()
def run(
    config: ConfigPath,
    set_: Overrides = None,
    resume: Annotated[bool, typer.Option(help="Resume the run of this name.")] = False,
    fresh: Annotated[bool, typer.Option(help="Set an older run of this name aside.")] = False,
    resume_or_start: Annotated[
        bool, typer.Option(help="Resume the run of this name if there is one: for requeued jobs.")
    ] = False,
) -> None:
    """Train on this machine: starts Redis, Ray, Serve and the learner, and stops them again."""
    from hora_rl.deploy.launch.local import Folder, run_local
    from hora_rl.deploy.machine.signals import stopped_by_signals

    folders: dict[Folder, bool] = {"resume": resume, "resume or new": resume_or_start, "fresh": fresh}
    with stopped_by_signals():
        run_local(config, set_ or (), next((folder for folder, wanted in folders.items() if wanted), "new"))


@app.command()
def train(config: ConfigPath, set_: Overrides = None) -> None:
    """Run the learner against an application that `serve deploy` started."""
    from hora_rl.deploy.checks.run_checks import target_of
    from hora_rl.deploy.launch.cluster import train_on_cluster
    from hora_rl.deploy.machine.record import with_absolute_folder
    from hora_rl.deploy.machine.signals import stopped_by_signals

    with stopped_by_signals():
        train_on_cluster(with_absolute_folder(target_of(config, set_ or (), trained=True).config))


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="Configuration to write.")],
    task: Annotated[
        Literal["math", "mine", "code"],
        typer.Option(help="mine: example problems and an example reward. code: programs, judged by tests."),
    ] = "math",
    model: Annotated[
        str | None, typer.Option(help="Folder, hub name, GGUF file or `smollm2`; by default one that fits.")
    ] = None,
) -> None:
    """Write a commented configuration for this machine that `hora check` accepts and `hora run` trains."""
    from hora_rl.deploy.init_command import initialise

    for written in initialise(file, task, model):
        print(written)


@app.command()
def check(
    config: ConfigPath,
    set_: Overrides = None,
    elsewhere: Annotated[
        bool, typer.Option(help="Check only configuration, model and data, for another machine.")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="Print every finding with its fix.")] = False,
) -> None:
    """Print what a run would use, or the first problem that would stop it, without starting anything."""
    from hora_rl.deploy.checks.run_checks import check as run_check
    from hora_rl.deploy.checks.run_checks import check_all

    if all_:
        if not check_all(config, set_ or ()):
            raise typer.Exit(1)
        return
    run_check(config, set_ or (), elsewhere=elsewhere)


@app.command()
def monitor(
    config: ConfigPath,
    set_: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="One snapshot as JSON.")] = False,
    once: Annotated[bool, typer.Option(help="One screen, then exit.")] = False,
    page: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve the web page on this port of telemetry.http_host."),
    ] = None,
) -> None:
    """Watch a run live: queue, rates, replicas and their weight versions, learner. A run folder also shows
    the final state of a run that has ended."""
    from hora_rl.deploy.monitor import terminal
    from hora_rl.deploy.runs.ended_run import source_of

    with source_of(config, set_ or ()) as source:
        if page is None:
            terminal.monitor(
                source.url, source.run, json_=json, once=once, file=source.file, read=source.read
            )
        else:
            terminal.serve_page(source.url, source.run, source.telemetry, page, source.read)


@app.command()
def redis(
    folder: Annotated[Path, typer.Argument(help="Folder of the data and the password.")],
    host: Annotated[str, typer.Option(help="Address to listen on, with --port.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port; by default only a Unix socket.")
    ] = None,
) -> None:
    """Start a Redis for `hora train` with a generated password and every write synced. Ctrl-C stops it."""
    from hora_rl.deploy.machine.redis_server import serve_redis
    from hora_rl.deploy.machine.signals import stopped_by_signals

    with stopped_by_signals():
        serve_redis(folder, None if port is None else (host, port))


@app.command()
def stop(run: RunFolder) -> None:
    """Stop a running `hora run` so that it can be resumed."""
    from hora_rl.deploy.machine.record import stop as end

    print(end(run))


app.add_typer(result_commands.app)


def main(command: typer.Typer = app) -> None:
    """Run a command line. An error that a user can fix prints one line and exits with status 1."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # no log line for every retry
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal has a Γ
    try:
        with working_folder():  # user rules and rewards are imported from here
            command()
    except HoraError as error:
        print(f"hora: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        # A write to a full disk does not know its file.
        if error.errno not in FULL and (error.filename is None or error.errno not in PLACE):
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"hora: {where}{error.strerror}; choose another place", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
