"""`hora train`: run the learner on the Ray cluster of an application that `serve deploy` started. Reports
which parts of a run Ray cannot place, and what to lower."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from shlex import quote

import redis
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.config.base import Scope
from hora_rl.common.console import say, working
from hora_rl.common.errors import ConfigError, HoraError, RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import Redis, connect
from hora_rl.common.live.state import changed, read_config, read_state
from hora_rl.common.live.telemetry import living
from hora_rl.common.load import differences
from hora_rl.common.processes import background_thread
from hora_rl.deploy.app import APP
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.run_checks import SHOWN_BY_RUN, require, show
from hora_rl.deploy.launch.best import promote_last
from hora_rl.deploy.launch.evaluation import TrainingRun, evaluate_run
from hora_rl.deploy.launch.live_evaluation import evaluating
from hora_rl.deploy.machine.ray_start import keep_token_private, starting_ray
from hora_rl.deploy.machine.record import CONFIG, RunFile, write_config
from hora_rl.deploy.machine.run_redis import redis_url
from hora_rl.deploy.monitor.alerts import Alerts
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.terminal import progress
from hora_rl.evaluation.results import model_digest
from hora_rl.learner.ray_private import job_of, refuse_beside_another

EVERY_S = 5.0
WAIT_S = 120.0
SETTLE_S = 60.0  # `serve deploy` returns before the old coordinator is gone


@dataclass(frozen=True, slots=True)
class Share:
    """One kind of part: numbers wanted and up, and the CPUs and GPUs that Ray reserves for each."""

    name: str
    wanted: int
    up: int
    each: Mapping[str, float]

    def needs(self, resource: str) -> float:
        return self.wanted * self.each.get(resource, 0.0)


def unplaced(shares: Sequence[Share], have: Mapping[str, float]) -> str:
    """A message naming the parts that wait, if all parts together need more than the cluster has; else
    empty."""
    for resource in ("CPU", "GPU"):
        need = sum(share.needs(resource) for share in shares)
        waiting = [s for s in shares if s.up < s.wanted and s.needs(resource)]
        if need > have.get(resource, 0.0) and waiting:
            missing = ", ".join(f"{s.wanted - s.up} of {s.wanted} {s.name}" for s in waiting)
            terms = " + ".join(
                f"{s.wanted} {s.name} · {s.each[resource]:g}" for s in shares if s.needs(resource)
            )
            return (
                f"no place for {missing}: {need:g} {resource}s are reserved = {terms}, the cluster has "
                f"{have.get(resource, 0.0):g}; lower replicas or what each reserves, or join more machines"
            )
    return ""


def reports_unplaced(run: TrainingRun) -> AbstractContextManager[None]:
    """Update the `unplaced` field of the run's state while the block runs, and clear it afterwards. Needs an
    attached Ray."""

    def report(done: threading.Event) -> None:
        import ray
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        client, state = connect(run.url), Keys(run.config.run.name).state
        reported: str | None = None  # an earlier start may have set the field
        have, all_up = dict[str, float](), False
        while not done.wait(EVERY_S):
            # A failed check, for example before the coordinator is up, is repeated.
            with suppress(RayError, RayServeException, redis.exceptions.RedisError, RunError):
                if not all_up:  # while Ray's node ends, this call can end the process without a word
                    have = ray.cluster_resources()
                shares = _shares(run, client, have)
                all_up, now = all(s.up >= s.wanted for s in shares), unplaced(shares, have)
                if now != reported:
                    client.hset(state, mapping=changed(unplaced=now))
                    reported = now
        with suppress(redis.exceptions.RedisError):
            client.hset(state, mapping=changed(unplaced=""))

    return background_thread("placement", report, EVERY_S)


def _shares(run: TrainingRun, client: redis.Redis, have: Mapping[str, float]) -> list[Share]:
    from ray import serve

    config = run.config
    on_gpus = have.get("GPU", 0) > 0
    generator, application = config.generator, serve.status().applications.get(APP)
    gpus = generator.tensor_parallel * on_gpus if generator.gpus is None else generator.gpus
    shares = []
    for name in config.deployments:
        deployment = None if application is None else application.deployments.get(name)
        states = {} if deployment is None else deployment.replica_states
        up, stopping = states.get("RUNNING", 0), states.get("STOPPING", 0)
        each = {"CPU": config.cpus(name), "GPU": gpus if name == "generator" else 0.0}
        shares.append(Share(name, sum(states.values()) - stopping, up, each))
    alive = any(p.alive for p in read_run(client, config.run.name).of("learner"))
    ranks = config.learner.workers
    each = {"CPU": 1.0, "GPU": float(on_gpus) * (config.learner.gpus or 1.0)}
    return [*shares, Share("learner rank", ranks, ranks * alive, each)]


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
    with ExitStack() as leaving:
        leaving.callback(ray.shutdown)
        refuse_beside_another(run)
        check()
        leaving.pop_all()


def check_agreement(config: Config, url: str) -> None:
    """Wait for a coordinator that runs `config`. Raises RunError if none appears or the coordinator has
    failed, and ConfigError naming every key that differs."""
    redis, began, run = connect(url), time.monotonic(), config.run.name
    keys = Keys(run)

    def trouble() -> tuple[HoraError, float] | None:
        """What is wrong, and the seconds that it may last."""
        theirs, error = redis.get(keys.config), read_state(redis, run).error
        if theirs and error:
            return RunError(f"the coordinator stopped: {error}"), SETTLE_S
        if not theirs or not _coordinated(redis, keys):
            absent = RunError(
                f"no coordinator of run {run!r} writes to this Redis: `serve deploy` the same file first "
                f"(application {APP!r}), or check run.name and queue.url; `serve status` says why an "
                "application was not deployed"
            )
            return absent, WAIT_S
        if changed := differences(read_config(theirs, run), config, below=Scope.PART):
            return ConfigError(f"the coordinator runs another configuration: {'; '.join(changed)}"), SETTLE_S
        return None

    if _coordinated(redis, keys):
        redis.hdel(keys.state, "error")  # a failed coordinator restarts and reports again
    with working("waiting for the coordinator"):
        while (wrong := trouble()) is not None:
            error, limit_s = wrong
            if time.monotonic() > began + limit_s:
                raise error
            time.sleep(1.0)


def _coordinated(redis: Redis, keys: Keys) -> bool:
    """Whether a coordinator of this run is alive. Redis may still hold the state of an earlier one."""
    return bool(living(redis.hgetall(keys.parts), "coordinator", time.time()))
