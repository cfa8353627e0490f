"""A digest of tensors; those of files are in `weight_file`, which loads no torch."""

import hashlib
from collections.abc import Iterable

import torch

CHUNK = 2**20
"""Words per sum: 8 MB, so that a product fits in a GPU's cache."""
WORD = 8


class TensorHash:
    """A digest of tensors, computed on their device in one pass. Keeps the factors w_i on each device.

    The bytes are 64-bit words x_i. Each chunk of words gives Σ w_i·x_i mod 2^64 with fixed random odd w_i
    (multilinear hashing). A flipped bit always changes the sum, because an odd w_i times a power of two is
    not 0 mod 2^64. Swapped words change it except with probability about 2^-63. The order and names of chunks
    and tensors enter too. It compares replicas; it does not protect against an adversary."""

    def __init__(self) -> None:
        self._factors: dict[torch.device, torch.Tensor] = {}

    def digest(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
        """64 hex digits over names, types, shapes and bytes of `tensors`, in order.

        Waits for the device once, at the end."""
        about, sums = [], []
        for name, tensor in tensors:
            of_tensor = list(self._sums(tensor.detach()))
            about.append(f"{name} {tensor.dtype} {tuple(tensor.shape)} {len(of_tensor)};")
            sums += of_tensor
        values = torch.stack(sums).tolist() if sums else []
        return hashlib.sha256(("".join(about) + repr(values)).encode()).hexdigest()

    def _sums(self, tensor: torch.Tensor) -> Iterable[torch.Tensor]:
        flat = tensor.reshape(-1)
        if flat.stride(0) != 1 or flat.storage_offset() * flat.element_size() % WORD:
            flat = flat.clone(memory_format=torch.contiguous_format)
        flat = flat.view(torch.uint8)
        complete = len(flat) // WORD * WORD
        for words in flat[:complete].view(torch.int64).split(CHUNK):
            yield self._sum(words)
        if complete < len(flat):
            rest = torch.zeros(WORD, dtype=torch.uint8, device=flat.device)
            rest[: len(flat) - complete] = flat[complete:]
            yield self._sum(rest.view(torch.int64))

    def _sum(self, words: torch.Tensor) -> torch.Tensor:
        factors = self._factors_on(words.device)[: len(words)]
        if words.device.type == "cpu":  # no GPU has a dot product of integers
            return torch.dot(words, factors)
        return (words * factors).sum()

    def _factors_on(self, device: torch.device) -> torch.Tensor:
        if device not in self._factors:
            source = torch.Generator().manual_seed(0)
            low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
            random = torch.randint(low, high, (CHUNK,), dtype=torch.int64, generator=source)
            self._factors[device] = (random | 1).to(device)
        return self._factors[device]
