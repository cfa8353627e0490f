"""Copies in host memory take the bytes of what they copy, and not the next power of two."""

import pytest
import torch

from hora_rl.learner.host_block import ALIGNED, HostBlock, size_of

SHAPES = [((3, 5), torch.float32), ((), torch.int64), ((0, 4), torch.float32), ((7,), torch.bfloat16)]


def test_every_tensor_has_an_aligned_place_of_its_own_in_one_block_of_their_size() -> None:
    tensors = [torch.full(shape, i + 1, dtype=dtype) for i, (shape, dtype) in enumerate(SHAPES)]
    block = HostBlock(size_of(tensors), pinned=False)
    assert block.size <= sum(t.nbytes for t in tensors) + ALIGNED * len(tensors)
    for factor in (1, 2):
        block.restart()
        copies = [block.like(t).copy_(t * factor) for t in tensors]
        assert all(torch.equal(c, t * factor) for c, t in zip(copies, tensors, strict=True))
        assert all(c.dtype == t.dtype and c.shape == t.shape for c, t in zip(copies, tensors, strict=True))
        assert all(c.data_ptr() % ALIGNED == 0 for c in copies if c.numel())
    with pytest.raises(ValueError, match="no room"):
        block.like(torch.zeros(1000))


def test_a_sharded_parameter_counts_whole() -> None:
    shard = torch.nn.Parameter(torch.zeros(4))
    shard.ds_numel = 64  # type: ignore[attr-defined]
    assert size_of([shard]) == 256


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU, this machine has none")
def test_a_block_for_a_gpu_is_pinned_and_can_be_made_again() -> None:
    source = torch.arange(1000.0, device="cuda")
    for _ in range(3):
        block = HostBlock(size_of([source]), pinned=True)
        copy = block.like(source)
        assert copy.is_pinned()
        copy.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(copy, source.cpu())
        del block, copy
