"""How replicas learn of a version: the announced manifest, which they verify, and calls through Serve."""

import errno
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, BinaryIO, TypedDict

import redis
import structlog

from hora_rl.common.errors import DamagedWeights, StaleWeights
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import Answer, AsyncRedis
from hora_rl.common.weights.weight_file import digest_of, header_in, is_sealed, private, share, version_in

MEMORY = "/proc/"
"""Start of the paths of files in memory."""
GONE = (errno.ENOENT, errno.ESTALE)
OTHERS = (errno.EISDIR, errno.ENXIO)
"""Of a path in memory whose number has been given to a folder or a socket."""
# The version never falls, even if a restarted learner repeats old steps.
ADVANCE = """
local old = tonumber(redis.call('HGET', KEYS[1], 'version') or '-1')
if tonumber(ARGV[1]) > old then redis.call('HSET', KEYS[1], 'version', ARGV[1]) end
return math.max(old, tonumber(ARGV[1]))
"""
log = structlog.get_logger(__name__)
APP, DEPLOYMENT = "hora", "generator"
Ask = Callable[..., list[Any]]
"""A method of the replicas and its arguments -> their answers."""


class FileUpdate(TypedDict):
    """What a replica is sent of a version: its file, with digest and size in bytes."""

    version: int
    path: str
    digest: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Version `version` of run `run`: a safetensors file at `path`, its digest and size in bytes."""

    run: str
    version: int
    path: str
    digest: str
    bytes: int

    def update_info(self) -> FileUpdate:
        """The update sent to a replica, which verifies it before loading."""
        return {"version": self.version, "path": self.path, "digest": self.digest, "bytes": self.bytes}


def announce(client: redis.Redis, manifest: Manifest) -> None:
    """Make `manifest` the newest: replicas that start or lag pull it."""
    client.set(Keys(manifest.run).weights, json.dumps(asdict(manifest)))


def check_file(info: FileUpdate) -> BinaryIO:
    """Open and verify the file of an update by reading it in full. The caller closes it; memory keeps its
    content until then (`weight_file`).

    Raises DamagedWeights if it differs from its announcement or cannot be read, and StaleWeights if it was
    deleted, here or on another machine of a shared disk, or holds or gets another version."""
    try:
        with ExitStack() as otherwise:
            file = otherwise.enter_context(open(info["path"], "rb", opener=_open))
            if info["path"].startswith(MEMORY) and not is_sealed(file.fileno()):
                raise FileNotFoundError(errno.ENOENT, "the number is another file's now")
            share(file.fileno())
            _compare(file, info)
            otherwise.pop_all()
    except OSError as error:
        if error.errno in GONE or (info["path"].startswith(MEMORY) and error.errno in OTHERS):
            raise StaleWeights(f"{info['path']} is gone: a newer version is out") from None
        raise DamagedWeights(f"weights {info['path']} cannot be read: {error.strerror}") from None
    return file


def _open(path: str, flags: int) -> int:
    # A dead learner's descriptor path may now be another process's pipe: do not block.
    return os.open(path, flags | os.O_NONBLOCK)


def _compare(file: BinaryIO, info: FileUpdate) -> None:
    size = os.fstat(file.fileno()).st_size
    if size != info["bytes"]:
        raise DamagedWeights(
            f"weights {info['path']}: {size} bytes are not the announced {info['bytes']}; not loaded"
        )
    digest = digest_of(file)
    if digest != info["digest"]:
        if is_sealed(file.fileno()):
            with private(file.fileno()) as memory:
                if version_in(header_in(memory)) not in (None, info["version"]):
                    raise StaleWeights(f"{info['path']} holds a newer version")
        wanted = info["digest"]
        raise DamagedWeights(
            f"weights {info['path']}: checksum {digest[:12]} is not the announced {wanted[:12]}; not loaded"
        )


def path_of(descriptor: int) -> str:
    """Path by which processes of this user on this machine open this process's descriptor."""
    return f"{MEMORY}{os.getpid()}/fd/{descriptor}"


