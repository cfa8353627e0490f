"""`hora run`: Redis, Ray, Serve and learner on one machine, in one foreground command that cleans up.

Order of shutdown after success, failure and Ctrl-C; each step runs even if the previous one failed:
  1. the learner, so that training stops;
  2. the Serve application: no new shards, generators and verifiers end their processes;
  3. Ray, with every process that it started;
  4. Redis last, because it holds the groups that no checkpoint contains yet.
"""

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shlex import quote

from rich.console import Console

from hora_rl.common.config import Config, LearnerConfig
from hora_rl.common.config.base import Scope
from hora_rl.common.errors import ConfigError, MissingWeights
from hora_rl.common.load import differences, load
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.machine import check_writable
from hora_rl.deploy.checks.memory import run_target
from hora_rl.deploy.checks.processors import on_processors
from hora_rl.deploy.checks.resources import shares_a_card
from hora_rl.deploy.checks.run_checks import SHOWN_BY_RUN, require, show
from hora_rl.deploy.launch.best import promote_last
from hora_rl.deploy.launch.evaluation import (
    TrainingRun,
    evaluate_benchmark,
    evaluate_run,
    load_benchmark,
    stopped_and_kept,
)
from hora_rl.deploy.launch.first_evaluation import evaluating_first
from hora_rl.deploy.launch.live_evaluation import evaluating
from hora_rl.deploy.launch.placement import reports_unplaced
from hora_rl.deploy.launch.run_redis import refuse_leftovers
from hora_rl.deploy.launch.stack import Application, stack, starting
from hora_rl.deploy.launch.summary import summarise
from hora_rl.deploy.machine.ports import free_port
from hora_rl.deploy.machine.record import CONFIG, RunFile, has_run, with_absolute_folder, write_config
from hora_rl.deploy.monitor.alerts import Alerts
from hora_rl.deploy.monitor.progress import Pace, progress
from hora_rl.evaluation.benchmarks import find_benchmarks
from hora_rl.evaluation.model_weights import model_digest
from hora_rl.learner.checkpoints.origin import step_of


def run_local(config: Config, *, resume: bool, fresh: bool) -> None:
    """Train `config` to its last step on this machine, evaluate before and after, and write the summary.

    Raises HoraError with one line for errors that the user can fix. After KeyboardInterrupt, `--resume`
    continues the run.
    """
    console = Console()
    config = with_absolute_folder(config)
    run_dir = config.run.path
    if resume and has_run(run_dir):
        config = config.model_copy(update={"learner": _as_begun(config.learner, run_dir)})
    target = run_target(config)
    config = target.config
    _refuse(run_dir, config, resume=resume, fresh=fresh)
    asked, config = config, with_port(config)
    show(require(replace(target, config=config), console), SHOWN_BY_RUN, console)
    if not resume:
        refuse_leftovers(config.run.name, config.queue, fresh=fresh)
    _prepare(run_dir, asked, fresh=fresh and not resume)
    again = f"hora run {quote(str(run_dir / CONFIG))} --resume"
    alerts = Alerts(config.run.name, config.telemetry.on_alert, run_dir, console)
    file, port = RunFile(run_dir, alerts.ended), config.telemetry.http_port
    weights = model_digest(config.model.path)
    with file.recorded(config.run.name, again, console, http_port=port, weights=weights):
        with starting(config, run_dir, console, file=file) as application:
            run = TrainingRun(config, application.url, run_dir, console)
            pace = _train(run, application, alerts)
            application.wait()  # a resumed run without remaining steps ends before a replica is loaded
            _evaluate_last(run)
            promote_last(run)
        summarise(run, pace)


