"""`hora train`: run the learner on the Ray cluster of an application that `serve deploy` started."""

import time
from collections.abc import Callable
from shlex import quote

from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.config.base import Scope
from hora_rl.common.console import say, working
from hora_rl.common.errors import ConfigError, HoraError, RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import Redis, connect
from hora_rl.common.live.state import read_config, read_state
from hora_rl.common.live.telemetry import living
from hora_rl.common.load import differences
from hora_rl.deploy.app import APP
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.run_checks import SHOWN_BY_RUN, require, show
from hora_rl.deploy.launch.best import promote_last
from hora_rl.deploy.launch.evaluation import TrainingRun, evaluate_run
from hora_rl.deploy.launch.live_evaluation import evaluating
from hora_rl.deploy.launch.placement import reports_unplaced
from hora_rl.deploy.machine.ray_start import keep_token_private, starting_ray
from hora_rl.deploy.machine.record import CONFIG, RunFile, write_config
from hora_rl.deploy.machine.run_redis import redis_url
from hora_rl.deploy.monitor.alerts import Alerts
from hora_rl.deploy.monitor.progress import progress
from hora_rl.evaluation.results import model_digest
from hora_rl.learner.ray_private import job_of, refuse_beside_another

WAIT_S = 120.0
SETTLE_S = 60.0  # `serve deploy` returns before the old coordinator is gone


def train_on_cluster(config: Config) -> None:
    """Train until the last step, into an absolute run.folder. Raises HoraError if no application serves this
    run, or one with another configuration."""
    import ray

    console = Console()
    show(require(Target(config, "train"), console), SHOWN_BY_RUN, console)
    url = redis_url(config.queue)
    _attach(config.run.name, lambda: check_agreement(config, url))
    from hora_rl.learner import launch  # torch takes seconds, which a refusal need not wait for

    run_dir = config.run.path
    again = f"hora train {quote(str(run_dir / CONFIG))}"
    weights = model_digest(config.model.path)
    alerts = Alerts(config.run.name, config.telemetry.on_alert, run_dir, console)
    say(
        console,
        "Ctrl-C stops the learner; then `serve shutdown -y` ends the application, `ray stop` on each machine "
        "Ray, and Ctrl-C `hora redis`",
    )
    with RunFile(run_dir, alerts.ended).recorded(config.run.name, again, console, weights=weights):
        write_config(run_dir, config)
        run = TrainingRun(config, url, run_dir, console)
        try:
            with (
                progress(config.run.name, config.learner.steps, url, console, alerts),
                reports_unplaced(run),
                evaluating(run),
            ):
                launch.run(config, url, str(run_dir))
            if config.evaluation.every is not None:
                evaluate_run(run, config.learner.steps)
                promote_last(run)
        finally:
            ray.shutdown()
    say(console, f"done; model: {run_dir / 'model'}")


def _attach(run: str, check: Callable[[], None]) -> None:
    """Join the Ray cluster of this machine as the learner of `run`, and leave it if `check` raises."""
    import ray

    keep_token_private()
    with starting_ray():
        job = job_of(run)
        ray.init(address="auto", log_to_driver=False, configure_logging=False, job_config=job)
    try:
        refuse_beside_another(run)
        check()
    except BaseException:
        ray.shutdown()
        raise


def check_agreement(config: Config, url: str) -> None:
    """Wait for a coordinator that runs `config`. Raises RunError if none appears or the coordinator has
    failed, and ConfigError naming every key that differs."""
    redis, began, run = connect(url), time.monotonic(), config.run.name
    keys = Keys(run)

    def trouble() -> HoraError | None:
        theirs, error = redis.get(keys.config), read_state(redis, run).error
        if theirs and error:
            return RunError(f"the coordinator stopped: {error}")
        if not theirs or not _coordinated(redis, keys):
            return _Absent(
                f"no coordinator of run {run!r} writes to this Redis: `serve deploy` the same file first "
                f"(application {APP!r}), or check run.name and queue.url; `serve status` says why an "
                "application was not deployed"
            )
        if changed := differences(read_config(theirs, run), config, below=Scope.PART):
            return ConfigError(f"the coordinator runs another configuration: {'; '.join(changed)}")
        return None

    if _coordinated(redis, keys):
        redis.hdel(keys.state, "error")  # a failed coordinator restarts and reports again
    with working("waiting for the coordinator"):
        while (error := trouble()) is not None:
            if time.monotonic() > began + (WAIT_S if isinstance(error, _Absent) else SETTLE_S):
                raise error
            time.sleep(1.0)


class _Absent(RunError):
    """No coordinator is alive."""


def _coordinated(redis: Redis, keys: Keys) -> bool:
    """Whether a coordinator of this run is alive. Redis may still hold the state of an earlier one."""
    return bool(living(redis.hgetall(keys.parts), "coordinator", time.time()))
