"""Start Redis, Ray and the Serve application on one machine, and stop them with the command.

`starting` yields once the application is deployed, so that a learner can start while generators load. `stack`
yields once everything is up.
"""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.console import say, working
from hora_rl.common.errors import RunError, any_error_as, root_cause
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.telemetry import ENGINE, living
from hora_rl.deploy.machine import mps
from hora_rl.deploy.machine.ray_start import (
    LOGS_OF_RAY,
    check_sockets,
    keep_token_private,
    on_loopback,
    port_of,
    session_folder,
    starting_ray,
    watched_node,
)
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.machine.run_redis import issue_token, run_redis
from hora_rl.deploy.machine.signals import undisturbed

if TYPE_CHECKING:
    from ray.serve import Application as ServeApplication
    from ray.serve.schema import ApplicationStatusOverview

LOOK_S = 0.5
PATIENCE = ("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "20")
"""Serve replaces a proxy that is not ready after three times this, and then cannot start. Its own 5 s are too
short on a busy machine: Ray gives its workers the lowest priority."""


@dataclass(slots=True)
class Application:
    """The deployed Serve application. Replicas may still be loading."""

    url: str
    """URL of Redis."""
    page: str
    """URL of the live page; empty for an application that only samples."""
    _console: Console
    _bar: ExitStack
    """Closing it ends the progress bar of the start."""
    _begin: Callable[..., None]
    _began: float
    _stages: Callable[[], set[str]] = set
    """Returns the stages of the engines that are still loading."""
    _shown: str = field(default="", init=False)
    _counted: int = field(default=0, init=False)
    is_up: bool = field(default=False, init=False)

    def wait(self, stopped: threading.Event | None = None) -> bool:
        """Wait until all replicas are up. False if `stopped` is set first. Raises RunError with the reason if
        a replica cannot start."""
        if self.is_up:
            return True
        if not self._are_up(stopped or threading.Event()):
            return False
        self._bar.close()
        self.is_up = True
        page = f"; live page: {self.page}" if self.page else ""
        seconds = time.monotonic() - self._began
        self._console.print(f"up in {seconds:.0f} s{page}; Ctrl-C stops everything", markup=False)
        return True

    def wait_for_all_but(self, name: str) -> None:
        """Wait until the replicas of all other deployments are up. Raises RunError like `wait`."""
        self._are_up(threading.Event(), name)

    def _are_up(self, stopped: threading.Event, but: str | None = None) -> bool:
        """Wait until the application, except deployment `but`, is up. False if `stopped` is set first."""
        from ray.serve.schema import ApplicationStatus, DeploymentStatus

        from hora_rl.deploy.app import APP

        while (overview := _look_at(APP, stopped)) is not None:
            self._count(overview)
            self._show_stages()
            if overview.status is ApplicationStatus.DEPLOY_FAILED:
                raise RunError(_reason(overview))
            others = [d.status for name, d in overview.deployments.items() if but and name != but]
            others_up = bool(others) and set(others) == {DeploymentStatus.HEALTHY}
            if overview.status is ApplicationStatus.RUNNING or others_up:
                return True
            if stopped.wait(LOOK_S):
                break
        return False

    def _count(self, overview: ApplicationStatusOverview) -> None:
        """Advance the progress bar by the replicas that came up."""
        states = [d.replica_states for d in overview.deployments.values()]
        up = 1 + sum(count for s in states for state, count in s.items() if state == "RUNNING")
        for _ in range(self._counted, up):
            self._begin("replicas")
        self._counted = max(self._counted, up)

    def _show_stages(self) -> None:
        shown = ", ".join(sorted(self._stages()))
        if shown and shown != self._shown:
            self._begin(f"replicas, an engine: {shown}", again=True)
        self._shown = shown


@contextmanager
def stack(config: Config, run_dir: Path, console: Console, *, train: bool = False) -> Iterator[str]:
    """Like `starting`, but wait until all replicas are healthy. Yields the Redis URL."""
    with starting(config, run_dir, console, port_of(config.telemetry), train=train) as application:
        application.wait()
        yield application.url


@contextmanager
def starting(
    config: Config,
    run_dir: Path,
    console: Console,
    port: int,
    *,
    train: bool = True,
    file: RunFile | None = None,
) -> Iterator[Application]:
    """Start Redis, Ray and Serve, which listens on `port`, and deploy the application. All of them end with
    the block. Without `train` it only samples and verifies. `file` records why a Ray process died."""
    _prepare_ray()
    from ray import serve

    from hora_rl.deploy.app import build_run, build_sampler

    with ExitStack() as stopping, ExitStack() as exits:
        began, bar = time.monotonic(), exits.enter_context(ExitStack())
        names = [name for name in config.deployments if train or name != "coordinator"]
        replicas = sum(getattr(config, name).replicas for name in names)
        parts = 4 + replicas  # with the root, ingress or sampler
        begin = bar.enter_context(working("starting", parts, console))
        begin("Redis")
        url = exits.enter_context(run_redis(config.queue, run_dir, named=train))
        issue_token(url, config.run.name, run_dir)
        client, keys = connect(url), Keys(config.run.name)
        client.delete(keys.parts)  # of an earlier start
        begin("Ray")
        if why := exits.enter_context(mps.sharing(wanted=mps.wanted_by(config.generator))):
            say(console, f"MPS is off ({why}): processes on one card take turns")
        # Parts share CPUs, so Ray must have as many as they reserve.
        exits.enter_context(_ray(max(os.cpu_count() or 1, int(config.reserved_cpus + 2))))
        exits.enter_context(watched_node(file))
        _link_logs(run_dir)
        begin("Serve")
        served = build_run(config, drain=False) if train else build_sampler(config)
        _deploy(served, "/" if train else None, config.telemetry.http_host, port)
        page = f"http://{config.telemetry.http_host}:{port}" if train else ""

        def stages() -> set[str]:
            return {beat["state"] for beat in living(client.hgetall(keys.parts), ENGINE, time.time())}

        application = Application(url, page, console, bar, begin, began, stages)
        # Replicas that are still loading cannot shut down in time; stopping Ray kills them.
        exits.callback(lambda: serve.shutdown() if application.is_up else None)
        # Registered last, so these run first.
        exits.callback(_show_stopping, stopping)
        exits.callback(bar.close)
        yield application


def _prepare_ray() -> None:
    """Set what Ray reads when it is imported, and quiet its messages, which would break the progress display;
    its logs are in RUN/logs."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    for setting in (PATIENCE, *LOGS_OF_RAY.items(), *on_loopback().items()):
        os.environ.setdefault(*setting)
    for name in ("ray", "ray.serve"):  # Serve warns of briefly busy replicas
        logging.getLogger(name).setLevel(logging.ERROR)


def _deploy(application: ServeApplication, route: str | None, host: str, port: int) -> None:
    """Start Serve and deploy, without waiting for replicas."""
    from ray import serve

    from hora_rl.deploy.app import APP

    with any_error_as(partial(_not_started, "Serve")):
        serve.start(http_options={"host": host, "port": port}, logging_config={"log_level": "WARNING"})
    serve.run_many(
        [serve.RunTarget(application, name=APP, route_prefix=route)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def _look_at(name: str, stopped: threading.Event) -> ApplicationStatusOverview | None:
    """The status of application `name`; None if Serve ends because `stopped` is set."""
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        return serve.status().applications[name]
    except (RayError, RayServeException, KeyError) as error:
        if stopped.is_set():
            return None
        raise RunError(f"Serve ended while application {name!r} started: {error}") from error


def _reason(overview: ApplicationStatusOverview) -> str:
    """Why replicas do not start, in one line."""
    failed = {name: d.message for name, d in overview.deployments.items() if "FAILED" in d.status.value}
    for name, message in failed.items():
        why = root_cause(message)
        return f"a replica of {name} does not start: {why} (its log is in logs/serve of the run's folder)"
    return f"the application does not start: {root_cause(overview.message)}"


def _show_stopping(exits: ExitStack) -> None:
    """Show a bar until `exits` is closed and ignore further signals. Hides standard output, where Ray reports
    its orderly shutdown as failed tasks."""
    exits.enter_context(undisturbed())
    exits.enter_context(working("stopping"))
    exits.enter_context(redirect_stdout(io.StringIO()))


@contextmanager
def _ray(cpus: int) -> Iterator[None]:
    import ray

    check_sockets()
    keep_token_private(make=True)
    # Ray raises a plain Exception if its start takes over 30 s.
    with any_error_as(partial(_not_started, "Ray")), starting_ray():
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=256 * 2**20,
        )
    try:
        yield
    finally:
        ray.shutdown()


def _not_started(part: str, reason: str) -> RunError:
    return RunError(
        f"{part} did not start on this machine ({reason.splitlines()[0]}); if it is busy with other work, "
        "try again when it is less so"
    )


def _link_logs(run_dir: Path) -> None:
    link = run_dir / "logs"
    with suppress(FileNotFoundError):
        link.unlink()
    link.symlink_to(session_folder() / "logs")
