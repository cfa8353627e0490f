"""Rank 0's side of the `gloo` and `nccl` transports: broadcasts every parameter to the replicas, from host
memory over the network, or from GPU to GPU.

An update has the phases of vLLM's NCCL engine. Only the rendezvous is HORA's, the same for both.
"""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerInitInfo,
    VLLMWeightSyncClient,
    WeightSource,
)
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine
from vllm.utils.nccl import unpinned_nccl_env

from hora_rl.common.weights.member_group import Backend, PackedGroup, member_group


@dataclass
class Meeting(TrainerInitInfo):
    """Address of rank 0, size of the group, and limits in seconds of each step of joining and of each
    call."""

    backend: ClassVar[str] = "hora-group"  # vLLM asks for a name
    master_address: str
    world_size: int
    join_s: float
    limit_s: float


class GroupEngine(NCCLTrainerWeightTransferEngine):
    """Rank 0 of the group, and the only rank of the learner there."""

    init_info_cls = Meeting
    backend: ClassVar[Backend]
    _group: Any = None

    @classmethod
    def trainer_init(
        cls,
        init_info: Any,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        if source is None:
            raise ValueError("a group needs a WeightSource")
        engine = cls(client=client, source=source, packed=cls.backend == "nccl")
        engine._meet(init_info)
        return engine

    def _meet(self, info: Meeting) -> None:
        join, limit = timedelta(seconds=info.join_s), timedelta(seconds=info.limit_s)
        store = _store_at(info.master_address, join)
        place = {
            "master_address": info.master_address,
            "master_port": store.port,
            "world_size": info.world_size,
            "rank_offset": 1,
            "join_s": info.join_s,
            "limit_s": info.limit_s,
        }
        with ThreadPoolExecutor(max_workers=1) as aside:
            joined = aside.submit(self.client.init_weight_transfer_engine, place)
            with unpinned_nccl_env() if self.backend == "nccl" else nullcontext():
                self._group = member_group(
                    self.backend, store, 0, info.world_size, join, limit, info.master_address
                )
            joined.result()


class GlooEngine(GroupEngine):
    backend = "gloo"

    def _broadcast(self, source: WeightSource, meta: list[ParamMeta]) -> None:
        assert self._group is not None
        for _, tensor in self._checked_iter(source, meta):
            self._group.broadcast(tensor.contiguous(), 0).wait()

    def shutdown(self) -> None:
        if self._group is not None:
            self._group.shutdown()
            self._group = None


class NcclEngine(GroupEngine):
    backend = "nccl"

    def _meet(self, info: Meeting) -> None:
        super()._meet(info)
        self.model_update_group = PackedGroup(self._group)  # type: ignore[assignment]

    def shutdown(self) -> None:
        super().shutdown()
        self._group = None


ENGINES: dict[str, type[GroupEngine]] = {"gloo": GlooEngine, "nccl": NcclEngine}


def _store_at(address: str, limit: timedelta) -> TCPStore:
    """A store that listens only on `address`, on a port that the system chooses and this socket holds.
    torch's socket would listen on all interfaces."""
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
