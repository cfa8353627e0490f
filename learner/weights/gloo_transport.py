"""The `gloo` transport: the learner's rank 0 broadcasts every parameter to the replicas over the network,
from host memory to host memory. For replicas that share neither a folder nor NCCL with the learner.

An update has the phases of vLLM's NCCL engine; only the group and the broadcast are Gloo's.
"""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
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
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

from common.gloo import gloo_group


@dataclass
class GlooTrainerInitInfo(TrainerInitInfo):
    """Trainer side of the `gloo` transport: address and size of the group, and the limits in seconds of
    forming it and of each call."""

    backend: ClassVar[str] = "gloo"
    master_address: str
    world_size: int
    join_s: float
    limit_s: float


class GlooTrainerEngine(NCCLTrainerWeightTransferEngine):
    """Rank 0 of the group; no other rank of the learner is in it."""

    init_info_cls = GlooTrainerInitInfo
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
            raise ValueError("the gloo transport needs a WeightSource")
        engine = cls(client=client, source=source, packed=False)
        engine._meet(init_info)
        return engine

    def _meet(self, info: GlooTrainerInitInfo) -> None:
        join = timedelta(seconds=info.join_s)
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
            self._group = gloo_group(store, 0, info.world_size, join, info.master_address)
            joined.result()
        self._group._set_default_timeout(timedelta(seconds=info.limit_s))

    def _broadcast(self, source: WeightSource, meta: list[ParamMeta]) -> None:
        assert self._group is not None
        for _, tensor in self._checked_iter(source, meta):
            self._group.broadcast(tensor.contiguous(), 0).wait()

    def shutdown(self) -> None:
        if self._group is not None:
            self._group.shutdown()
            self._group = None


def _store_at(address: str, limit: timedelta) -> TCPStore:
    """A store that listens on `address` alone; torch's own socket would listen on all interfaces."""
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


WeightTransferTrainerFactory.register_engine("gloo", GlooTrainerEngine)
