"""Gloo groups whose members may be on several machines."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]

IN_USE = "GLOO_SOCKET_IFNAME"


def gloo_group(store: Store, rank: int, size: int, limit: timedelta, towards: str) -> Any:
    """A group whose member here listens on the address that leads to `towards`, the address of rank 0.

    By default Gloo listens on the address of the host's name. On Debian and Ubuntu that is 127.0.1.1, which
    no other machine reaches. GLOO_SOCKET_IFNAME, where it is set, decides.
    """
    if IN_USE in os.environ:
        return ProcessGroupGloo(store, rank, size, limit)
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = limit
    options._devices = [ProcessGroupGloo.create_device(hostname=address_towards(towards))]
    return ProcessGroupGloo(store, rank, size, options)


def address_towards(host: str) -> str:
    """The address of this machine from which packets to `host` would leave; nothing is sent."""
    family, kind, _, _, place = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])
