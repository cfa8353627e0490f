"""Durable checkpoints: whole or absent, the newest N kept.

    RUN/checkpoints/step-00000010/   DeepSpeed's state (weights, optimizer, schedule), random state per rank, meta.json

A checkpoint is written beside its place, synced, then renamed: a folder named step-* is complete. What the learner
acknowledges in the queue is what such a folder contains.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from common.config import Config
from common.errors import ConfigError, RunError
from common.files import sync, sync_tree
from learner.engine import Engine, effective_stage

TAG = "state"
SEEN_S = 90.0  # NFS keeps what it knows of a folder for up to a minute


class Checkpoints:
    """Checkpoints of one run. `save` and `restore` are collectives of all ranks."""

    def __init__(self, config: Config, run_dir: Path, rank: int, world: int) -> None:
        self._folder = run_dir / "checkpoints"
        self._config, self._rank, self._world = config, rank, world

    def newest(self) -> int:
        """Step of the newest checkpoint that this machine sees, 0 when there is none."""
        return max(checkpoints_in(self._folder), default=0)

    def save(self, engine: Engine, step: int) -> None:
        """Write the state after `step` steps and return when it is durable."""
        target = self._of(step)
        partial = self._folder / f"partial-{step:08d}"
        if self._rank == 0:
            # Left by a learner that died while it wrote or removed.
            for torn in self._folder.glob("partial-*"):
                shutil.rmtree(torn)
            partial.mkdir(parents=True)
        self._barrier()
        engine.save(partial, TAG)
        torch.save({"cpu": torch.get_rng_state()}, partial / f"random-{self._rank}.pt")
        sync_tree(partial)  # by every rank: a machine has only its own writes to sync
        self._barrier()
        if self._rank == 0:
            _write(partial / "meta.json", {"step": step, "world": self._world})
            sync(partial / "meta.json", partial)
            if target.exists():  # the queue let go of what it contains: it stays
                self._remove(partial)
            else:
                partial.rename(target)
            sync(self._folder)
            kept = checkpoints_in(self._folder)
            for old in sorted(kept)[: -self._config.learner.keep_checkpoints]:
                self._remove(kept[old])
        self._barrier()

    def _remove(self, folder: Path) -> None:
        """A folder that is half removed must not bear the name of a whole one."""
        shutil.rmtree(folder.rename(self._folder / f"partial-removed-{folder.name}"))

    def restore(self, engine: Engine) -> int:
        """Load the newest checkpoint into `engine`, on every rank the one that rank 0 finds; returns its step, 0 when there is none.

        Raises RunError when a machine does not see it, and ConfigError when it was cut for another number of ranks.
        """
        step = engine.agree(self.newest())
        if step == 0:
            return 0
        folder = self._seen(step)
        meta = json.loads((folder / "meta.json").read_text())
        if meta["world"] != self._world and effective_stage(self._config) > 0:
            raise ConfigError(
                f"{folder} holds the optimizer's parts of {meta['world']} ranks, and there are {self._world}: with learner.zero_stage "
                "above 0 (or 16 bits) a run goes on with as many as it began with; change learner.workers back"
            )
        engine.load(folder, TAG)
        random = folder / f"random-{self._rank}.pt"
        if random.exists():
            torch.set_rng_state(torch.load(random, weights_only=True)["cpu"])
        return step

    def _of(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"

    def _seen(self, step: int) -> Path:
        """The folder of `step`. What another machine wrote to a shared disk may be seen some seconds later."""
        folder, deadline = self._of(step), time.monotonic() + SEEN_S
        while not (folder / "meta.json").exists():
            if time.monotonic() > deadline:
                raise RunError(
                    f"{folder}: rank 0 found this checkpoint, rank {self._rank} does not see it: run.folder must lie on a disk that "
                    "all machines of the learner share"
                )
            list(self._folder.glob("*"))  # asks a network disk anew
            time.sleep(0.5)
        return folder

    def _barrier(self) -> None:
        if self._world > 1:
            torch.distributed.barrier()


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """The whole checkpoints of a run, by step."""
    named = ((path.name.removeprefix("step-"), path) for path in folder.glob("step-*"))
    return {int(step): path for step, path in named if step.isdecimal()}


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2))
