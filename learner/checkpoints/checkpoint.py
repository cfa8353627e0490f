"""Durable checkpoints: complete or absent, verified before loading, the newest N kept.

    RUN/checkpoints/step-00000010/   DeepSpeed's state, random state per rank, manifest.json

A thread of each rank writes, syncs and hashes under a temporary name; the step waits only for the copy in
host memory. When all threads are done, the ranks sign and rename, at the end of a later step. So a folder
named step-* was complete once. One that no longer matches its manifest is renamed to refused-step-*, and the
previous one is used: the queue drops groups only when the oldest kept checkpoint contains their step."""

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import torch

from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.files import remove, sync, sync_tree
from hora_rl.learner.checkpoints.manifest import (
    NAME,
    Manifest,
    Refused,
    check_files,
    digest,
    make_secret,
    read_manifest,
    read_secret,
)
from hora_rl.learner.checkpoints.origin import steps_in
from hora_rl.learner.model.engine import Engine
from hora_rl.learner.model.lora import IDENTITY, check_identity, identity
from hora_rl.learner.model.optimizer import effective_stage
from hora_rl.learner.ranks import gathered

log = structlog.get_logger(__name__)
TAG = "state"
SEEN_S = 90.0  # NFS caches a folder for up to a minute
WRITER = re.compile(r"(?:pp_rank_|random-)(\d+)[_.]")
"""Rank in the name of a file; files without one are written by rank 0."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A rank's result: [bytes, BLAKE3] of its files by path; by step the damage in older checkpoints."""

    digests: dict[str, tuple[int, str]]
    troubles: dict[int, str]


