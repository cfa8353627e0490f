"""The Redis of a run: the configured one, or an embedded one that ends with the run."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

from hora_rl.common.config import Config, QueueConfig
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.files import kept_secret
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect, hidden
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import SILENT_S
from hora_rl.common.load import load
from hora_rl.common.processes import environment
from hora_rl.deploy.machine.record import CONFIG, URL, RunFile
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
    stored = list(client.scan_iter(match=Keys(run).pattern, count=10_000))
    if stored and not fresh:
        raise ConfigError(
            f"the Redis at {hidden(url)} holds a run {run!r} already: --resume continues it in its folder, "
            "--fresh removes it from that Redis, or change run.name"
        )
    beats = cast(dict[bytes, bytes], client.hgetall(Keys(run).parts)).values()
    if any(time.time() - json.loads(beat)["seen"] < SILENT_S for beat in beats):
        raise RunError(f"parts of a run {run!r} still write to the Redis at {hidden(url)}: stop it first")
    for key in stored:
        client.unlink(key)


def issue_token(redis_url: str, run: str, run_dir: Path | str) -> str:
    """The token for pause and resume, reused from an earlier start. Only the owner may read RUN/token; Redis
    stores the SHA-256."""
    token = kept_secret(Path(run_dir) / "token", 24)
    digest = hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()
    connect(redis_url).hset(Keys(run).state, mapping=changed(token_sha256=digest))
    return token


def named_redis(queue: QueueConfig) -> str | None:
    """The configured Redis: HORA_REDIS_URL, which keeps a password out of files, or queue.url."""
    return os.environ.get("HORA_REDIS_URL") or queue.url


def redis_url(queue: QueueConfig) -> str:
    """The configured Redis. Raises ConfigError without one."""
    url = named_redis(queue)
    if not url:
        raise ConfigError(
            "queue.url is not set: name a Redis (redis://host:6379) in the file or in HORA_REDIS_URL; `hora "
            "run` starts its own"
        )
    return url


def configured(source: str, overrides: Sequence[str] = ()) -> Config | None:
    """The configuration `source`, or that of the run folder `source`; None for a folder without one."""
    if not Path(source).is_dir():
        return load(source, overrides)
    file = Path(source) / CONFIG
    return load(str(file), overrides) if file.exists() else None


def redis_of(source: str, overrides: Sequence[str] = ()) -> tuple[str, str]:
    """(Redis URL, run name) of a run folder or a configuration.

    A live `hora run` uses only its embedded Redis. Otherwise HORA_REDIS_URL precedes queue.url.
    """
    config, is_folder = configured(source, overrides), Path(source).is_dir()
    file = RunFile(Path(source) if config is None or is_folder else config.run.path)
    name = file.read().run if config is None or is_folder else config.run.name
    if file.embeds_redis():
        return file.redis_url(), name
    url = named_redis(config.queue) if config else os.environ.get("HORA_REDIS_URL")
    return url or file.redis_url(), name
