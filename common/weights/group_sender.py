"""The group of the learner's rank 0 and the running replicas, over which every version is broadcast (`gloo`,
`nccl`).

    roll call ─► group of the replicas that answered ─► broadcast ─► …
        ─► a replica came, left or died ─► roll call ─► new group

The broadcast reads a copy in host memory: the next step need not wait, a broken broadcast can be repeated,
and a replica that starts between two versions receives the newest again."""

import faulthandler
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import ray
import redis
import structlog
import torch
from ray.exceptions import RayError
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.telemetry import beats
from hora_rl.common.weights.announcement import BroadcastClient, Confirmation
from hora_rl.common.weights.group import Backend, member_group
from hora_rl.common.weights.host_memory import Snapshot
from hora_rl.common.weights.vllm_transfer import send_packed, unpinned_nccl_env

log = structlog.get_logger(__name__)
ATTEMPTS = 3
RESEND_S = 5.0  # shortest time between two sendings of one version
LAG_S = 1.0  # difference of clocks of two machines
# If a replica dies after the roll call, the rest wait this long without decoding.
JOIN_S = 30.0


class TransferGroup:
    """Used only on rank 0 of the learner. `clock` gives seconds since the epoch."""

    def __init__(
        self,
        config: Config,
        client: redis.Redis,
        broadcast: BroadcastClient,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._broadcast = config, broadcast
        self._redis, self._clock = client, clock
        self._sent_at = 0.0
        self._limit = config.weights.update_limit_s
        self._nccl = config.weights.transport == "nccl"
        self._group: Any = None
        self._members: tuple[str, ...] = ()
        self._name = ""

    def send(self, weights: Snapshot) -> list[Confirmation]:
        """Broadcast to the running replicas with an older version; returns the answers of those that now hold
        this one. If a member dies, the group is formed again without that member."""
        confirmed: list[Confirmation] = []
        for attempt in range(1, ATTEMPTS + 1):
            try:
                members = self._lacking(weights.version)
                with self._over_nccl(weights) if self._nccl else nullcontext():
                    confirmed = self._send(weights, members)
                break
            except (RuntimeError, OSError, RayError) as error:  # Gloo and NCCL raise RuntimeError
                self._leave()
                log.warning(
                    "a broadcast broke off", version=weights.version, attempt=attempt, error=str(error)[:300]
                )
        # Replicas still behind receive this version again while the learner waits for their rollouts.
        self._sent_at = self._clock()
        return confirmed

    def is_behind(self, version: int) -> bool:
        """Whether a replica with a heartbeat since the last broadcast holds less than `version`."""
        if self._clock() < self._sent_at + RESEND_S:
            return False
        replicas = beats(self._redis.hgetall(Keys(self._config.run.name).parts), "generator")
        return any(r["version"] < version for r in replicas if r["seen"] > self._sent_at + LAG_S)

    @contextmanager
    def _over_nccl(self, weights: Snapshot) -> Iterator[None]:
        """Send on a separate CUDA stream, so the step computes meanwhile. The learner's and the group's
        collectives may overlap: no learner rank waits for a replica, and no replica waits for the other
        learner ranks."""
        # Every wait of the group has a limit. If the driver does not return, this rank exits and restarts
        # from its checkpoint.
        faulthandler.dump_traceback_later(2 * self._limit, exit=True, file=2)
        try:
            with torch.cuda.stream(torch.cuda.Stream(weights.device)):
                yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _lacking(self, version: int) -> tuple[str, ...]:
        """The running replicas with an older version: repeated steps must not take one back."""
        held = self._broadcast.roll_call()
        return tuple(sorted(name for name, of in held.items() if of < version))

    def _send(self, weights: Snapshot, members: tuple[str, ...]) -> list[Confirmation]:
        """Broadcast `weights` to `members`, in a new group unless they are those of the last one."""
        if not members:
            return []
        if self._group is None or members != self._members:
            self._leave()
            self._form(members)
        names, types, shapes = zip(*weights.shapes(), strict=True)
        of_types = [str(dtype).removeprefix("torch.") for dtype in types]
        info = {"names": [*names], "dtype_names": of_types, "shapes": [[*shape] for shape in shapes]}
        aside = ThreadPoolExecutor(max_workers=1)
        try:
            # Members receive while rank 0 sends.
            update = aside.submit(self._broadcast.update, info, weights.version, self._name)
            if self._nccl:
                send_packed(weights, self._group)
            else:
                for _, tensor in weights:
                    self._group.broadcast(tensor.contiguous(), 0).wait()
            update.result()
        finally:
            aside.shutdown(wait=False)  # after an error here, members wait until their own limit
        return self._broadcast.confirm(weights.version)

    def _form(self, members: tuple[str, ...]) -> None:
        """Meet the workers of `members` at a store of this machine: rank 0, then they in order."""
        self._members, self._name = members, uuid.uuid4().hex
        world = 1 + len(members) * self._config.generator.tensor_parallel
        # Replicas wait twice, to meet and to connect, and that ends before their own limit, which ends a
        # hung replica.
        join_s, limit_s = min(JOIN_S, self._limit / 4), self._limit / 2
        join, limit = timedelta(seconds=join_s), timedelta(seconds=limit_s)
        address = ray.util.get_node_ip_address()
        store = _store_at(address, join)
        rendezvous = {
            "master_address": address,
            "master_port": store.port,
            "world_size": world,
            "rank_offset": 1,
        }
        rendezvous |= {"join_s": join_s, "limit_s": limit_s}
        with ThreadPoolExecutor(max_workers=1) as aside:
            joined = aside.submit(self._broadcast.join, rendezvous, members, self._name)
            with unpinned_nccl_env() if self._nccl else nullcontext():
                backend: Backend = "nccl" if self._nccl else "gloo"
                self._group = member_group(backend, store, 0, world, join, limit, address)
            joined.result()
        log.info("transfer group formed", replicas=len(members), world=world)

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            (group.abort if self._nccl else group.shutdown)()


def _store_at(address: str, limit: timedelta) -> TCPStore:
    """A store that listens only on `address`, on a free port; torch's socket would on all interfaces."""
    listening = socket.create_server((address, 0), family=socket.getaddrinfo(address, 0)[0][0])
    port = listening.getsockname()[1]
    return TCPStore(
        address,
        port,
        is_master=True,
        timeout=limit,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
        use_libuv=False,  # libuv's server does not take a socket
    )
