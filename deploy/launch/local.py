"""A whole run on one machine: Redis, Ray, Serve and learner, in one foreground command that cleans up.

Order of shutdown, on success, failure and Ctrl-C alike; each step runs even if the one before failed:
  1. the learner (its trainer ends with the exception that led here), so that nothing trains any more;
  2. the Serve application: the coordinator starts no new shard, generators and verifiers end their processes;
  3. Ray, with every process that it started;
  4. Redis last: it holds the groups that no checkpoint contains yet.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from actors.coordinator.identity import MAY_CHANGE
from common.config import Config
from common.errors import ConfigError, RunError, any_error_as
from common.keys import Keys
from common.load import differences, load
from common.redis import connect
from deploy.launch.best import settle_last
from deploy.launch.evaluation import evaluate_benchmark, evaluate_run, load_benchmark
from deploy.launch.first_evaluation import evaluating_first
from deploy.launch.live_evaluation import evaluating
from deploy.launch.placement import telling_unplaced
from deploy.launch.ports import free_port
from deploy.launch.ray_node import LOGS_OF_RAY, watched_node
from deploy.launch.ray_token import keep_token_private
from deploy.launch.run_redis import refuse_leftovers, run_redis
from deploy.launch.signals import starting_ray
from deploy.launch.summary import summarise
from deploy.monitor.alerts import Alerts
from deploy.monitor.hosts import SERVE_CALLBACK
from deploy.monitor.pace import Pace
from deploy.monitor.progress import counting_replicas, progress, working
from deploy.monitor.terminal import LINE_PERIOD_S
from deploy.preflight.checks import SHOWN_BY_RUN, require, show
from deploy.preflight.findings import Target
from deploy.preflight.machine import check_writable
from deploy.preflight.memory import run_target
from deploy.runs.record import CONFIG, RunFile, issue_token, settled, write_config
from evaluation.benchmarks import find_benchmarks
from evaluation.model_weights import model_digest
from learner.origin import step_of

ENDPOINT = "endpoint"
LAST_LOOK_S = LINE_PERIOD_S + 1.0
"""Seconds for the slowest view to show the end of the run."""


def run_local(config: Config, *, resume: bool, fresh: bool) -> None:
    """Train `config` to its last step on this machine, evaluate before and after, print and write the
    summary.

    Raises HoraError with one line for everything the user can fix. After KeyboardInterrupt, `--resume`
    continues the run.
    """
    console = Console()
    target = run_target(settled(config))
    config = target.config
    run_dir = Path(config.run.folder) / config.run.name
    _refuse(run_dir, config, resume=resume, fresh=fresh)
    asked, config = config, with_port(config)
    show(require(replace(target, config=config), console), SHOWN_BY_RUN, console)
    if not resume:
        refuse_leftovers(config, fresh=fresh)
    _prepare(run_dir, asked, fresh=fresh and not resume)
    again = f"hora run {run_dir / CONFIG} --resume"
    alerts = Alerts(config, run_dir, console)
    file = RunFile(run_dir, alerts.ended)
    weights = model_digest(config.model.path)
    with file.recorded(
        config.run.name, again, console, http_port=config.telemetry.http_port, weights=weights
    ):
        with stack(config, run_dir, console, file=file) as url:
            pace = _train(config, url, run_dir, console, alerts)
            evaluate_run(config, url, run_dir, config.learner.steps, console)
            settle_last(config, run_dir, console)
            with working("showing the end to who watches", console=console):
                time.sleep(LAST_LOOK_S)
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
    require(Target(config, "eval"), console)
    label = (step_of(config.model.adapter or config.model.path) or 0) if step is None else step
    problems = [load_benchmark(config, benchmark, console) for benchmark in chosen]
    config = with_port(config)
    try:
        with stack(config, out.resolve(), console, train=False):
            for benchmark, its_problems in zip(chosen, problems, strict=True):
                evaluate_benchmark(config, benchmark, its_problems, out.resolve(), label, console)
    except (KeyboardInterrupt, SystemExit):
        console.print(
            f"\nstopped; every sample drawn is kept in {out}: the same command continues",
            markup=False,
            soft_wrap=True,
        )
        raise SystemExit(130) from None


def _refuse(run_dir: Path, config: Config, *, resume: bool, fresh: bool) -> None:
    """Raise when a run cannot start in this folder; changes nothing."""
    check_writable(run_dir, "run.folder")
    RunFile(run_dir).refuse_if_alive()
    exists = (run_dir / CONFIG).exists()
    if resume:
        if not exists:
            raise ConfigError(f"{run_dir}: no run to resume; start it without --resume")
        changed = differences(load(str(run_dir / CONFIG)), config)
        # Results before and after are compared, so they must have the same problems and sizes.
        changed = [c for c in changed if not c.startswith(MAY_CHANGE) or c.startswith("evaluation.")]
        if changed:
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


@contextmanager
def stack(
    config: Config, run_dir: Path, console: Console, *, train: bool = True, file: RunFile | None = None
) -> Iterator[str]:
    """Redis, Ray and the Serve application, up and healthy; yields the Redis URL. All of it ends with the
    block.

    Without `train` the application only samples and verifies. `file` records the reason when Ray's own
    processes die.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault(*SERVE_CALLBACK)
    for setting in LOGS_OF_RAY.items():
        os.environ.setdefault(*setting)
    import ray
    from ray import serve

    # Ray's own messages would break the progress display; its logs are in RUN/logs.
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)

    from deploy.app import APP, build_run, build_sampler, endpoint_of

    with ExitStack() as stopping, ExitStack() as exits:
        began = time.monotonic()
        with working("starting", 3 + _replicas(config, train) + config.serve.endpoint, console) as begin:
            begin("Redis")
            url = exits.enter_context(run_redis(config, run_dir, named=train))
            issue_token(url, config.run.name, run_dir)
            connect(url).delete(Keys(config.run.name).parts)  # of an earlier start: none of them is alive
            begin("Ray")
            _start_ray(config)
            exits.callback(ray.shutdown)
            exits.enter_context(watched_node(file))
            _link_logs(run_dir)
            begin("Serve")
            serve.start(
                http_options={"host": config.telemetry.http_host, "port": config.telemetry.http_port},
                logging_config={"log_level": "WARNING"},
            )
            exits.callback(serve.shutdown)
            application = build_run(config, drain=False) if train else build_sampler(config)
            with counting_replicas(APP, begin):
                serve.run(application, name=APP, route_prefix="/" if train else None, blocking=False)
            if config.serve.endpoint:
                begin("endpoint")
                serve.run(endpoint_of(config), name=ENDPOINT, route_prefix="/v1", blocking=False)
        page = (
            f"; live page: http://{config.telemetry.http_host}:{config.telemetry.http_port}" if train else ""
        )
        console.print(f"up in {time.monotonic() - began:.0f} s{page}; Ctrl-C stops everything", markup=False)
        # Registered last, so it runs first at the end.
        exits.callback(_show_stopping, stopping)
        yield url


