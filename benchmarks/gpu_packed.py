"""vLLM's packed transfer, which `weights.transport: nccl` uses, over a communicator that stands in for NCCL:
what one side packs the other unpacks. Part of `benchmarks.gpu_acceptance`; needs vLLM and a GPU's streams."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import torch

PIECES = 40


@dataclass(frozen=True, slots=True)
class StandIn:
    """Hands on what `src` broadcasts to the one other member, in order."""

    sends: bool
    sent: deque[torch.Tensor] = field(default_factory=deque)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        if self.sends:
            self.sent.append(tensor.clone())
        else:
            tensor.copy_(self.sent.popleft())


def tensors_of(size: int, device: torch.device) -> dict[str, torch.Tensor]:
    """About `size` bytes in two types: small tensors, and one that is larger than a buffer."""
    each = max(8, size // PIECES // 2 // 4 * 4)
    made = {
        f"layer.{i}": torch.randn(each // 4, 4, device=device).to(torch.float32 if i % 2 else torch.bfloat16)
        for i in range(PIECES)
    }
    return {
        "embedding": torch.randn(each * 3, 2, device=device),
        **made,
        "norm": torch.ones(3, device=device),
    }


def packed_transfer(size: int, device: torch.device) -> tuple[bool, str]:
    """Whether every tensor arrived as it was, and how fast and in how many messages."""
    from vllm.distributed.weight_transfer.packed_tensor import (
        packed_nccl_broadcast_consumer,
        packed_nccl_broadcast_producer,
    )

    source, arrived = tensors_of(size, device), dict[str, torch.Tensor]()
    total, sender = sum(t.nbytes for t in source.values()), StandIn(sends=True)
    began = time.perf_counter()
    packed_nccl_broadcast_producer(
        iter(source.items()), sender, 0, lambda item: item[1], buffer_size_bytes=total // 8
    )
    messages = len(sender.sent)
    packed_nccl_broadcast_consumer(
        iter((name, (list(t.shape), t.dtype)) for name, t in source.items()),
        StandIn(sends=False, sent=sender.sent),
        0,
        lambda pairs: arrived.update((name, t.clone()) for name, t in pairs),
        buffer_size_bytes=total // 8,
        device=device,
    )
    same = arrived.keys() == source.keys() and all(torch.equal(arrived[n], t) for n, t in source.items())
    seconds = time.perf_counter() - began
    return same and messages > 1, f"{messages} messages, {total / 1e9 / seconds:.2f} GB/s there and back"
