"""The Redis of a one-machine run: the configured one, or an embedded one that ends with the run."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import redis

from hora_rl.common.config import QueueConfig
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect, hidden
from hora_rl.common.live.telemetry import SILENT_S
from hora_rl.common.processes import environment
from hora_rl.deploy.machine.record import URL, named_redis
from hora_rl.deploy.machine.redis_server import RedisServer


@contextmanager
def run_redis(queue: QueueConfig, run_dir: Path, *, named: bool) -> Iterator[str]:
    """Yield the URL of the configured Redis (if `named`) or of an embedded one. All parts read the URL from
    HORA_REDIS_URL."""
    url = named_redis(queue) if named else None
    with ExitStack() as stopping:
        if url is None:
            url = stopping.enter_context(RedisServer(run_dir / "redis")).url
        else:
            (run_dir / URL).unlink(missing_ok=True)  # from an earlier start with an embedded Redis
        with environment({"HORA_REDIS_URL": url}):
            yield url


def refuse_leftovers(run: str, queue: QueueConfig, *, fresh: bool) -> None:
    """Raise ConfigError if the configured Redis holds an older run of this name, which a new run would
    resume. With `fresh`, delete it; raise RunError if parts of it are still alive."""
    url = named_redis(queue)
    if url is None:
        return
    client = connect(url)
    found = list(client.scan_iter(match=Keys(run).pattern, count=10_000))
    if found and not fresh:
        raise ConfigError(
            f"the Redis at {hidden(url)} holds a run {run!r} already: --resume continues it in its folder, "
            "--fresh removes it from that Redis, or change run.name"
        )
    if found and _alive(client, run):
        raise RunError(f"parts of a run {run!r} still write to the Redis at {hidden(url)}: stop it first")
    for key in found:
        client.unlink(key)


def _alive(client: redis.Redis, run: str) -> bool:
    beats = cast(dict[bytes, bytes], client.hgetall(Keys(run).parts)).values()
    return any(time.time() - json.loads(beat)["seen"] < SILENT_S for beat in beats)
