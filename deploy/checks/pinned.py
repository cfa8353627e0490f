"""Host memory of an engine that sleeps: vLLM backs up each segment of its weights in pinned memory.

torch rounds each backup up to a power of two, and keeps it for the next sleep. Its option to round less,
`pinned_max_round_threshold_mb`, cannot be used: the cache takes any free block between two powers of two, so
a backup could get one that is too small (torch 2.13, `CachingHostAllocator.h`, `get_free_block`).

    segment of a tensor ≥ 10 MiB   its size, up to a multiple of 2 MiB
    smaller tensors                share segments of 20 MiB, which become 32

Figures of this arithmetic: 3.6 GiB for Qwen2.5-1.5B (weights 2.9), 8.8 for 3B (5.7), 26.8 for 7B (14.2).
"""

from collections.abc import Sequence

MIB = 2**20
LARGE, STEP = 10 * MIB, 2 * MIB
SHARED = 32 / 20


def backup_bytes(tensors: Sequence[tuple[int, int]], total: int, width: int) -> float:
    """Pinned bytes of `total` weights of `width` bytes: of `tensors`, pairs of a number and a size,
    as vLLM merges them. Weights of no known tensor, such as experts, count twice."""
    known = sum(number * segment(size * width) for number, size in tensors)
    rest = total - sum(number * size for number, size in tensors)
    return known + 2.0 * width * max(0, rest)


def segment(size: int) -> float:
    """Pinned bytes of a tensor of `size` bytes."""
    if size < LARGE:
        return size * SHARED
    return float(1 << (-(-size // STEP) * STEP - 1).bit_length())
