"""The `hora` command. Each command imports its code when it runs, so `hora --help` is fast.

Errors that a user can fix print one line on standard error and exit with status 1. Other errors are bugs and
show a traceback.
"""

import errno
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal

import typer

from hora_rl.common.errors import HoraError
from hora_rl.common.user_code import working_folder

app = typer.Typer(
    help="Train a model with HORA: rollouts go where one more is most likely to be a hit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
ConfigPath = Annotated[str, typer.Argument(help="A YAML file, a Serve file, or the name of a preset.")]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run, e.g. runs/tiny.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders.")]
SET = "Change one value, e.g. -s rollout.group_size=32. May be repeated."
Overrides = Annotated[list[str] | None, typer.Option("--set", "-s", help=SET)]
FULL = {errno.ENOSPC, errno.EDQUOT}
PLACE = {
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.EROFS,
    errno.ENAMETOOLONG,
}
"""Errors of a path that the user can choose again."""


def _print_version(wanted: bool) -> None:
    from importlib.metadata import version

    if wanted:
        typer.echo(f"hora {version('hora-rl')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
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
    from hora_rl.deploy.launch.local import run_local
    from hora_rl.deploy.launch.resolve import Folder
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
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Also print the tokens, FLOPs and bytes of a step.")
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
    run_check(config, set_ or (), elsewhere=elsewhere, estimate=estimate)


@app.command()
def monitor(
    config: ConfigPath,
    set_: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="One snapshot as JSON.")] = False,
    once: Annotated[bool, typer.Option(help="One screen, then exit.")] = False,
    page: Annotated[bool, typer.Option("--page", help="Serve the web page instead, without Serve.")] = False,
    host: Annotated[str, typer.Option(help="Address of --page.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of --page.")] = 8080,
    name: Annotated[list[str] | None, typer.Option(help="Another host name of --page.")] = None,
) -> None:
    """Watch a run live: queue, rates, replicas and their weight versions, learner. A run folder also shows
    the final state of a run that has ended."""
    from hora_rl.deploy.monitor import terminal
    from hora_rl.deploy.runs.ended_run import source_of

    with source_of(config, set_ or ()) as source:
        if not page:
            terminal.monitor(
                source.url, source.run, json_=json, once=once, file=source.file, read=source.read
            )
            return
        folder = source.file.folder if source.file.folder.is_dir() else None
        terminal.serve_page(source.url, source.run, host, port, source.read, name or (), folder)


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


