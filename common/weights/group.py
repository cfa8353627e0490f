"""Process groups of the learner's rank 0 and the generators' workers, on one or more machines, over Gloo or
NCCL.

    store at rank 0 ─► every member announces itself ─► all are there ─► the group connects ─► broadcasts

Each arrow has a deadline, so a dead member is an error for the remaining members and does not block them."""

import os
import socket
from datetime import timedelta
from typing import Any, Literal

import torch
from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]

from hora_rl.common.processes import environment

IN_USE = "GLOO_SOCKET_IFNAME"
Backend = Literal["gloo", "nccl"]


def member_group(
    backend: Backend,
    store: Store,
    rank: int,
    size: int,
    join: timedelta,
    limit: timedelta,
    towards: str,
) -> Any:
    """A group of the members at `store`; each call has the time limit `limit`. Raises RuntimeError if members
    are missing or not connected within `join`.

    `towards` is the address of rank 0."""
    meet(store, rank, size, join)
    group = _gloo(store, rank, size, join, towards) if backend == "gloo" else _nccl(store, rank, size, join)
    group._set_default_timeout(limit)
    return group


def meet(store: Store, rank: int, size: int, limit: timedelta) -> None:
    """Return once all members are present. Raises RuntimeError at the limit, or if rank 0 is gone."""
    store.set(f"here/{rank}", "")
    store.wait([f"here/{each}" for each in range(size)], limit)


def _gloo(store: Store, rank: int, size: int, limit: timedelta, towards: str) -> Any:
    """A member that listens on the address of the route to `towards`.

    By default Gloo listens on the address of the host's name, on Debian and Ubuntu 127.0.1.1, which is
    unreachable from other machines. GLOO_SOCKET_IFNAME overrides this."""
    if IN_USE in os.environ:
        return ProcessGroupGloo(store, rank, size, limit)
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = limit
    options._devices = [ProcessGroupGloo.create_device(hostname=address_towards(towards))]
    return ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Store, rank: int, size: int, limit: timedelta) -> Any:
    """A member on the current GPU. Its communicator is non-blocking: a wait past its limit raises, and
    `abort` ends pending calls. torch's watchdog is off, because it would end the process."""
    from torch.distributed import ProcessGroupNCCL

    settings = {
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        # torch reads this once in a process, so the first group's limit holds for all.
        "TORCH_NCCL_NONBLOCKING_TIMEOUT": str(max(1, int(limit.total_seconds()))),
    }
    with environment(settings):  # other groups of this process keep theirs
        options = ProcessGroupNCCL.Options()
        options._timeout = limit
        options.config.blocking = 0
        group: Any = ProcessGroupNCCL(store, rank, size, options)
        try:
            # NCCL connects with the first call.
            group.broadcast(torch.zeros(1, device="cuda"), 0).wait()
        except RuntimeError:
            group.abort()
            raise
    return group


class PackedGroup:
    """Adapts an NCCL group to vLLM's packed transfer."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        """Raises RuntimeError at the group's limit."""
        del stream  # the group follows the current one
        self._group.broadcast(tensor, src).wait()

    def destroy(self) -> None:
        self._group.abort()


def address_towards(host: str) -> str:
    """This machine's address on the route to `host`; nothing is sent."""
    family, kind, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
