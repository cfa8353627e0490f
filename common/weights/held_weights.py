"""The weights of a generator replica: their version, updates, and whether an update made it unhealthy.

The learner pushes each version to all replicas. A replica that missed one pulls the newest announced version
before it serves (`file`), or waits until the learner forms a group with it (`gloo`, `nccl`). A failed or
overdue update makes the replica unhealthy. After two kinds of failure it keeps serving its old weights: if
the update broke off before a worker loaded anything (`file`, `gloo`), and if a file differs from its
announcement."""

import asyncio
import os
import time
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Protocol, TypeVar

import structlog

from hora_rl.common.config import WeightsConfig
from hora_rl.common.errors import UNREACHED, DamagedWeights, StaleWeights, UnhealthyError
from hora_rl.common.live.redis import AsyncRedis
from hora_rl.common.live.telemetry import GeneratorBeat
from hora_rl.common.weights.announcement import FileUpdate, check_file, mark_of, newest, path_of

log = structlog.get_logger(__name__)
T = TypeVar("T")
POLL_S = 0.05
REACH_S = 5.0  # then the request is requeued, to make room for weight updates


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an update: the checksum of the weights, the seconds that generation was paused, and those
    spent on the checksum."""

    pause_s: float
    checksum: str
    checksum_s: float


class WeightEngine(Protocol):
    """Engine methods used by updates; see `actors.generator.vllm_engine.Engine`."""

    async def init_transfer(self, info: Mapping[str, object]) -> None: ...
    async def receive(self, info: Mapping[str, object]) -> None: ...
    async def install(self, version: int) -> Installed: ...
    async def sleep(self) -> None: ...
    async def wake(self) -> None: ...


class HeldWeights:
    """The weights of the replica `name`, an engine of `parallel` workers. Starts with the initial policy,
    version 0.

    `failure` is the reason why the replica is unhealthy, else None."""

    def __init__(
        self,
        settings: WeightsConfig,
        parallel: int,
        engine: WeightEngine,
        redis: AsyncRedis,
        run: str,
        name: str,
    ) -> None:
        self._limit_s, self._transport, self._parallel = settings.update_limit_s, settings.transport, parallel
        self._engine, self._redis, self._run, self._name = engine, redis, run, name
        self._update = asyncio.Lock()
        self._updates: set[asyncio.Task[None]] = set()
        self._group = ""  # current transfer group
        self._unreached = False  # the last attempt to join a group did not reach the learner
        self._installed, self._notice = Installed(0.0, "", 0.0), ""
        self._damaged: tuple[int, str] | None = None  # version and mark of a damaged file
        self.version = 0
        self.asleep_since: float | None = None  # seconds since the epoch
        self.failure: str | None = None

    async def join(self, info: Mapping[str, Any], members: tuple[str, ...], group: str) -> None:
        """Join the learner's `group` if this replica is one of `members`. Its position gives its ranks.

        Waits for an update in progress, which ends because the learner has left its group. Raises
        TimeoutError if the learner has given up the group meanwhile."""
        deadline = time.monotonic() + info.get("join_s", self._limit_s)
        async with self._update:
            self._group = ""
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._name} was busy with an update until the group was given up")
            if self._name in members:
                offset = info["rank_offset"] + members.index(self._name) * self._parallel
                joining = self._engine.init_transfer({**info, "rank_offset": offset})
                await self._guarded("joining the transfer group", joining, unchanged=True)
                self._group = group

    async def update(self, info: Any, version: int, group: str) -> None:
        """Update to `version` in one call, so that nothing stays open if the learner dies. Over `gloo` and
        `nccl` only members of `group` take part."""
        if self._transport == "file":
            await self._finished(self._load(info))
        else:
            await self._finished(self._load_from(group, info, version))

    async def reach(self, version: int) -> None:
        """Wait for `version` or a newer one. Raises StaleWeights if it does not arrive in time."""
        deadline = time.monotonic() + REACH_S
        while self.version < version:
            if self._transport == "file":
                await self.catch_up()
            if self.version < version:
                if time.monotonic() > deadline:
                    raise StaleWeights(
                        f"{self._name} holds version {self.version}, the request needs {version}"
                    )
                await asyncio.sleep(POLL_S)

    async def catch_up(self) -> None:
        """Load the newest announced version if it is newer than the current one and its file exists."""
        manifest = await newest(self._redis, self._run)
        if manifest is None or manifest.version <= self.version or not os.path.exists(manifest.path):
            return
        if self._damaged != (manifest.version, mark_of(manifest.path)):  # skip a file known to be damaged
            await self._finished(self._load(manifest.update_info()))

    async def sleep(self, version: int) -> None:
        """Reach `version`, then free the engine's memory. So only a newer version wakes the engine, and not a
        late update to `version`. Raises StaleWeights if `version` does not arrive in time."""
        await self.reach(version)
        await self._finished(self._sleep())

    async def wake(self, since: float) -> None:
        """Wake the engine if it has slept since `since`. A later sleep is left alone."""
        async with self._update:
            if self.asleep_since == since:
                await self._guarded("waking", self._engine.wake())
                self.asleep_since = None

    def confirm(self, wanted: int) -> dict[str, object]:
        """The current version and its `Installed`. Raises StaleWeights for one older than `wanted`."""
        if self.version < wanted:
            raise StaleWeights(f"{self._name} holds version {self.version}, not {wanted}")
        return {"replica": self._name, "version": self.version, **asdict(self._installed)}

    def state(self) -> GeneratorBeat:
        installed = self._installed
        beat: GeneratorBeat = {
            "version": self.version,
            "checksum": installed.checksum[:16],
            "checksum_s": installed.checksum_s,
            "pause_s": installed.pause_s,
            "state": "failed" if self.failure else "asleep" if self.asleep_since else "serving",
        }
        return {**beat, "damaged": self._damaged, "notice": self._notice} if self._damaged else beat

    def check(self) -> None:
        """Raise UnhealthyError when an update failed."""
        if self.failure:
            raise UnhealthyError(f"{self._name}: {self.failure}")

    async def _finished(self, update: Coroutine[None, None, None]) -> None:
        """Finish `update` even if the waiting request is cancelled."""
        task = asyncio.get_running_loop().create_task(update)
        self._updates.add(task)
        task.add_done_callback(self._updates.discard)
        await asyncio.shield(task)

    async def _sleep(self) -> None:
        async with self._update:
            await self._guarded("falling asleep", self._engine.sleep())
            self.asleep_since = time.time()

    async def _load(self, info: FileUpdate) -> None:
        async with self._update:
            if int(info["version"]) > self.version:
                version = int(info["version"])
                # The workers open this descriptor, so they load the checked file.
                with await self._checked(info) as file:
                    await self._install({"version": version, "path": path_of(file.fileno())}, version)

    async def _load_from(self, group: str, info: Mapping[str, object], version: int) -> None:
        async with self._update:
            # A member that already has this version takes part too: the group would wait for it.
            if group == self._group and version >= self.version:
                await self._install(info, version)

    async def _install(self, info: Mapping[str, object], version: int) -> None:
        # Then a failed transfer leaves the model unchanged in all workers.
        aside = self._transport != "nccl" and self._parallel == 1
        await self._guarded("receiving weights", self._engine.receive(info), unchanged=aside)
        installed = await self._guarded("loading weights", self._engine.install(version))
        # Views compare replicas by version and checksum, so both change together.
        self.version, self._installed, self._damaged, self._notice = version, installed, None, ""
        self.asleep_since = None  # loading wakes an engine

    async def _checked(self, info: FileUpdate) -> BinaryIO:
        """Open and check the announced file, which also puts it into the page cache. Raises DamagedWeights if
        it differs; the heartbeat reports that, and the learner publishes the version again."""
        mark, version = mark_of(info["path"]), int(info["version"])
        if self._damaged == (version, mark):  # requests that wait for one version ask for it together
            raise DamagedWeights(self._notice)
        try:
            checked: BinaryIO = await self._guarded("checking the file", asyncio.to_thread(check_file, info))
        except DamagedWeights as error:
            self._damaged = (version, mark)
            self._notice = f"{error}; it stays on version {self.version} until they are published again"
            log.error("a published file is damaged", version=version, reason=self._notice)
            raise
        return checked

    async def _guarded(self, what: str, work: Awaitable[T], *, unchanged: bool = False) -> T:
        """The result of `work`, one phase of an update, within the update's time limit. A replica that fails
        a phase is unhealthy.

        With `unchanged` a failure within the limit leaves the model as it was, and the replica healthy. But
        if it cannot reach the learner twice in a row, the replica is faulty."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=self._limit_s)
        finally:
            task.cancel()  # a finished task ignores it
        late = TimeoutError(f"it took {self._limit_s:g} s")
        error = task.exception() if task.done() else late
        if error is None:
            self._unreached = False
            return task.result()
        unreached, before = UNREACHED in str(error), self._unreached
        self._unreached = unreached
        lost = isinstance(error, TimeoutError) or (unreached and before)
        broken_off = isinstance(error, StaleWeights) or unchanged
        if lost or not broken_off:
            self.failure = f"{what} failed: {type(error).__name__}: {error}"
        raise error