def _show_stopping(exits: ExitStack) -> None:
    """Until `exits` is closed, a bar on standard error and silence on standard output, where Ray announces
    every part of its orderly shutdown as a failed task."""
    exits.enter_context(working("stopping"))
    exits.enter_context(redirect_stdout(io.StringIO()))


def _replicas(config: Config, train: bool) -> int:
    """Replicas of the application; its root, ingress or sampler, is one."""
    parts = [name for name in config.deployments if train or name != "coordinator"]
    return 1 + sum(getattr(config, name).replicas for name in parts)


def _start_ray(config: Config) -> None:
    import ray

    keep_token_private(make=True)

    def failed(reason: str) -> RunError:
        return RunError(
            f"Ray did not start on this machine ({reason}); if it is busy with other work, try again when it "
            "is less so"
        )

    with any_error_as(failed), starting_ray():  # plain Exception when Ray's processes take over 30 s
        ray.init(
            address="local",
            num_cpus=_cpus(config),
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=256 * 2**20,
        )


def _train(config: Config, url: str, run_dir: Path, console: Console, alerts: Alerts) -> Pace:
    from learner import launch

    with (
        evaluating_first(config, url, run_dir, console) as first,
        progress(config, url, console, alerts, first.run) as pace,
        telling_unplaced(config, url),
        evaluating(config, url, run_dir, console, first.wait),
        closing(first),
    ):
        launch.run(config, url, str(run_dir))
    return pace


def _cpus(config: Config) -> int:
    """CPUs that Ray may hand out: this machine's, but at least those that the parts reserve, because they
    share them."""
    parts = [getattr(config, name) for name in config.deployments]
    reserved = sum(part.replicas * part.cpus for part in parts) + config.learner.workers + 1
    reserved += config.serve.endpoint * config.serve.cpus
    return max(os.cpu_count() or 1, int(reserved + 1))


def _link_logs(run_dir: Path) -> None:
    """RUN/logs leads to Ray's log folder of this session."""
    import ray

    link = run_dir / "logs"
    with suppress(FileNotFoundError):
        link.unlink()
    session = ray._private.worker._global_node.get_session_dir_path()
    link.symlink_to(Path(session) / "logs")


__all__ = ["RunError", "run_local", "stack"]
