"""A whole run on one machine: Redis, Ray, Serve and learner, in one foreground command that cleans up.

Order of shutdown, on success, failure and Ctrl-C alike; each step runs even if the one before failed:
  1. the learner (its trainer ends with the exception that led here), so that nothing trains any more;
  2. the Serve application: the coordinator starts no new shard, generators and verifiers end their processes;
  3. Ray, with every process that it started;
  4. Redis last: it holds the groups that no checkpoint contains yet.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from hora_rl.common.config import Config, Learner
from hora_rl.common.config.base import Scope
from hora_rl.common.console import working
from hora_rl.common.errors import ConfigError
from hora_rl.common.live.redis import connect
from hora_rl.common.load import differences, load
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.machine import check_writable
from hora_rl.deploy.checks.memory import run_target
from hora_rl.deploy.checks.processors import on_processors
from hora_rl.deploy.checks.resources import shares_a_card
from hora_rl.deploy.checks.run_checks import SHOWN_BY_RUN, require, show
from hora_rl.deploy.launch.best import promote_last
from hora_rl.deploy.launch.evaluation import (
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
from hora_rl.deploy.monitor.pace import Pace
from hora_rl.deploy.monitor.presence import is_watched
from hora_rl.deploy.monitor.progress import progress
from hora_rl.deploy.monitor.terminal import LINE_PERIOD_S
from hora_rl.evaluation.benchmarks import find_benchmarks
from hora_rl.evaluation.model_weights import model_digest
from hora_rl.learner.origin import step_of

LAST_LOOK_S = LINE_PERIOD_S + 1.0
"""Seconds for the slowest view to show the end of the run."""


def run_local(config: Config, *, resume: bool, fresh: bool) -> None:
    """Train `config` to its last step on this machine, evaluate before and after, print and write the
    summary.

    Raises HoraError with one line for everything the user can fix. After KeyboardInterrupt, `--resume`
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
    again = f"hora run {run_dir / CONFIG} --resume"
    alerts = Alerts(config.run.name, config.telemetry.on_alert, run_dir, console)
    file, port = RunFile(run_dir, alerts.ended), config.telemetry.http_port
    weights = model_digest(config.model.path)
    with file.recorded(config.run.name, again, console, http_port=port, weights=weights):
        with starting(config, run_dir, console, file=file) as application:
            pace = _train(application, run_dir, console, alerts)
            application.wait()  # a resumed run without a step left trains faster than a replica loads
            evaluate_run(config, application.url, run_dir, config.learner.steps, console)
            promote_last(config.learner, config.evaluation, run_dir, console)
            _show_end(config.run.name, application.url, console)
        summarise(config, run_dir, pace, console)


def evaluate_local(
    config: Config,
    names: Sequence[str],
    samples: int | None,
    ks: tuple[int, ...] | None,
    out: Path,
    step: int | None = None,
) -> None:
    """`hora eval`: the named benchmarks on config.model.path, with generators and verifiers of this machine.

    Results are labelled with `step`; by default with the step that the model folder records, 0 without one.
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


def _show_end(run: str, url: str, console: Console) -> None:
    """Keep the server up so that viewers get the final snapshot."""
    if is_watched(connect(url), run):
        with working("showing the end to viewers", console=console):
            time.sleep(LAST_LOOK_S)


def _as_begun(learner: Learner, run_dir: Path) -> Learner:
    """With the run's own ranks and ZeRO stage, where nobody wrote others: `run.resources: auto` may choose
    others on this machine, and checkpoints hold the parts of as many ranks as there were."""
    begun, written = load(str(run_dir / CONFIG)).learner, learner.model_fields_set
    kept = {key: getattr(begun, key) for key in ("workers", "zero_stage") if key not in written}
    return learner.model_copy(update=kept)


def _refuse(run_dir: Path, config: Config, *, resume: bool, fresh: bool) -> None:
    """Raise when a run cannot start in this folder; changes nothing."""
    check_writable(run_dir, "run.folder")
    RunFile(run_dir).refuse_if_alive()
    exists = (run_dir / CONFIG).exists()
    if resume:
        if not exists:
            raise ConfigError(f"{run_dir}: no run to resume; start it without --resume")
        begun = load(str(run_dir / CONFIG))
        # Results before and after are compared, so they must have the same problems and sizes.
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
    """Create the run folder, or continue the existing one; with `fresh` that one is set aside."""
    if fresh and (run_dir / CONFIG).exists():
        aside = next(
            p for i in range(1, 10_000) if not (p := run_dir.with_name(f"{run_dir.name}.{i}")).exists()
        )
        shutil.move(run_dir, aside)
    write_config(run_dir, config)


def with_port(config: Config) -> Config:
    """With a free port instead of 0."""
    if config.telemetry.http_port:
        return config
    port = free_port(config.telemetry.http_host)
    return config.model_copy(update={"telemetry": config.telemetry.model_copy(update={"http_port": port})})


def _train(application: Application, run_dir: Path, console: Console, alerts: Alerts) -> Pace:
    from hora_rl.learner import launch

    config, url = application.config, application.url
    if shares_a_card(config.generator, config.learner) or config.generator.sleep != "none":
        application.wait()  # an engine that loads measures what is free of its card
    else:
        # While an engine loads it keeps one core busy. The learner's processes beside all the others' at once
        # would only delay the engine.
        application.wait_for_all_but("generator")
    with (
        evaluating_first(config, url, run_dir, console, application.wait) as first,
        progress(config.run.name, config.learner.steps, url, console, alerts, first.run) as pace,
        reports_unplaced(config, url),
        evaluating(config, url, run_dir, console, first.wait),
        closing(first),
    ):
        launch.run(config, url, str(run_dir))
    return pace
