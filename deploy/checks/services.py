"""Checks of Redis with its persistence, and of a Ray cluster."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import cast

from redis.exceptions import ResponseError

from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect, hidden
from hora_rl.common.load import ROOT
from hora_rl.deploy.checks.findings import Finding, Target, must, ok, should
from hora_rl.deploy.checks.machine import enough_gpus
from hora_rl.deploy.machine.ray_start import open_to_others, starting_ray, token_file
from hora_rl.deploy.machine.redis_server import executable
from hora_rl.deploy.machine.run_redis import named_redis, redis_url

PODS_S, POLL_S = 300.0, 2.0


def redis_server(target: Target) -> Iterator[Finding]:
    """The configured Redis, or the binary that `hora run` would start."""
    if not target.on_cluster and (not target.trains or named_redis(target.config.queue) is None):
        yield ok("Redis", f"the run starts its own: {executable()}")
        return
    url = redis_url(target.config.queue)
    client = connect(url, retries=0)
    info = cast(Mapping[str, str | int], client.info())
    version = str(info["redis_version"])
    recent = tuple(int(n) for n in version.split(".")[:2]) >= (6, 2)
    says = f"{hidden(url)}, version {version}"
    yield must(recent, "Redis", says, "streams need 6.2: install a newer Redis")
    appends, synced = "yes" if info.get("aof_enabled") else "no", "hidden"
    with suppress(ResponseError):  # managed servers refuse CONFIG
        settings = cast(dict[str, str], client.config_get("appendfsync"))
        synced = settings.get("appendfsync", synced)
    says = f"appendonly is {appends}, appendfsync is {synced}"
    fix = "a failure may lose groups: redis-cli CONFIG SET appendonly yes, appendfsync always; redis.conf too"
    yield should(appends == "yes" and synced in ("always", "hidden"), "Redis persistence", says, fix)
    policy = str(info.get("maxmemory_policy")) if info.get("maxmemory") else "noeviction"
    fix = "Redis would drop the run's data: CONFIG SET maxmemory-policy noeviction"
    yield must(policy == "noeviction", "Redis eviction", policy, fix)


def ray_token(target: Target) -> Iterator[Finding]:
    """Whether only the owner can read Ray's token, which allows starting programs in the cluster."""
    file = token_file()
    if file.is_file():
        exposed = open_to_others(file)
        says = f"{file} can be read by {'others' if exposed else 'its owner alone'}"
        yield should(not exposed, "Ray's token", says, f"chmod 600 {file}")


def ray_cluster(target: Target) -> Iterator[Finding]:
    """The cluster of `hora train`: its GPUs and CPUs, and whether its workers import the same code."""
    if not target.on_cluster:
        return
    import ray

    try:
        with starting_ray():
            ray.init(address="auto", log_to_driver=False, configure_logging=False, logging_level="ERROR")
    except ConnectionError:
        raise RunError(
            "no Ray cluster answers here: start one with `ray start --head`, or use `hora run`"
        ) from None
    try:
        # On Kubernetes `hora train` starts together with the pods, which join one by one.
        waits = "KUBERNETES_SERVICE_HOST" in os.environ and target.http is None
        resources = grown(target, ray.cluster_resources, PODS_S if waits else 0.0)
        nodes = len([n for n in ray.nodes() if n["Alive"]])
        yield ok("Ray", f"{nodes} nodes, {resources.get('GPU', 0):g} GPUs, {resources.get('CPU', 0):g} CPUs")
        yield from placeable(target, resources)
        yield _same_code()
    finally:
        ray.shutdown()


def grown(target: Target, read: Callable[[], Mapping[str, float]], limit_s: float) -> Mapping[str, float]:
    """Poll `read` until all parts fit or `limit_s` seconds have passed. Returns the last resources."""
    deadline = time.monotonic() + limit_s
    while True:
        resources = read()
        enough = all(f.level == "ok" for f in placeable(target, resources))
        if enough or time.monotonic() >= deadline:
            return resources
        time.sleep(min(POLL_S, limit_s / 10))


def placeable(target: Target, resources: Mapping[str, float]) -> Iterator[Finding]:
    yield enough_gpus(target, resources.get("GPU", 0), "the cluster has")
    config, have = target.config, resources.get("CPU", 0)
    parts = [(name, getattr(config, name)) for name in config.deployments]
    need = config.reserved_cpus
    terms = "".join(f"{name}.replicas {p.replicas} · CPUs {config.cpus(name):g} + " for name, p in parts)
    terms += f"learner.workers {config.learner.workers}"
    says = f"the cluster has {have:g}, the configuration reserves {need:g} = {terms}"
    fix = "lower these keys (replicas under `deployments:` of a Serve file), or join more machines"
    yield must(need <= have, "CPUs", says, fix)


def _same_code() -> Finding:
    import ray
    from ray.exceptions import RayError

    def origin() -> str:
        from hora_rl.common import load

        return str(load.ROOT)

    try:
        folder = ray.get(ray.remote(num_cpus=0)(origin).remote(), timeout=60)
    except RayError as error:
        folder = f"nowhere ({type(error).__name__})"
    fix = f"not {ROOT}: install hora on every node, and call `ray start` in a folder without a `hora_rl`"
    return must(folder == str(ROOT), "Ray workers", f"import hora_rl from {folder}", fix)
