"""The Serve application: `import_path: hora_rl.deploy.app:build`, arguments = one experiment's configuration.

    ingress ─► Redis (reads, pause and resume)
    coordinator ─► generator replicas, verifier replicas, Redis
    coordinator ─► environment replicas ─► generator replicas, for episodes

Changes under `deployments:` (num_replicas, autoscaling_config) keep running replicas; changed arguments
restart them.
"""

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from rich.console import Console

from hora_rl.actors.coordinator.deployment import Coordinator
from hora_rl.actors.environment.deployment import Environment
from hora_rl.actors.generator.router import RESERVED, BalanceRouter
from hora_rl.actors.verifier.deployment import Verifier
from hora_rl.common.config import LIGHT_CPUS, Config
from hora_rl.common.config.environment import EPISODES
from hora_rl.common.load import from_args
from hora_rl.common.processes import KEEP_FREED_MEMORY
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.run_checks import NAMES, require
from hora_rl.deploy.machine.run_redis import redis_url
from hora_rl.deploy.monitor.prometheus import Exporter
from hora_rl.deploy.monitor.web import create_app
from hora_rl.learner.ray_private import refuse_beside_another

APP = "hora"
LEAVING_S = 10.0
ROUTER = f"{BalanceRouter.__module__}.{BalanceRouter.__name__}"


@serve.ingress()
class Ingress:
    """The page and endpoints of `deploy.monitor.web`, and Prometheus metrics. `config` is a dumped `Config`.
    `coordinator` only makes the other deployments part of the application: all data come from Redis."""

    def __init__(
        self, config: dict[str, object], redis_url: str, coordinator: DeploymentHandle | None = None
    ) -> None:
        checked = Config.model_validate(config)
        self._run, self._redis_url = checked.run.name, redis_url
        self._names = (checked.telemetry.http_host, *checked.telemetry.http_names)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self._redis_url, self._run, observer=Exporter(), names=self._names)


def build(args: dict[str, object]) -> Application:
    """Build the application of one run. Raises ConfigError if the configuration is invalid or another run
    trains on this cluster."""
    config = from_args(args)
    if ray.is_initialized():
        refuse_beside_another(config.run.name)
    require(Target(config, "train"), Console(stderr=True), NAMES)
    return build_run(config, drain=True)


def build_run(config: Config, *, drain: bool) -> Application:
    """Build the application of a checked configuration. With `drain`, a generator that is scaled down first
    completes its requests, within a time limit."""
    arguments = config.model_dump(mode="json"), redis_url(config.queue)
    environment = {"env_vars": KEEP_FREED_MEMORY}
    coordinator = _deployment(
        Coordinator,
        "coordinator",
        num_replicas=config.coordinator.replicas,
        ray_actor_options={"num_cpus": LIGHT_CPUS, "runtime_env": environment},
        health_check_period_s=2.0,
        graceful_shutdown_timeout_s=5.0,
        graceful_shutdown_wait_loop_s=0.5,
    )
    # Each open page holds a stream; Serve's default of five requests would block further clients.
    options = {"num_cpus": 0}
    ingress = _deployment(Ingress, "ingress", ray_actor_options=options, max_ongoing_requests=1000)
    return ingress.bind(*arguments, coordinator.bind(*arguments, *_samplers(config, arguments, drain=drain)))


class Sampler:
    """Root deployment of an application that only samples and verifies."""

    def __init__(self, policy: DeploymentHandle, verifier: DeploymentHandle) -> None:
        self._parts = (policy, verifier)


def build_sampler(config: Config) -> Application:
    """Build generators, environments and verifiers without a coordinator, for evaluation."""
    root = _deployment(Sampler, "sampler", ray_actor_options={"num_cpus": 0})
    arguments = config.model_dump(mode="json"), redis_url(config.queue)
    return root.bind(*_samplers(config, arguments, drain=False))


def _samplers(
    config: Config, arguments: tuple[dict[str, object], str], *, drain: bool
) -> tuple[Application, Application]:
    """The deployment `config.policy`, which is generators or an environment with its generators, and the
    verifiers. `arguments` are their first: configuration and Redis URL."""
    # Only the replicas import vLLM, so the rest of the application starts without it.
    from hora_rl.actors.generator.deployment import Generator

    rollout, generator = config.rollout, config.generator
    has_gpu = ray.is_initialized() and ray.cluster_resources().get("GPU", 0) > 0
    gpus = generator.gpus if generator.gpus is not None else float(has_gpu) * generator.tensor_parallel
    drained_s = rollout.time_limit_s + config.weights.update_limit_s
    policy = _deployment(
        Generator,
        "generator",
        num_replicas=generator.replicas,
        max_ongoing_requests=generator.max_requests + RESERVED,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        ray_actor_options={"num_cpus": generator.cpus, "num_gpus": gpus},
        health_check_period_s=2.0,
        graceful_shutdown_timeout_s=drained_s if drain else LEAVING_S,
    ).bind(*arguments)
    if config.environment.path is not None:
        policy = _deployment(
            Environment,
            "environment",
            num_replicas=config.environment.replicas,
            max_ongoing_requests=EPISODES,
            ray_actor_options={"num_cpus": LIGHT_CPUS},
            health_check_period_s=2.0,
        ).bind(*arguments, policy)
    verifier = _deployment(
        Verifier,
        "verifier",
        num_replicas=config.verifier.replicas,
        max_ongoing_requests=256,
        ray_actor_options={"num_cpus": config.verifier.cpus},
        health_check_period_s=5.0,
    )
    return policy, verifier.bind(*arguments)


def _deployment(served: type, name: str, **options: object) -> serve.Deployment:
    """One deployment, without Serve's access log, which would grow with the run."""
    options = {"graceful_shutdown_timeout_s": LEAVING_S, "graceful_shutdown_wait_loop_s": 1.0, **options}
    return serve.deployment(served, name=name, logging_config={"enable_access_log": False}, **options)