def mark_of(path: str) -> str:
    """Distinguishes a file from a replacement of the same name; empty if missing."""
    try:
        about = os.stat(path)
    except OSError:
        return ""
    return f"{about.st_mtime_ns}:{about.st_size}"


def advance(client: redis.Redis, run: str, version: int) -> int:
    """Record that `version` was sent or can be pulled. Returns the newest version, which never falls."""
    return int(client.register_script(ADVANCE)(keys=[Keys(run).state], args=[version]))


async def newest(client: AsyncRedis, run: str) -> Manifest | None:
    """The newest announced manifest. `client` is an asyncio client."""
    return _manifest(await client.get(Keys(run).weights))


def newest_now(client: redis.Redis, run: str) -> Manifest | None:
    return _manifest(client.get(Keys(run).weights))


def available(client: redis.Redis, run: str, transport: str) -> int:
    """The newest version that a replica can get without this learner, otherwise 0. Reads the file in full.

    It may be ahead of a learner that repeats ledgered steps after a crash. Those weights came from the same
    groups, and publishing intermediate versions again would take the manifest back. Versions broadcast to a
    group are lost with their learner."""
    manifest = newest_now(client, run)
    if transport != "file" or manifest is None:
        return 0
    try:
        check_file(manifest.update_info()).close()
    except StaleWeights:  # includes DamagedWeights: the learner publishes it again
        return 0
    return manifest.version


def _manifest(text: Answer | None) -> Manifest | None:
    return Manifest(**json.loads(text)) if text else None


class Confirmation(TypedDict):
    """A replica's answer to `confirm`: its version, checksum ("" for the initial policy), the seconds that
    generation was paused, and the checksum's part of them."""

    replica: str
    version: int
    checksum: str
    pause_s: float
    checksum_s: float


class BroadcastClient:
    """Calls every running replica, with a limit of `limit_s` seconds.

    Serve restarts a replica that fails. The new one pulls the newest version or receives a broadcast; the
    other replicas continue. `ask` makes the calls, by default `ask_replicas`."""

    def __init__(self, limit_s: float, ask: Ask | None = None) -> None:
        self._all = ask or partial(ask_replicas, limit_s)

    def roll_call(self) -> dict[str, int]:
        return {a["replica"]: a["version"] for a in self._all("roll_call")}

    def join(self, info: Mapping[str, object], members: tuple[str, ...], group: str) -> None:
        """Make the replicas `members` join the transfer group `group`, each with its index as rank. All other
        replicas leave their group."""
        self._all("join", info, members, group)

    def update(self, info: Mapping[str, object], version: int, group: str = "") -> None:
        """Make the replicas receive and load `version`; over `gloo` and `nccl` the members of `group`."""
        self._all("update", info, version, group)

    def confirm(self, version: int) -> list[Confirmation]:
        answers: list[Confirmation] = self._all("confirm", version)
        sums = {c["checksum"] for c in answers if c["version"] == version and c["checksum"]}
        if len(sums) > 1:
            log.error(
                "replicas of one version hold different weights", version=version, checksums=sorted(sums)
            )
        return answers

    def sleep(self, version: int) -> list[str]:
        """Make the replicas free their GPUs at version `version`; returns the names of those that did."""
        return self._all("sleep", version)


def ask_replicas(limit_s: float, method: str, *args: object) -> list[Any]:
    """The running replicas' answers to `method` within `limit_s` seconds; failures are logged."""
    import ray
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    if not ray.is_initialized():
        return []  # A learner without a cluster: replicas pull the announced file.
    try:
        handle = serve.get_deployment_handle(DEPLOYMENT, APP)
        results = handle.broadcast(method, *args).results(timeout_s=limit_s, return_exceptions=True)
    except (RayServeException, RayError, KeyError, TimeoutError) as error:  # KeyError: no application yet
        log.warning("broadcast failed", method=method, error=f"{type(error).__name__}: {error}")
        return []
    for failed in (r for r in results if isinstance(r, BaseException)):
        reason = str(failed).strip().splitlines()[-1:]
        log.warning("a replica failed an update", method=method, error=reason)
    return [r for r in results if not isinstance(r, BaseException)]
