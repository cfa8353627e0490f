"""Durable checkpoints: whole or absent, the newest N kept, and the model as a Hugging Face folder.

    RUN/checkpoints/step-00000010/   DeepSpeed's state (weights, optimizer, schedule), random state per rank, meta.json
    RUN/model/                       config, safetensors and tokenizer, for `from_pretrained`

A checkpoint is written beside its place, synced, then renamed: a folder named step-* is complete. What the learner
acknowledges in the queue is what such a folder contains.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import redis
import torch

from common.config import Config
from common.keys import Keys
from learner.engine import Engine

TAG = "state"


class Checkpoints:
    """Checkpoints of one run. `save` and `restore` are collectives of all ranks."""

    def __init__(self, config: Config, client: redis.Redis, run_dir: Path, rank: int, world: int) -> None:
        self._folder = run_dir / "checkpoints"
        self._config, self._rank, self._world = config, rank, world
        self._redis: Any = client

    def newest(self) -> Path | None:
        found = sorted(self._folder.glob("step-*"))
        return found[-1] if found else None

    def save(self, engine: Engine, step: int) -> None:
        """Write the state after `step` steps and return when it is durable."""
        target = self._folder / f"step-{step:08d}"
        partial = self._folder / f"partial-{step:08d}"
        if self._rank == 0:
            for torn in self._folder.glob("partial-*"):  # left by a learner that died while it wrote
                shutil.rmtree(torn)
            partial.mkdir(parents=True)
        self._barrier()
        engine.save(partial, TAG)
        torch.save({"cpu": torch.get_rng_state()}, partial / f"random-{self._rank}.pt")
        self._barrier()
        if self._rank == 0:
            _write(partial / "meta.json", {"step": step, "world": self._world, "run": self._shared_state()})
            _sync(partial)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            _sync_folder(self._folder)
            for old in sorted(self._folder.glob("step-*"))[: -self._config.learner.keep_checkpoints]:
                shutil.rmtree(old)
        self._barrier()

    def restore(self, engine: Engine) -> int:
        """Load the newest checkpoint into `engine`; returns its step, 0 when there is none."""
        folder = self.newest()
        if folder is None:
            return 0
        engine.load(folder, TAG)
        random = folder / f"random-{self._rank}.pt"
        if random.exists():
            torch.set_rng_state(torch.load(random, weights_only=True)["cpu"])
        meta = json.loads((folder / "meta.json").read_text())
        if self._rank == 0:
            self._restore_shared(meta["run"])
        return int(meta["step"])

    def _shared_state(self) -> dict[str, str]:
        """Gate and prior live in Redis; a copy here survives the loss of Redis."""
        cycles = self._redis.hget(Keys(self._config.run.name).state, "cycles")
        return {"cycles": cycles.decode()} if cycles else {}

    def _restore_shared(self, state: dict[str, str]) -> None:
        for name, value in state.items():
            self._redis.hsetnx(Keys(self._config.run.name).state, name, value)

    def _barrier(self) -> None:
        if self._world > 1:
            torch.distributed.barrier()


def export(engine: Engine, config: Config, folder: Path, rank: int) -> None:
    """Write the policy as a Hugging Face folder. A collective; rank 0 writes, whole or not at all."""
    tensors = dict(engine.gathered()) if rank == 0 else {name: None for name, _ in engine.gathered()}
    if rank != 0:
        return
    from transformers import AutoTokenizer

    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    engine.hf.save_pretrained(partial, state_dict=tensors)
    trusted = config.model.trust_remote_code
    AutoTokenizer.from_pretrained(config.model.path, trust_remote_code=trusted).save_pretrained(partial)
    generation = Path(config.model.path) / "generation_config.json"
    if generation.is_file():
        shutil.copy(generation, partial / "generation_config.json")
    _sync(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2))


def _sync(folder: Path) -> None:
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        _sync_folder(path)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