@app.command(name="eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="Model or adapter folder, e.g. runs/tiny/model, or hub name.")],
    benchmark: Annotated[
        str, typer.Option(help="Names, JSONL files or hub names, with commas.")
    ] = "math500,amc23,aime24,aime25",
    samples: Annotated[int | None, typer.Option(help="N; the paper's for each benchmark by default.")] = None,
    k: Annotated[str | None, typer.Option(help="K of Pass@K, with commas; the paper's by default.")] = None,
    config: Annotated[
        str | None,
        typer.Option(help="Prompts, limits, replicas; by default the run's of RUN/model, or tiny."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of samples and results.")] = Path("evaluations"),
    step: Annotated[
        int | None, typer.Option(min=0, help="Optimizer steps of the weights; by default the recorded ones.")
    ] = None,
    set_: Overrides = None,
) -> None:
    """Pass@K of a model on benchmarks. Samples are saved; the same command resumes after an interruption."""
    from hora_rl.common.load import load
    from hora_rl.common.model.adapters import model_settings
    from hora_rl.deploy.launch.local import evaluate_local
    from hora_rl.deploy.machine.signals import stopped_by_signals
    from hora_rl.evaluation.benchmarks import parse_ks

    ks = parse_ks(k) if k else None
    run = Path(model).resolve().parent
    source = config or (str(run / "config.yaml") if (run / "run.json").is_file() else "tiny")
    chosen = load(source, [*(set_ or ()), *model_settings(model)])
    if config is None:
        limits = chosen.rollout
        print(
            f"limits of {source}: prompts of {limits.max_prompt_tokens} tokens, responses of "
            f"{limits.max_response_tokens}, temperature {limits.temperature:g}; --config names another "
            "configuration"
        )
    with stopped_by_signals():
        evaluate_local(chosen, benchmark.split(","), samples, ks, out, step)


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
def study(words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Compare arms of an experiment over seeds. Needs `research/` of a checkout; see `hora study --help`."""
    from hora_rl.common.load import ROOT

    if not (ROOT / "research").is_dir():
        raise HoraError(f"{ROOT} has no research/: `hora study` needs a checkout")
    paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "research", *(words or ())], environment)


@app.command()
def sample(
    config: ConfigPath,
    prompts: Annotated[int, typer.Option(help="Training prompts, drawn at random.")] = 300,
    samples: Annotated[
        int, typer.Option(min=1, help="Completions per prompt: the largest G that can be planned.")
    ] = 64,
    out: Annotated[Path, typer.Option(help="File of counts, one line a prompt.")] = Path("counts.jsonl"),
    set_: Overrides = None,
) -> None:
    """Count successes of training prompts for `hora plan`. The same command resumes after an interruption."""
    from hora_rl.deploy.launch.counting import count_local
    from hora_rl.deploy.machine.signals import stopped_by_signals

    with stopped_by_signals():
        count_local(config, set_ or (), prompts, samples, out)


@app.command()
def plan(
    source: Annotated[Path, typer.Argument(help="Counts (JSONL), a run folder, or a result of `hora eval`.")],
    group_size: Annotated[str | None, typer.Option(help="G, several with commas.")] = None,
    pre_rollouts: Annotated[str | None, typer.Option(help="G0, several with commas; 4,8 by default.")] = None,
    rules: Annotated[
        str | None, typer.Option(help="Rules with commas, with a stop: hit_utility,hit_utility/hit.")
    ] = None,
    rounds: Annotated[str, typer.Option(help="Rounds of Phase B, several with commas.")] = "1,4",
    shard: Annotated[
        int | None,
        typer.Option(min=1, help="Prompts allocated together (Γ over shards); by default a large batch."),
    ] = None,
    gradients: Annotated[
        str | None,
        typer.Option(help="r,OVERLAP,PROMPTS: a hit's noise, prompts' shared gradient, Γ; for the verdict."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict from recorded pass counts what each allocation rule would find, and recommend a rule."""
    from hora_rl.evaluation.plan.command import plan as make_plan

    make_plan(source, group_size, pre_rollouts, rules, rounds, json, shard, gradients)


@app.command()
def stop(run: RunFolder) -> None:
    """Stop a running `hora run` so that it can be resumed."""
    from hora_rl.deploy.machine.record import stop as end

    print(end(run))


@app.command()
def runs(folder: Annotated[Path, typer.Argument(help="Folder that holds runs.")] = Path("runs")) -> None:
    """List the runs of a folder with state, step and last reward."""
    from hora_rl.deploy.runs.listing import list_runs, show_runs

    show_runs(list_runs(folder))


@app.command()
def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    metric: Annotated[
        list[str] | None, typer.Option(help="Draw this metric of steps.jsonl; may be repeated.")
    ] = None,
    over: Annotated[str, typer.Option(help="Draw it over step, rollouts, tokens or hours.")] = "step",
) -> None:
    """The paper's tables and figures for any set of runs, live or ended: one HTML file and PNGs; of several
    runs also the differences of their configurations."""
    from rich.console import Console

    from hora_rl.common.console import working

    with working(f"report of {len(runs)} runs"):
        from hora_rl.evaluation.report.runs_report import write_report

        page = write_report(runs, out, metric or (), over, Console())
    print(page)


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
    from hora_rl.deploy.runs.ended_run import export_run

    print(export_run(run, step, out, adapter=adapter))


@app.command()
def audit(run: RunFolder) -> None:
    """Prove from a run's records that no group is missing or doubled and that budgets and staleness held."""
    from hora_rl.deploy.runs.audit_run import audit_run

    if not audit_run(run):
        raise typer.Exit(1)


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
