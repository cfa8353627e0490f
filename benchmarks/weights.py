"""One version of the weights from the end of a step into the memory of an engine, over files in memory: a new
file for every version, and sealed memory that versions share. No cards, no engine, no Redis.

    python -m benchmarks.weights [--gb 1] [--versions 7]

Both ways take turns in one process, with the same digests. `gather` is what the learner's step waits for, and
`load` what generation waits for; between them the next step runs. On a card gather and load are copies over
the bus, which this program does not see.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table
from safetensors import safe_open

from hora_rl.common.weights.announcement import check_file, path_of
from hora_rl.common.weights.file_receiver import mapped
from hora_rl.common.weights.file_sender import FileTransport
from hora_rl.common.weights.host_memory import HostBlock, size_of
from hora_rl.common.weights.weight_file import BLOCK, hasher, header_of
from hora_rl.learner.weights.host_copy import HostCopy

LAYERS = 28
STAGES = ("gather", "write", "check", "load")


class Model:
    """What publication needs of the learner's engine."""

    device = torch.device("cpu")

    def __init__(self, gb: float) -> None:
        width = int((gb * 1e9 / 2 / LAYERS / 12) ** 0.5)
        shapes = {"attention": (4 * width, width), "up": (4 * width, width), "down": (width, 4 * width)}
        self.hf = torch.nn.Module()
        for layer in range(LAYERS):
            for name, shape in shapes.items():
                weight = torch.nn.Parameter(torch.randn(shape).bfloat16(), requires_grad=False)
                self.hf.register_parameter(f"layer_{layer}_{name}", weight)

    def published(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.hf.named_parameters()


class Times:
    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {stage: [] for stage in STAGES}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.of[name].append(time.monotonic() - began)

    def medians(self) -> list[float]:
        return [statistics.median(self.of[stage][1:]) for stage in STAGES]  # the first allocates


def new_file_for_each(model: Model, loaded: dict[str, torch.Tensor], times: Times) -> Callable[[int], None]:
    block = HostBlock(size_of(model.hf.parameters()), pinned=False)

    def publish(version: int) -> None:
        with times.stage("gather"):
            block.restart()
            taken = {name: block.like(tensor).copy_(tensor) for name, tensor in model.published()}
        with times.stage("write"):
            header = header_of([(name, t.dtype, tuple(t.shape)) for name, t in taken.items()], version)
            memory, digest = os.memfd_create("weights"), hasher()
            with open(memory, "wb", closefd=False) as file:
                for chunk in (
                    header,
                    *(cast(Any, t.flatten().view(torch.uint8)).numpy() for t in taken.values()),
                ):
                    file.write(chunk)
                    digest.update(chunk)
        with times.stage("check"), open(path_of(memory), "rb") as file:
            result, room = hasher(), memoryview(bytearray(BLOCK))
            while count := file.readinto(room):  # type: ignore[attr-defined]
                result.update(room[:count])
            assert result.digest() == digest.digest()
        with times.stage("load"), safe_open(path_of(memory), framework="pt") as opened:  # type: ignore[no-untyped-call]
            for name in opened.keys():  # noqa: SIM118
                loaded[name].copy_(opened.get_tensor(name))
        os.close(memory)

    return publish


def memory_that_versions_share(
    model: Model, loaded: dict[str, torch.Tensor], times: Times, folder: Path
) -> Callable[[int], None]:
    files = FileTransport(folder, "benchmark", lambda _: None, cast(Any, None), 10**6, lambda: True)
    copy = HostCopy(cast(Any, model), 0, files.room)

    def publish(version: int) -> None:
        with times.stage("gather"):
            weights = copy.snapshot(version, model.device)
        assert weights is not None
        with times.stage("write"):
            manifest = files.write(weights)
            files.announce(manifest)
        with times.stage("check"):
            file = check_file(manifest.update_info())
        with times.stage("load"), file:
            for name, tensor in mapped(path_of(file.fileno())):
                loaded[name].copy_(tensor)

    return publish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--versions", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # threads that wait for each other measure what else the machine does
    model = Model(arguments.gb)
    loaded = {name: torch.empty_like(tensor) for name, tensor in model.published()}
    before, after = Times(), Times()
    with tempfile.TemporaryDirectory() as folder:
        ways = (
            new_file_for_each(model, loaded, before),
            memory_that_versions_share(model, loaded, after, Path(folder)),
        )
        for version in range(1, arguments.versions + 1):
            for publish in ways:
                publish(version)
                assert all(torch.equal(loaded[name], tensor) for name, tensor in model.published())
    table = Table("seconds, median", *STAGES, "all")
    for name, times in (("a new file for each", before), ("memory that versions share", after)):
        table.add_row(name, *(f"{s:.2f}" for s in times.medians()), f"{sum(times.medians()):.2f}")
    console = Console()
    console.print(table)
    ratio = sum(before.medians()) / sum(after.medians())
    console.print(f"{arguments.gb:g} GB: {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
