"""`hora run` and `hora eval`: all parts on one machine, in a foreground command that cleans up.

`resolve` decides what a start of `hora run` uses: it reads, completes, compares and checks its configuration.

Order of shutdown after success, failure and Ctrl-C; each step runs even if the previous one failed:
  1. the learner, so that training stops;
  2. the Serve application: no new shards, generators and verifiers end their processes;
  3. Ray, with every process that it started;
  4. Redis last, because it holds the groups that no checkpoint contains yet.
"""

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal

from rich.console import Console
from rich.markdown import Markdown

from hora_rl.common.config import Config, GeneratorConfig, LearnerConfig, RunConfig
from hora_rl.common.config.base import Scope
from hora_rl.common.errors import ConfigError, MissingWeights
from hora_rl.common.load import differences, load
from hora_rl.deploy.checks.estimate import shares_a_card
from hora_rl.deploy.checks.findings import Finding, Target
from hora_rl.deploy.checks.hardware import on_processors
from hora_rl.deploy.checks.machine import check_writable
from hora_rl.deploy.checks.memory import run_target
from hora_rl.deploy.checks.run_checks import SHOWN_BY_RUN, require, show
from hora_rl.deploy.launch.best import promote_last
from hora_rl.deploy.launch.cluster import reports_unplaced
from hora_rl.deploy.launch.evaluation import (
    TrainingRun,
    evaluate_run,
    load_benchmark,
    sample,
    stopped_and_kept,
)
from hora_rl.deploy.launch.first_evaluation import evaluating_first
from hora_rl.deploy.launch.live_evaluation import evaluating
from hora_rl.deploy.launch.stack import Application, stack, starting
from hora_rl.deploy.launch.summary import summarise
from hora_rl.deploy.machine.ray_start import port_of
from hora_rl.deploy.machine.record import CONFIG, RUN, RunFile, with_absolute_folder, write_config
from hora_rl.deploy.machine.run_redis import refuse_leftovers
from hora_rl.deploy.monitor.alerts import Alerts
from hora_rl.deploy.monitor.terminal import progress
from hora_rl.evaluation.benchmarks import find_benchmarks
from hora_rl.evaluation.report.tables import result_page, write_result
from hora_rl.evaluation.results import model_digest
from hora_rl.learner.checkpoints.origin import step_of
from hora_rl.learner.ray_private import Stop

