"""How long publishing keeps the learner's step, before and after: both sides in one run.

    .venv/bin/python -m benchmarks.publication [--hidden 1024 --layers 12]

Random Qwen2 weights in float32, the real engine on one rank, the embedded Redis, files on the disk of
--folder. Before: weights are copied into new memory, and over `file` hashed and written, within the step.
After: they are copied into memory that is kept, and the rest happens while the next step trains. The
background is waited for between two versions, and that time is printed too: a step that is shorter than it
waits for the rest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from common.load import load
from common.redis import connect
from deploy.launch.redis_server import RedisServer
from learner.engine import Engine, set_device
from learner.extensions import compile_extensions
from learner.weights.broadcast import BroadcastClient
from learner.weights.file_transport import FileTransport
from learner.weights.host_copy import HostCopy, Snapshot
from learner.weights.publisher import Publisher


class Gathering(Snapshot):
    """The engine's parameters, each copied into new memory as it is written."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(1, list(engine.hf.named_parameters()), torch.device("cpu"))
        self._engine = engine

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._engine.gathered()


def model(folder: Path, hidden: int, layers: int) -> int:
    """Write a random model to `folder`; its number of parameters."""
    config = Qwen2Config(
        vocab_size=32_000,
        hidden_size=hidden,
        intermediate_size=hidden * 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 256,
        tie_word_embeddings=True,
    )
    made = Qwen2ForCausalLM(config)
    made.save_pretrained(folder)
    return int(made.num_parameters())


def seconds(action: Callable[[], Any]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def show(name: str, before: list[float], after: list[float]) -> None:
    old, new = statistics.median(before), statistics.median(after)
    print(f"{name}: {old:.2f} s before, {new:.2f} s after, {old / new:.1f} times less", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name, RedisServer(Path(name) / "redis") as server:
        folder = Path(name)
        count = model(folder / "model", options.hidden, options.layers)
        print(f"{count / 1e6:.0f} million parameters, {4 * count / 1e9:.2f} GB", flush=True)
        config = load("tiny", [f"model.path={folder / 'model'}", "run.name=publication"])
        backend = set_device(config, 0)
        for key, value in {"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513"}.items():
            os.environ.setdefault(key, value)
        torch.distributed.init_process_group(backend, rank=0, world_size=1)
        compile_extensions(lambda doing: None)
        engine = Engine(config, 0, 1)
        publisher = Publisher(config, engine, connect(server.url), folder, 0)
        broadcast = BroadcastClient(config.weights.update_limit_s)
        files = FileTransport(folder / "before", "before", config.model.dtype, lambda _: None, broadcast)
        measure(engine, files, publisher, options.rounds)
        publisher.close()
        torch.distributed.destroy_process_group()


def measure(engine: Engine, files: FileTransport, publisher: Publisher, rounds: int) -> None:
    kept = HostCopy(engine, 0)
    kept.take()  # its memory is made once a run
    fresh = [seconds(lambda: list(engine.gathered())) for _ in range(rounds)]
    show("gloo, nccl", fresh, [seconds(kept.take) for _ in range(rounds)])
    source = Gathering(engine)
    inside = [seconds(lambda: files.write(source)) for _ in range(rounds)]
    publisher.publish(2)
    publisher.wait()
    step, background = list[float](), list[float]()
    for version in range(3, 3 + rounds):
        step.append(seconds(lambda v=version: publisher.publish(v)))  # type: ignore[misc]
        background.append(seconds(publisher.wait))
    show("file", inside, step)
    print(f"file, in the background: {statistics.median(background):.2f} s", flush=True)


if __name__ == "__main__":
    main()
