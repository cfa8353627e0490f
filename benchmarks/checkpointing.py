"""How long a checkpoint keeps the learner's step, before and after: both sides in one run.

    .venv/bin/python -m benchmarks.checkpointing [--hidden 1024 --layers 12]

Random Qwen2 weights in float32 with AdamW's state, the real engine on one rank, checkpoints on the disk of
--folder. Before: everything is written, synced and hashed within the step. After: the step waits for the copy
in host memory, and a thread does the rest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import torch
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

from benchmarks.publication import model, seconds, show
from common.load import load
from learner.checkpoint import Checkpoints
from learner.engine import Engine, set_device
from learner.extensions import compile_extensions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        count = model(folder / "model", options.hidden, options.layers)
        print(f"{count / 1e6:.0f} million parameters, {12 * count / 1e9:.2f} GB a checkpoint", flush=True)
        config = load(
            "tiny", [f"model.path={folder / 'model'}", "run.name=checkpointing", "learner.zero_stage=2"]
        )
        backend = set_device(config, 0)
        for key, value in {"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29514"}.items():
            os.environ.setdefault(key, value)
        torch.distributed.init_process_group(backend, rank=0, world_size=1)
        compile_extensions(lambda doing: None)
        engine = Engine(config, 0, 1)
        engine.step([])  # AdamW makes its state in the first step
        measure(engine, Checkpoints(config, folder, 0, 1), options.rounds)
        torch.distributed.destroy_process_group()


def measure(engine: Engine, checkpoints: Checkpoints, rounds: int) -> None:
    aside = engine._writer
    engine._writer, engine._engine.checkpoint_engine = None, TorchCheckpointEngine(engine._engine._config)
    before = [seconds(lambda s=s: checkpoints.save(engine, s)) for s in range(1, 1 + rounds)]  # type: ignore[misc]
    engine._writer = engine._engine.checkpoint_engine = aside
    checkpoints.save(engine, 1 + rounds)  # the memory of the copy is made once a run
    after, background = list[float](), list[float]()
    for step in range(2 + rounds, 2 + 2 * rounds):
        after.append(seconds(lambda s=step: checkpoints.begin(engine, s)))  # type: ignore[misc]
        background.append(seconds(lambda: checkpoints.finished(wait=True)))
    show("checkpoint", before, after)
    print(f"checkpoint, aside: {statistics.median(background):.2f} s", flush=True)


if __name__ == "__main__":
    main()
