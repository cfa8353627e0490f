"""Connections to Redis, with retries that outlast a restart of the server.

URLs: redis://, rediss:// (TLS) or unix://. The password is in the URL (redis://:secret@host) or, to keep it
out of process lists and displayed files, in a file named by `?password_file=/path`; `~` is the home
folder."""

import os
import re
import socket
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from hora_rl.common.errors import ConfigError, RunError

Redis = redis.Redis
"""A blocking client, which returns bytes."""
AsyncRedis = redis.asyncio.Redis
"""An asyncio client, which returns bytes."""
Answer = bytes | str
"""redis-py's type of a value; our clients return bytes."""


async def read_start(client: AsyncRedis, key: str, length: int) -> bytes:
    """The first `length` bytes of a string; empty if the key does not exist."""
    answer = await client.getrange(key, 0, length - 1)
    return answer if isinstance(answer, bytes) else answer.encode()


def text_of(answer: Answer) -> str:
    return answer.decode() if isinstance(answer, bytes) else answer


# About two minutes of tries, at most 2 s apart: a Redis restart is not a fault.
BACKOFF = ExponentialBackoff(cap=2.0, base=0.05)
RETRIES = 60
SEND_BYTES = 4 * 2**20  # limited by net.core.wmem_max
AWAY = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, redis.exceptions.BusyLoadingError)
CONNECTIONS = 2**16
"""Commands of one client at a time. A replica's requests may all ask at once; redis-py's default refuses more
than 100."""
PATIENCE: dict[str, object] = {
    "retry_on_error": list(AWAY),
    "socket_timeout": 60.0,
    "health_check_interval": 15,
    "max_connections": CONNECTIONS,
}


def connect(url: str, *, retries: int = RETRIES, patient: bool = False) -> redis.Redis:
    """A client that has answered once. Raises RunError with the URL, without its password, if Redis does not
    answer: at once by default; with `patient`, after retries while Redis restarts."""
    plain, options = _options(url)
    client = redis.Redis.from_url(plain, retry=Retry(BACKOFF, retries), **PATIENCE, **options)
    try:
        try:
            redis.Redis.from_url(plain, socket_connect_timeout=5.0, **options).ping()
        except AWAY as error:
            if not patient or isinstance(error, redis.exceptions.AuthenticationError):  # retries cannot help
                raise
            client.ping()
    except redis.exceptions.AuthenticationError as error:
        raise RunError(
            f"Redis at {hidden(url)} refuses the password ({error}): check queue.url or HORA_REDIS_URL"
        ) from None
    except redis.exceptions.RedisError as error:
        raise RunError(
            f"no Redis answers at {hidden(url)} ({error}): start one, or correct queue.url or HORA_REDIS_URL"
        ) from None
    return client


def connect_async(url: str) -> AsyncRedis:
    """An asyncio client with the same retries. It connects at its first command."""
    plain, options = _options(url)
    retry = AsyncRetry(BACKOFF, RETRIES)
    pool = redis.asyncio.ConnectionPool.from_url(plain, retry=retry, **PATIENCE, **options)
    if pool.connection_class is redis.asyncio.UnixDomainSocketConnection:
        pool.connection_class = _WideConnection
    return redis.asyncio.Redis.from_pool(pool)


class _WideConnection(redis.asyncio.UnixDomainSocketConnection):
    """Sends a message in one system call: with the default 208 KiB buffer asyncio wakes up for each piece.
    TCP sizes its buffers itself."""

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        assert self._writer is not None
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        await super().on_connect_check_health(check_health)


def hidden(url: str) -> str:
    """The URL without its password, even if the password is not percent-encoded."""
    scheme, _, rest = url.partition("://")
    rest = re.split("[?&]password=", rest)[0]
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def has_password(url: str) -> bool:
    """Whether the URL contains a secret; one in a `password_file` does not count."""
    return "@" in url or "password=" in url


def _whole(parts: SplitResult) -> bool:
    """Whether the URL was split correctly, and not inside a password."""
    try:
        return parts.scheme == "unix" or (
            (parts.port or 0) >= 0 and "@" not in f"{parts.path}{parts.query}{parts.fragment}"
        )
    except ValueError:  # `port` is no number
        return False


def _options(url: str) -> tuple[str, dict[str, object]]:
    unread = ConfigError(
        f"queue.url ({hidden(url)}) cannot be read: percent-encode /, ?, #, @, [ and ] in the password, or "
        "use password_file"
    )
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket in a password or a host
        raise unread from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigError(f"queue.url ({hidden(url)}) must begin with redis://, rediss:// or unix://")
    if not _whole(parts):
        raise unread
    query = dict(parse_qsl(parts.query))
    path = query.pop("password_file", None)
    options: dict[str, object] = {}
    if path is not None:
        try:
            with open(os.path.expanduser(path)) as file:
                options["password"] = file.read().strip()
        except OSError as error:
            raise ConfigError(f"queue.url: password_file {path} cannot be read: {error.strerror}") from None
    plain = f"{parts.scheme}://{parts.netloc}{parts.path}{f'?{urlencode(query)}' if query else ''}"
    try:
        redis.ConnectionPool.from_url(plain, **options).make_connection()  # it does not connect
    except (TypeError, ValueError) as error:  # an option that does not exist, or with a strange value
        raise ConfigError(f"queue.url ({hidden(url)}) cannot be read: {error}") from None
    return plain, options
