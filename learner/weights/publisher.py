"""Publishes weights: from the DeepSpeed engine to every generator replica; and a GPU shared with such a
replica.

    copy to rank 0's host memory (ZeRO-3 layer by layer) ─► file ─► announced, state.version ─► replicas load
                                                         └─► Gloo or NCCL ─► replicas load ─► state.version

The learner waits only for its copy. Hashing, announcing, sending and loading run in the background while the
next step trains. `file`: the copy is a file in memory, or is copied to one in RUN/weights. `gloo`, `nccl`:
broadcast to a group of rank 0 and the running replicas. Over `file` a version counts as published when its
file is announced, because an older replica pulls before it serves; otherwise when the version was sent. So
with max_staleness 0 no token of the next batch can come from older weights."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import redis
import structlog
import torch

from hora_rl.common.config import Config, GeneratorConfig
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.state import read_state
from hora_rl.common.live.telemetry import STEPPING, TO_SLEEP, Heartbeat, beats
from hora_rl.common.weights.announcement import (
    BroadcastClient,
    Confirmation,
    Manifest,
    advance,
    announce,
    available,
    mark_of,
    newest_now,
)
from hora_rl.common.weights.file_sender import FileTransport
from hora_rl.common.weights.host_memory import Snapshot
from hora_rl.learner.model.engine import Engine
from hora_rl.learner.weights.host_copy import HostCopy

if TYPE_CHECKING:
    from hora_rl.common.weights.group_sender import TransferGroup


log = structlog.get_logger(__name__)
POLL_S = 0.1
METRICS = ("time/gather", "time/transfer", "time/load", "time/checksum", "weights/bytes")


class Publisher:
    """Publishes versions in order. `publish` is called on every rank; rank 0 drives. While the launcher
    evaluates the initial policy (`Keys.hold`), a version stays with the learner."""

    def __init__(self, config: Config, engine: Engine, client: redis.Redis, run_dir: Path, rank: int) -> None:
        self._config, self._redis, self._engine, self._rank = config, client, engine, rank
        self.published = 0
        """Newest version that replicas can get; repeated steps below it are not published."""
        self._republished = 0  # how often rank 0 has asked all ranks to publish again
        self._broadcast = broadcast = BroadcastClient(config.weights.update_limit_s)
        self._device = engine.device if config.weights.transport == "nccl" else torch.device("cpu")
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="publish")
        self._shipping: Future[None] | None = None
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="push")
        self._announced = 0
        self._newest: Snapshot | None = None  # the version that was published last
        self.metrics = dict.fromkeys(METRICS, 0.0)
        """Of the newest publication. Transfer, load and checksum are known one step later. Transfer counts
        from the end of the step until the replicas hold the version, without load; gather is a part of it."""
        self._file = FileTransport(
            run_dir / "weights",
            config.run.name,
            self._announce,
            broadcast,
            config.learner.steps,
            pinned=engine.device.type == "cuda",
        )
        self._copy = HostCopy(engine, rank, self._file.room if config.weights.transport == "file" else None)
        self._group: TransferGroup | None = None
        if config.weights.transport in ("gloo", "nccl"):
            # Imported here because vLLM costs seconds and hundreds of MiB.
            from hora_rl.common.weights.group_sender import TransferGroup

            self._group = TransferGroup(config, client, broadcast)

    def begin(self, start: int) -> None:
        """Publish the weights after `start` steps if replicas lack them. A collective."""
        run, transport = self._config.run.name, self._config.weights.transport
        there = available(self._redis, run, transport) if self._rank == 0 else 0
        self.published = self._engine.agree(there)
        self._republished = self._engine.agree(read_state(self._redis, run).republished)
        if self._rank == 0:
            # The learner before this one may have died between announcing a version and recording that.
            advance(self._redis, run, self.published)
        if self.published < start:
            self.publish(start)
            self.wait()

    def publish(self, version: int) -> None:
        """Make `version` the newest; returns when rank 0 has its copy. A collective under ZeRO-3."""
        self.wait()  # the copy in flight is overwritten below
        began = time.monotonic()
        self._newest = None
        self._newest = self._copy.snapshot(version, self._device)
        self.metrics["time/gather"] = time.monotonic() - began
        if self._newest is not None:
            self.metrics["weights/bytes"] = float(self._newest.nbytes)
            self._shipping = self._background.submit(self._bring_when_free, self._newest, began)
        self.published = version

    def sleeping(self) -> int:
        """Put the engines that hold the newest version to sleep; returns how many sleep."""
        return len(self._broadcast.sleep(self.published))

    def help_replicas(self, step: int) -> None:
        """Send version `step` to replicas that lack it, and again if a file was found damaged. Rank 0 calls
        this while it waits: otherwise a batch could wait for a version that is never sent again."""
        self._refresh()
        if self._is_damaged():
            log.error("a replica found the newest weights damaged; publishing them again", version=step)
            # A number, not an increment: a command whose answer is lost is sent again.
            number = self._republished + 1
            self._redis.hset(Keys(self._config.run.name).state, "republished", str(number))
            self._publish_again(step, number)

    def follow_rank_0(self, step: int) -> None:
        """Publish again together with rank 0, which also waits for groups: gathering is a collective."""
        number = read_state(self._redis, self._config.run.name).republished
        if number > self._republished:
            self._publish_again(step, number)

    def _publish_again(self, step: int, number: int) -> None:
        """A version newer than `step` is published again when its step is repeated."""
        self._republished = number
        self.publish(step)
        self.wait()

    def _refresh(self) -> None:
        """Send the newest version to replicas that started later, or on a machine that cannot read its
        file."""
        if self._shipping is not None and not self._shipping.done():
            return
        self.wait()
        group, newest = self._group, self._newest
        if newest is None:
            return
        if self._file.out_of_reach() if group is None else group.is_behind(newest.version):
            self._shipping = self._background.submit(self._bring, newest, time.monotonic())

    def _is_damaged(self) -> bool:
        """Whether a replica reports that the current newest file differs from its announcement."""
        manifest = newest_now(self._redis, self._config.run.name)
        if self._config.weights.transport != "file" or manifest is None:
            return False
        newest = manifest.version, mark_of(manifest.path)
        replicas = beats(self._redis.hgetall(Keys(self._config.run.name).parts), "generator")
        return any(tuple(replica.get("damaged", ())) == newest for replica in replicas)

    def wait(self) -> None:
        """Wait for the publication in progress, and raise its error."""
        shipping, self._shipping = self._shipping, None
        if shipping is not None:
            shipping.result()

    def close(self) -> None:
        self.wait()
        self._background.shutdown()
        self._aside.shutdown()

    def _bring_when_free(self, weights: Snapshot, began: float) -> None:
        """Send weights to the replicas as soon as no evaluation needs their current ones."""
        while self._redis.exists(Keys(self._config.run.name).hold):
            time.sleep(POLL_S)
            began = time.monotonic()
        self._bring(weights, began)

    def _bring(self, weights: Snapshot, began: float) -> None:
        """Broadcast the weights, or announce their file, which a separate thread tells the replicas to load:
        a hung replica blocks neither the learner nor the next version."""
        if self._group is not None:
            confirmed = self._group.send(weights)
            advance(self._redis, self._config.run.name, weights.version)
            self._loaded(confirmed, began)
            return
        manifest = self._file.write(weights)
        self._file.announce(manifest)
        self._announced = manifest.version
        self._aside.submit(self._push, manifest, began).add_done_callback(_log_failed_push)

    def _push(self, manifest: Manifest, began: float) -> None:
        if manifest.version < self._announced:
            return  # a newer version is next in this thread's queue
        self._loaded(self._file.push(manifest), began)

    def _announce(self, manifest: Manifest) -> None:
        announce(self._redis, manifest)
        advance(self._redis, self._config.run.name, manifest.version)

    def _loaded(self, confirmed: list[Confirmation], began: float) -> None:
        seconds = time.monotonic() - began
        pause = max((c["pause_s"] for c in confirmed), default=0.0)
        self.metrics["time/load"] = pause
        self.metrics["time/checksum"] = max((c["checksum_s"] for c in confirmed), default=0.0)
        self.metrics["time/transfer"] = max(0.0, seconds - pause)


def _log_failed_push(push: Future[None]) -> None:
    """The learner continues: replicas pull a version before they serve a request that needs it."""
    if not push.cancelled() and (error := push.exception()) is not None:
        log.error("replicas were not asked to load a version", exc_info=error)


def acquire_card(
    generator: GeneratorConfig, limit: float, heart: Heartbeat, publisher: Publisher, step: int
) -> dict[str, float]:
    """With `generator.sleep`, where only the learner uses the GPU during a step: wait until the engines sleep
    at the newest version, also a starting one, which would take memory; returns the seconds as a metric.
    Publishing wakes them. Raises RunError after `limit` seconds."""
    if generator.sleep == "none":
        return {}
    began = time.monotonic()
    heart.update(state=TO_SLEEP, step=step)
    while publisher.sleeping() < generator.replicas:
        if time.monotonic() - began > limit:
            raise RunError(
                f"the generator did not fall asleep at version {publisher.published} within {limit:g} s "
                "(learner.wait_limit_s), and a step would not fit beside it (generator.sleep): see "
                "`hora monitor` for whether it is up"
            )
        publisher.help_replicas(step)
        time.sleep(POLL_S)
    heart.update(state=STEPPING, step=step)
    return {"time/sleep": time.monotonic() - began}


def release_card(generator: GeneratorConfig) -> None:
    """Free memory used only during a step, before the next version wakes the engine."""
    if generator.sleep != "none" and torch.cuda.is_available():
        torch.cuda.empty_cache()