Folder = Literal["new", "resume", "fresh", "resume or new"]
"""How a start uses the run's folder: `fresh` sets an older run aside."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """`config` has the values that `run.resources: auto` chose. `begun` is the configuration of the run to
    resume, None for a new run. `findings` are those of the checks."""

    config: Config
    run_dir: Path
    begun: Config | None
    findings: Sequence[Finding]


def resolve(source: str, overrides: Sequence[str], folder: Folder, console: Console) -> Resolved:
    """Raises HoraError if the configuration is invalid, contradicts the run to resume, or cannot run here."""
    written = with_absolute_folder(load(source, overrides))
    run_dir = written.run.path
    kept = _file_of_run(Path(source), overrides, written.run, folder)
    same = kept is not None and Path(source).is_file() and kept.samefile(source) and not overrides
    begun = written if same else None if kept is None else load(str(kept))
    check_writable(run_dir, "run.folder")
    RunFile(run_dir).refuse_if_alive()
    if folder != "fresh" and begun is None and (run_dir / CONFIG).exists():
        raise ConfigError(
            f"{run_dir} holds a run already: add --resume to continue it, --fresh to set it aside, or change "
            "run.name"
        )
    learner = written.learner
    if begun is not None:
        # Checkpoints hold one part per rank, and `run.resources: auto` may choose differently here.
        unset = {"workers", "zero_stage"} - learner.model_fields_set
        learner = learner.model_copy(update={key: getattr(begun.learner, key) for key in unset})
    target = run_target(written.model_copy(update={"learner": learner}))
    if begun is not None:
        # Results before and after training must have the same problems and sizes.
        results = [d for d in differences(begun, target.config) if d.startswith("evaluation.")]
        if changed := differences(begun, target.config, below=Scope.START) + results:
            raise ConfigError(
                f"{run_dir}: a resumed run must keep its configuration; changed: {'; '.join(changed)}"
            )
    return Resolved(target.config, run_dir, begun, require(target, console))


def _file_of_run(file: Path, overrides: Sequence[str], run: RunConfig, folder: Folder) -> Path | None:
    """The config.yaml of the run to resume; None for a new run. Raises ConfigError if there is none, or if
    `file` is that of a run folder that was moved or copied, and still names its old place."""
    kept = run.path / CONFIG
    if folder in ("new", "fresh") or (folder == "resume or new" and not kept.is_file()):
        return None
    here, there = file.resolve().parent, run.path
    of_a_run = file.name == CONFIG and (here / RUN).is_file()
    if of_a_run and here != there and not any(override.startswith("run.") for override in overrides):
        raise ConfigError(
            f"{file} names the run in {there}, not the one beside it: name this folder {run.name}, and add "
            "-s run.folder=FOLDER, the folder that holds it"
        )
    if not kept.is_file():
        raise ConfigError(f"{kept.parent}: no run to resume; start it without --resume")
    return kept


def run_local(source: str, overrides: Sequence[str] = (), folder: Folder = "new") -> None:
    """Train to the last step on this machine, evaluate before and after, and write the summary. Raises
    HoraError for errors that the user can fix."""
    console = Console()
    resolved = resolve(source, overrides, folder, console)
    config, run_dir = resolved.config, resolved.run_dir
    show(resolved.findings, SHOWN_BY_RUN, console)
    if resolved.begun is None:
        refuse_leftovers(config.run.name, config.queue, fresh=folder == "fresh")
        if (run_dir / CONFIG).exists():  # an older run is set aside
            numbered = (run_dir.with_name(f"{run_dir.name}.{i}") for i in range(1, 10_000))
            shutil.move(run_dir, next(path for path in numbered if not path.exists()))
    write_config(run_dir, config)
    again = f"hora run {quote(str(run_dir / CONFIG))} --resume"
    alerts = Alerts(config.run.name, config.telemetry.on_alert, run_dir, console)
    file, port = RunFile(run_dir, alerts.ended), port_of(config.telemetry)
    weights = model_digest(config.model.path)
    with file.recorded(config.run.name, again, console, http_port=port, weights=weights):
        with starting(config, run_dir, console, port, file=file) as application:
            run = TrainingRun(config, application.url, run_dir, console)
            _train(run, application, alerts)
            application.wait()  # a resumed run without remaining steps ends before a replica is loaded
            try:
                evaluate_run(run, config.learner.steps)
            except MissingWeights:
                # Over Gloo and NCCL a replica that started after the learner's end has no weights. A learner
                # without steps left publishes the last version and ends.
                from hora_rl.learner import launch

                launch.run(config, run.url, str(run_dir))
                evaluate_run(run, config.learner.steps)
            promote_last(run)
        summarise(run)


def evaluate_local(
    written: Config,
    names: Sequence[str],
    samples: int | None,
    ks: tuple[int, ...] | None,
    out: Path,
) -> None:
    """Evaluate the named benchmarks on model.path on this machine. The step recorded in the model folder, or
    0, labels the results."""
    console = Console()
    chosen = [benchmark.sized(samples, ks) for benchmark in find_benchmarks(names)]
    check_writable(out, "--out")
    config = on_processors(written, trains=False)
    require(Target(config, "eval"), console)
    step = step_of(config.model.adapter or config.model.path) or 0
    problems = [load_benchmark(config, benchmark, console) for benchmark in chosen]
    with (
        stopped_and_kept(f"every sample drawn is kept in {out}", console),
        stack(config, out.resolve(), console),
    ):
        for benchmark, its_problems in zip(chosen, problems, strict=True):
            result = sample(config, benchmark, its_problems, out.resolve(), step, console, version=0)
            write_result(out, result)
            console.print(Markdown(result_page(result)))


def _train(run: TrainingRun, application: Application, alerts: Alerts) -> None:
    from hora_rl.learner import launch

    config, url, stop = run.config, run.url, Stop()
    if _loads_alone(config.generator, config.learner):
        application.wait()
    else:
        # A loading engine keeps one core busy; starting the learner together with all other parts delays it.
        application.wait_for_all_but("generator")
    with (
        evaluating_first(run, application.wait, stop) as first,
        progress(config.run.name, config.learner.steps, url, run.console, alerts, first.run),
        reports_unplaced(run),
        evaluating(run, first.wait),
        closing(first),
    ):
        launch.run(config, url, str(run.folder), stop)


def _loads_alone(generator: GeneratorConfig, learner: LearnerConfig) -> bool:
    """Whether the learner waits until the engine has loaded: one that sleeps needs the whole card, and one
    that shares a card measures its free memory, unless the size of its KV cache is fixed."""
    shared = shares_a_card(generator, learner)
    return (shared and generator.kv_cache_gib is None) or generator.sleep != "none"