def evaluate_local(
    config: Config,
    names: Sequence[str],
    samples: int | None,
    ks: tuple[int, ...] | None,
    out: Path,
    step: int | None = None,
) -> None:
    """`hora eval`: evaluate the named benchmarks on config.model.path on this machine.

    `step` labels the results; by default the step recorded in the model folder, or 0.
    """
    console = Console()
    chosen = [benchmark.sized(samples, ks) for benchmark in find_benchmarks(names)]
    check_writable(out, "--out")
    config = on_processors(config, trains=False)
    require(Target(config, "eval"), console)
    label = (step_of(config.model.adapter or config.model.path) or 0) if step is None else step
    problems = [load_benchmark(config, benchmark, console) for benchmark in chosen]
    config = with_port(config)
    with (
        stopped_and_kept(f"every sample drawn is kept in {out}", console),
        stack(config, out.resolve(), console, train=False),
    ):
        for benchmark, its_problems in zip(chosen, problems, strict=True):
            evaluate_benchmark(config, benchmark, its_problems, out.resolve(), label, console)


def _as_begun(learner: LearnerConfig, run_dir: Path) -> LearnerConfig:
    """Set unset `workers` and `zero_stage` to those of the run: its checkpoints hold one part per rank, and
    `run.resources: auto` may choose differently here."""
    begun, written = load(str(run_dir / CONFIG)).learner, learner.model_fields_set
    kept = {key: getattr(begun, key) for key in ("workers", "zero_stage") if key not in written}
    return learner.model_copy(update=kept)


def _refuse(run_dir: Path, config: Config, *, resume: bool, fresh: bool) -> None:
    """Raise HoraError if a run cannot start in this folder. Changes nothing."""
    check_writable(run_dir, "run.folder")
    RunFile(run_dir).refuse_if_alive()
    exists = (run_dir / CONFIG).exists()
    if resume:
        if not exists:
            raise ConfigError(f"{run_dir}: no run to resume; start it without --resume")
        begun = load(str(run_dir / CONFIG))
        # Results before and after training must have the same problems and sizes.
        results = [d for d in differences(begun, config) if d.startswith("evaluation.")]
        if changed := differences(begun, config, below=Scope.START) + results:
            raise ConfigError(
                f"{run_dir}: a resumed run must keep its configuration; changed: {'; '.join(changed)}"
            )
    elif exists and not fresh:
        raise ConfigError(
            f"{run_dir} holds a run already: add --resume to continue it, --fresh to set it aside, or change "
            "run.name"
        )


def _prepare(run_dir: Path, config: Config, *, fresh: bool) -> None:
    """Create the run folder or reuse the existing one. `fresh` renames the existing one first."""
    if fresh and (run_dir / CONFIG).exists():
        aside = next(
            p for i in range(1, 10_000) if not (p := run_dir.with_name(f"{run_dir.name}.{i}")).exists()
        )
        shutil.move(run_dir, aside)
    write_config(run_dir, config)


def with_port(config: Config) -> Config:
    """Replace HTTP port 0 by a free port."""
    if config.telemetry.http_port:
        return config
    port = free_port(config.telemetry.http_host)
    return config.model_copy(update={"telemetry": config.telemetry.model_copy(update={"http_port": port})})


def _evaluate_last(run: TrainingRun) -> None:
    from hora_rl.learner import launch

    config = run.config
    try:
        evaluate_run(run, config.learner.steps)
    except MissingWeights:
        # Over Gloo and NCCL a replica that started after the learner's end has no weights. A learner without
        # steps left publishes the last version and ends.
        launch.run(config, run.url, str(run.folder))
        evaluate_run(run, config.learner.steps)


def _train(run: TrainingRun, application: Application, alerts: Alerts) -> Pace:
    from hora_rl.learner import launch

    config, url = run.config, run.url
    if _loads_alone(config):
        application.wait()
    else:
        # A loading engine keeps one core busy; starting the learner together with all other parts delays it.
        application.wait_for_all_but("generator")
    with (
        evaluating_first(run, application.wait) as first,
        progress(config.run.name, config.learner.steps, url, run.console, alerts, first.run) as pace,
        reports_unplaced(run),
        evaluating(run, first.wait),
        closing(first),
    ):
        launch.run(config, url, str(run.folder))
    return pace


def _loads_alone(config: Config) -> bool:
    """Whether the learner waits until the engine has loaded: one that sleeps needs the whole card, and one
    that shares a card measures its free memory, unless the size of its KV cache is fixed."""
    generator = config.generator
    measures = shares_a_card(generator, config.learner) and generator.kv_cache_gib is None
    return measures or generator.sleep != "none"
