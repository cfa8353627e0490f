"""One of the learner's ranks: its device, threads and allocator; values over all ranks."""

import os
from typing import TypeVar

import torch

from hora_rl.common.config import LearnerConfig

T = TypeVar("T")


def set_device(learner: LearnerConfig, seed: int, local_rank: int) -> str:
    """Set this rank's device and threads; return the backend of its process group."""
    torch.manual_seed(seed)
    torch.set_num_threads(learner.threads)
    if torch.cuda.is_available():
        if learner.offload_optimizer:  # the host computes its step
            ranks = int(os.environ.get("LOCAL_WORLD_SIZE", learner.workers))
            torch.set_num_threads(max(learner.threads, len(os.sched_getaffinity(0)) // ranks))
        expand_segments()
        torch.backends.cuda.enable_cudnn_sdp(False)  # builds a plan for every new number of rows and tokens
        torch.cuda.set_device(local_rank)
        return "nccl"
    os.environ["DS_ACCELERATOR"] = "cpu"
    return "gloo"


def expand_segments() -> None:
    """Let CUDA's allocator grow its blocks, which varying micro-batches would fragment, unless a user has
    settings. Call before the first allocation."""
    if not any(name in os.environ for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def gathered(value: T) -> list[T]:
    """Every rank's value, in rank order. A collective of the process group, if there is one."""
    values = [value] * (torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1)
    if len(values) > 1:
        torch.distributed.all_gather_object(values, value)
    return values


def sums_over_ranks(sums: dict[str, float]) -> dict[str, float]:
    """The sums over all ranks; the maximum for names that end with `max`. A collective."""
    every = gathered(sums)
    return {n: (max if n.endswith("max") else sum)(of_rank[n] for of_rank in every) for n in sums}
