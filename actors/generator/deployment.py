"""A generator replica: one vLLM engine, its weight version, and the rule that no request is served on weights
older than the request allows.

Weights arrive in two ways that end in the same place. The learner pushes each version to all replicas (vLLM's
weight-transfer calls, fanned out by Serve's `broadcast`). A replica that was not there, or missed one, pulls
the newest announced version itself before it serves (`file` transport), or waits until the learner forms a
group with it (`gloo`, `nccl`). A failed or overdue update makes the replica unfit: it ends itself, Serve
starts another, the other replicas go on. Only weights that broke off before one worker loaded anything
(`file`, `gloo`) leave the replica as it was, and a file that is not what was announced: the replica says so
and serves what it has.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog
from ray import serve

from actors.generator.places import Places
from common import logs
from common.config import Config
from common.errors import UNREACHED, DamagedWeights, StaleWeights
from common.redis import connect_async
from common.telemetry import keep_beating
from common.types import Completion, SamplingRequest
from common.weight_versions import check_file, mark_of, newest

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput

log = structlog.get_logger(__name__)
POLL_S = 0.05
EXIT_S = 0.2
REACH_S = 5.0  # a request that waits longer makes room for the calls that bring the weights


class Generator:
    """Serve deployment `generator`. `config` is a dumped `Config`, `redis_url` where the run's state
    lives."""

    async def __init__(self, config: dict[str, Any], redis_url: str) -> None:  # type: ignore[misc]
        from actors.generator.vllm_engine import (
            Engine,  # vLLM: ten seconds that only a replica needs to spend
        )

        self._config = Config.model_validate(config)
        logs.configure(self._config.telemetry.logs, run=self._config.run.name, part="generator")
        self._redis = connect_async(redis_url)
        self._name = f"generator/{serve.get_replica_context().replica_id.unique_id}"
        self._engine = Engine(self._config, self._name.partition("/")[2])
        self._update = asyncio.Lock()
        self._updates: set[asyncio.Task[None]] = set()
        self._failed: str | None = None
        self._unreached = False  # at the last try
        self._version = 0
        self._checksum = ""
        self._pause_s = 0.0
        self._group = ""  # the transfer group that this replica is in
        self._damaged: tuple[int, str] | None = (
            None  # version and mark of a file that is not what was announced
        )
        self._notice = ""
        self._places = Places(
            self._name,
            self._config.generator.max_requests,
            self._config.evaluation.max_sequences,
            self._config.serve.max_sequences,
        )
        await self._engine.label(0)
        if self._config.weights.transport == "file":
            with suppress(StaleWeights):  # a request that needs what is newer still asks for it
                await self._catch_up()
        beating = keep_beating(self._redis, self._config.run.name, self._name, self._state)
        self._beat = asyncio.get_running_loop().create_task(beating)

    async def generate(
        self, request: SamplingRequest, min_version: int, temperature: float
    ) -> list[Completion]:
        """Sample on weights of version `min_version` or newer. Raises StaleWeights when they cannot be had in
        time, and NoRoom when this replica samples for as many requests as it may."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            with self._places.held(request):
                await self._reach(min_version)
                return await self._engine.generate(
                    request.prompt.tokens,
                    request.n,
                    request.seed,
                    temperature,
                    request.priority,
                    request.max_tokens,
                )
        except EngineDeadError:
            # A replica that fails at once looks idle and draws all requests: it must go, not answer with
            # errors.
            self._failed = "the vLLM engine died"
            self._end()
            raise

    async def stream(
        self, tokens: list[int], params: SamplingParams, min_version: int
    ) -> AsyncIterator[RequestOutput]:
        """vLLM's outputs for a request of the endpoint, on weights of version `min_version` or newer. Raises
        StaleWeights and NoRoom as `generate` does."""
        with self._places.held_to_serve(params.n):
            await self._reach(min_version)
            async for output in self._engine.stream(tokens, params):
                yield output

    def _end(self) -> None:
        """End the process, its engine with it, when this has been answered."""
        asyncio.get_running_loop().call_later(EXIT_S, os._exit, 1)

    # The calls of vLLM's weight-sync client, as the learner broadcasts them, and who is there to receive
    # them.

    async def answer_roll_call(self) -> dict[str, Any]:
        """Name and version of a replica that is fit; raises when it is not."""
        await self.check_health()
        return {"replica": self._name, "version": self._version}

    async def init_weight_transfer_engine(
        self, info: dict[str, Any], members: tuple[str, ...], group: str
    ) -> None:
        """Join the learner's group at this replica's place among its members; who is not one of them waits
        for another.

        An update under way ends first: its group broke off when the learner left it. A call that waited for
        that until its own group was given up raises TimeoutError.
        """
        deadline = time.monotonic() + info.get("join_s", self._config.weights.update_limit_s)
        async with self._update:
            self._group = ""
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._name} was busy with an update until the group was given up")
            if self._name in members:
                place = members.index(self._name) * self._config.generator.tensor_parallel
                joining = self._engine.init_transfer(info | {"rank_offset": info["rank_offset"] + place})
                await self._guarded("joining the transfer group", joining, may_break_off=True)
                self._group = group

    async def update_weights(self, info: dict[str, Any], version: int, group: str) -> None:
        """The whole update to `version`, so that nothing stays open when the learner dies meanwhile. Over
        `gloo` and `nccl` it is for the members of `group`."""
        if self._config.weights.transport == "file":
            await self._whole(self._load(info))
        else:
            await self._whole(self._load_from(group, info, version))

    async def _load_from(self, group: str, info: Mapping[str, Any], version: int) -> None:
        async with self._update:
            # A member that came to hold it after the roll call takes part all the same: the others would
            # wait.
            if group == self._group and version >= self._version:
                await self._take(info, version)

    async def finish_weight_update(self, version: str) -> dict[str, Any]:
        """Confirm `version`; what the replica holds now is the answer."""
        wanted = int(version)
        if self._version < wanted:
            raise StaleWeights(f"{self._name} holds version {self._version}, not {wanted}")
        return {
            "replica": self._name,
            "version": self._version,
            "checksum": self._checksum,
            "pause_s": self._pause_s,
        }

    async def check_health(self) -> None:
        """Raises what makes this replica unfit, and ends it: Serve would wait for what it can no longer
        finish. Its requests are asked again elsewhere as soon as it is gone."""
        try:
            if self._failed:
                raise RuntimeError(f"{self._name}: {self._failed}")
            await self._engine.check_health()
        except Exception as error:
            log.error("an unfit replica ends", reason=str(error))
            self._end()
            raise

    async def _reach(self, version: int) -> None:
        deadline = time.monotonic() + REACH_S
        while self._version < version:
            if self._config.weights.transport == "file":
                await self._catch_up()
            if self._version < version:
                if time.monotonic() > deadline:
                    raise StaleWeights(
                        f"{self._name} holds version {self._version}, the request needs {version}"
                    )
                await asyncio.sleep(POLL_S)

    async def _catch_up(self) -> None:
        """Pull the newest announced version, if it is newer than what is held and its file is there."""
        manifest = await newest(self._redis, self._config.run.name)
        if manifest is None or manifest.version <= self._version or not os.path.exists(manifest.path):
            return
        if self._damaged != (manifest.version, mark_of(manifest.path)):  # that one was read already
            await self._whole(self._load(manifest.update_info()))

    async def _whole(self, update: Coroutine[Any, Any, None]) -> None:
        """A request that is cancelled while it waits for an update does not cut that off."""
        task = asyncio.get_running_loop().create_task(update)
        self._updates.add(task)
        task.add_done_callback(self._updates.discard)
        await asyncio.shield(task)

    async def _load(self, info: Mapping[str, Any]) -> None:
        async with self._update:
            if int(info["version"]) > self._version:
                await self._take(info, int(info["version"]))

    async def _take(self, info: Mapping[str, Any], version: int) -> None:
        if self._config.weights.transport == "file":
            info = await self._checked(info, version)
        await self._guarded("receiving weights", self._engine.receive(info), may_break_off=True)
        self._pause_s = await self._guarded("loading weights", self._engine.install(version))
        # A version never stands beside the checksum of another: watchers compare replicas by both.
        self._version, self._checksum, self._damaged, self._notice = version, "", None, ""
        self._checksum = await self._guarded("adding up the weights", self._engine.checksum())

    async def _checked(self, info: Mapping[str, Any], version: int) -> dict[str, Any]:
        """What the workers are told of a file that is the announced one; they find it in the page cache. Of
        one that is not this replica says so, and stays as it is: the learner publishes again what a replica
        found damaged."""
        mark = mark_of(info["path"])
        try:
            checked: dict[str, Any] = await self._guarded(
                "checking the file", asyncio.to_thread(check_file, info)
            )
        except DamagedWeights as error:
            self._damaged = (version, mark)
            self._notice = f"{error}; it stays on version {self._version} until they are published again"
            log.error(
                "a published file is damaged", version=version, stays_on=self._version, reason=str(error)
            )
            raise
        return checked

    async def _guarded(self, what: str, work: Any, *, may_break_off: bool = False) -> Any:
        """Every phase of an update has a deadline; a replica that fails one is no longer fit to serve.

        `may_break_off`: a call to one worker over files or Gloo that fails in time has left the model as it
        was. Who cannot reach the learner once may have been asked by one that died; twice, it would break off
        every group that it is in.
        """
        try:
            done = await asyncio.wait_for(work, self._config.weights.update_limit_s)
        except Exception as error:
            unreached, before = UNREACHED in str(error), self._unreached
            self._unreached = unreached
            lost = isinstance(error, TimeoutError) or (unreached and before)
            broken_off = isinstance(error, StaleWeights) or (may_break_off and self._receives_aside())
            if lost or not broken_off:
                self._failed = f"{what} failed: {type(error).__name__}: {error}"
            raise
        self._unreached = False
        return done

    def _receives_aside(self) -> bool:
        """Whether weights that do not arrive leave the replica as it was, and not one worker ahead of
        another."""
        return self._config.weights.transport != "nccl" and self._config.generator.tensor_parallel == 1

    def _state(self) -> dict[str, Any]:
        load = self._engine.load
        return {
            "version": self._version,
            "checksum": self._checksum[:16],
            "running": load.running,
            "waiting": load.waiting,
            "cache": load.cache,
            "prefix_hits": load.prefix_hits,
            "prefix_queries": load.prefix_queries,
            "cut": self._engine.cut,
            "pause_s": self._pause_s,
            "state": "failed" if self._failed else "serving",
            **({"damaged": self._damaged, "notice": self._notice} if self._damaged else {}),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }

    async def __del__(self) -> None:
        if hasattr(self, "_beat"):
            self._beat.cancel()
        if hasattr(self, "_engine"):
            self._engine.shutdown()
