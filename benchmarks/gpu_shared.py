"""Two processes share a buffer of weights (`weights.transport: ipc`), on a GPU by CUDA's handle to it.
Part of `benchmarks.gpu_acceptance`; needs torch and pydantic."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from common.errors import StaleWeights
from common.shared_buffer import Address, SharedBuffer, copied, reading
from common.weight_hash import TensorHash

LIMIT_S = 60.0
Found = tuple[str, bool, str, str]


def shared_weights(size: int, device: torch.device) -> Iterator[Found]:
    """Name, verdict, figure and expectation of each line. `size` bytes are shared."""
    buffer, kind = SharedBuffer(size, device), "CUDA's handle" if device.type == "cuda" else "host memory"
    with _reader(device) as reader:
        yield from _copies(buffer, reader, kind)
        yield _waits(buffer, reader)
    yield _refuses(buffer, device)


def _copies(buffer: SharedBuffer, reader: _Reader, kind: str) -> Iterator[Found]:
    right, seconds = True, list[float]()
    for seed in range(3):
        _fill(buffer, seed)
        said = reader.ask("copy", buffer.address)
        right &= said["digest"] == _digest(buffer.memory)
        seconds.append(said["seconds"])
    figure = f"{buffer.memory.nbytes / 1e9 / min(seconds):.2f} GB/s with the digest, {kind}"
    yield "shared weights, three versions", right, figure, "the other process's digests are equal"


def _waits(buffer: SharedBuffer, reader: _Reader) -> Found:
    """The owner does not write what is read, until the reader is killed."""
    reader.ask("stay", buffer.address)
    name, expected = "shared weights, a reader that is killed", "waited for, and not after its death"
    before = _digest(buffer.memory)
    try:
        _fill(buffer, 7, limit_s=0.5)
    except TimeoutError:
        waited = _digest(buffer.memory) == before
    else:
        return name, False, "overwritten while it was read", expected
    reader.process.kill()
    reader.process.wait()
    began = time.monotonic()
    _fill(buffer, 8)
    return name, waited, f"filled again after {time.monotonic() - began:.2f} s", expected


def _refuses(buffer: SharedBuffer, device: torch.device) -> Found:
    name = "shared weights, another version or card"
    told = buffer.address
    _fill(buffer, 9)
    wrong = [told]
    if buffer.address.cuda is not None:
        card = buffer.address.cuda.model_copy(update={"uuid": "another"})
        wrong.append(buffer.address.model_copy(update={"cuda": card}))
    for address in wrong:
        try:
            copied(address, device)
        except StaleWeights:
            continue
        return name, False, "was mapped", "refused before it is mapped"
    return name, True, f"{len(wrong)} of {len(wrong)} refused", "refused before it is mapped"


def _fill(buffer: SharedBuffer, seed: int, limit_s: float = LIMIT_S) -> None:
    source = torch.Generator(device=buffer.memory.device).manual_seed(seed)
    with buffer.filling(limit_s) as memory:
        memory.random_(0, 256, generator=source)


def _digest(memory: torch.Tensor) -> str:
    return TensorHash().digest([("weights", memory)])


class _Reader:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, what: str, address: Address) -> dict[str, Any]:
        """The other process's answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([what, address.model_dump()]) + "\n")
        self.process.stdin.flush()
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said


@contextmanager
def _reader(device: torch.device) -> Iterator[_Reader]:
    command = [sys.executable, "-m", "benchmarks.gpu_shared", str(device)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _Reader(process)
        finally:
            process.kill()


def main() -> None:
    """The other process: reads `[what, address]`, a line each."""
    device = torch.device(sys.argv[1])
    for line in sys.stdin:
        what, said = json.loads(line)
        address = Address.model_validate(said)
        if what == "copy":
            began = time.perf_counter()
            digest = _digest(copied(address, device))
            answer: dict[str, Any] = {"digest": digest, "seconds": time.perf_counter() - began}
            print(json.dumps(answer), flush=True)
            continue
        with reading(address, device):
            print(json.dumps({"stays": True}), flush=True)
            time.sleep(LIMIT_S)


if __name__ == "__main__":
    main()