class Checkpoints:
    """Checkpoints of one run. All but `newest` are collectives of all ranks, the constructor too."""

    def __init__(self, config: Config, run_dir: Path, rank: int, world: int) -> None:
        self._folder = run_dir / "checkpoints"
        self._config, self._rank, self._world = config, rank, world
        self._verified: set[int] = set()  # read again after writing
        self.refused: list[str] = []
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: tuple[int, Future[_Written]] | None = None  # step
        self.seconds = 0.0
        """How long the newest checkpoint blocked its step."""
        if rank == 0:
            make_secret(run_dir)
        gathered(None)  # wait for all ranks
        self._wait_for(run_dir / "secret", "the run's secret")
        self._secret = read_secret(run_dir)

    def newest(self) -> int:
        """Step of the newest checkpoint visible on this machine; 0 without any."""
        return max(steps_in(self._folder), default=0)

    def begin(self, engine: Engine, step: int) -> None:
        """Copy the state after `step` steps and write it in the background, when no other write is in
        progress."""
        began, folder = time.monotonic(), self._partial(step)
        assert self._writing is None
        if self._rank == 0:
            # Left by a learner that died while writing or deleting a checkpoint.
            for torn in self._folder.glob("partial-*"):
                shutil.rmtree(torn)
            folder.mkdir(parents=True)
            if (lora := self._config.learner.lora) is not None:
                (folder / IDENTITY).write_text(json.dumps(identity(self._config.model.path, lora)))
        gathered(None)
        older = [s for s in self._there() if s < step and s not in self._verified]
        look = older[: self._config.learner.keep_checkpoints - 1]
        job = self._aside.submit(self._write, folder, engine.save(folder, TAG), torch.get_rng_state(), look)
        self._writing = step, job
        self.seconds = time.monotonic() - began

    def finished(self, *, wait: bool = False) -> int | None:
        """None while nothing is being written or some rank still writes. Once the checkpoint is durable,
        returns the step of the oldest checkpoint that a restart may need, 0 for the initial policy. Groups of
        earlier steps may be dropped.

        While a checkpoint is written, each kept one is compared with its manifest again."""
        if self._writing is None or not all(gathered(wait or self._writing[1].done())):
            return None
        (step, job), self._writing = self._writing, None
        result = job.result()
        written = gathered(result)
        if self._rank == 0:
            files = {name: entry for of_rank in written for name, entry in of_rank.digests.items()}
            folder, final = self._partial(step), self._of(step)
            Manifest(self._config.run.name, step, self._world, files).write(folder, self._secret)
            sync(folder / NAME, folder)
            if final.exists():  # its groups may have been dropped already: keep the old one
                remove(folder)
            else:
                folder.rename(final)
            sync(self._folder)
        looked = {
            old: next((w.troubles[old] for w in written if w.troubles[old]), "") for old in result.troubles
        }
        return self._prune(step, looked)

    def close(self) -> None:
        self._aside.shutdown()

    def _write(
        self, folder: Path, write: Callable[[], None], random: torch.Tensor, look: list[int]
    ) -> _Written:
        """This rank's part, on a thread: no collective. Also reads its share of the checkpoints `look`."""
        write()
        torch.save({"cpu": random}, folder / f"random-{self._rank}.pt")
        sync_tree(folder)  # on every rank: each machine syncs its files
        digests = self._own_digests(folder)
        return _Written(digests, {step: _refusal(partial(self._read_share, step)) for step in look})

    def restore(self, engine: Engine) -> int:
        """Load the newest checkpoint that matches its manifest. All ranks load the one that rank 0 chooses.
        Returns its step, 0 without any. Damaged ones are renamed and listed in `refused`.

        Raises RunError when a machine does not see that checkpoint, and ConfigError when the number of ranks
        differs."""
        while step := engine.agree(self.newest()):
            trouble = self._trouble(step)
            if not trouble:
                self._load(engine, step)
                return step
            self._set_aside(step, trouble)
        return 0

    def _load(self, engine: Engine, step: int) -> None:
        folder, world = self._of(step), self._manifest(step).world
        learner, model = self._config.learner, self._config.model
        if world != self._world and effective_stage(learner, model.dtype) > 0:
            raise ConfigError(
                f"{folder} holds the optimizer's parts of {world} ranks, and there are {self._world}: with "
                "learner.zero_stage above 0 (or 16 bits) a run keeps the number it began with; change "
                "learner.workers back"
            )
        check_identity(folder, model.path, learner.lora)
        engine.load(folder, TAG)
        random = folder / f"random-{self._rank}.pt"
        if random.exists():
            torch.set_rng_state(torch.load(random, weights_only=True)["cpu"])

    def _there(self) -> list[int]:
        """Steps of the checkpoints that rank 0 sees, newest first."""
        return gathered(sorted(steps_in(self._folder), reverse=True))[0]

    def _prune(self, newest: int, looked: Mapping[int, str]) -> int:
        """Keep the newest learner.keep_checkpoints that match their manifests. Returns the step of the oldest
        of them, 0 while there are fewer. `looked` holds the damage found by step in those already read."""
        keep, kept = self._config.learner.keep_checkpoints, [newest]
        known = {**looked, **dict.fromkeys(self._verified, "")}
        for step in (s for s in self._there() if s < newest):
            if len(kept) == keep:
                if self._rank == 0:
                    remove(self._of(step))
            elif trouble := self._trouble(step) if step not in known else known[step]:
                self._set_aside(step, trouble)
            else:
                kept.append(step)
        self._verified = set(kept[1:])
        gathered(None)
        return kept[-1] if len(kept) == keep else 0

    def _trouble(self, step: int) -> str:
        """Why the checkpoint of `step` is refused; empty when correct. Rank 0 checks names, sizes and
        signature, then each rank reads its share of the files."""
        folder = self._of(step)
        first = gathered(_refusal(lambda: self._manifest(step)) if self._rank == 0 else "")[0]
        if first:
            return first
        self._wait_for(folder / NAME, "this checkpoint")
        return next(filter(None, gathered(_refusal(lambda: self._read_share(step)))), "")

    def _manifest(self, step: int) -> Manifest:
        return read_manifest(self._of(step), self._secret, self._config.run.name, step)

    def _read_share(self, step: int) -> None:
        manifest = self._manifest(step)
        largest_first = sorted(manifest.files, key=lambda name: (-manifest.files[name][0], name))
        check_files(self._of(step), manifest, largest_first[self._rank :: self._world])

    def _set_aside(self, step: int, trouble: str) -> None:
        """Rename a damaged checkpoint to refused-step-*."""
        folder = self._of(step)
        aside = folder.with_name(f"refused-{folder.name}")
        self.refused.append(f"{folder.name}: {trouble}")
        if self._rank == 0:
            if aside.exists():
                shutil.rmtree(aside)
            folder.rename(aside)
            sync(self._folder)
            log.error("a checkpoint is refused", checkpoint=str(folder), reason=trouble, now=aside.name)
        gathered(None)

    def _own_digests(self, folder: Path) -> dict[str, tuple[int, str]]:
        """[bytes, BLAKE3] by relative path of the files in `folder` that this rank wrote."""
        digests = {}
        for path in (p for p in folder.rglob("*") if p.is_file()):
            writer = WRITER.search(path.name)
            if (int(writer[1]) if writer else 0) == self._rank:
                digests[str(path.relative_to(folder))] = digest(path)
        return digests

    def _of(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"

    def _partial(self, step: int) -> Path:
        return self._folder / f"partial-{step:08d}"

    def _wait_for(self, file: Path, what: str) -> None:
        """Wait for a file of another machine, which may take seconds to appear on a shared disk."""
        deadline = time.monotonic() + SEEN_S
        while not file.exists():
            if time.monotonic() > deadline:
                raise RunError(
                    f"{file.parent}: rank 0 found {what}, rank {self._rank} does not see it: run.folder must "
                    "lie on a disk that all machines of the learner share"
                )
            list(file.parent.parent.glob("*"))  # makes a network disk look again
            time.sleep(0.5)


def _refusal(look: Callable[[], object]) -> str:
    try:
        look()
    except Refused as refused:
        return str(refused)
    return ""
