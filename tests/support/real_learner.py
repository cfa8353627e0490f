"""The real learner as it is started by hand: a launcher, gloo, DeepSpeed, a real queue of recorded groups."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import fingerprint, load_tokenizer, render
from hora_rl.common.load import dump_yaml, load
from hora_rl.common.types import Group, Phase
from hora_rl.deploy.machine.redis_server import RedisServer
from tests.support.groups import fill, group, rollout


def small_run(folder: Path, prompts: int, *more: str) -> Config:
    """The run `r` in `folder`, with batches of so many prompts."""
    batch = [f"rollout.prompts_per_batch={prompts}", "rollout.shards=1"]
    return load("tiny", ["run.name=r", f"run.folder={folder}", *batch, *more])


def recorded(
    config: Config,
    lengths: Sequence[Sequence[int]],
    *,
    per_batch: int,
    without_signal: int | None = None,
    lag: int = 0,
) -> list[Group]:
    """Groups of rollouts of these lengths, `per_batch` of them asked for of each weight version, the same
    every time; sampled `lag` versions before that of their batch.

    Their tokens need not make sense to be learned from. Group `without_signal` has equal rewards.
    """
    rng, tokenizer = np.random.default_rng(0), load_tokenizer(config.model.path)
    prompt, name = render(tokenizer, "12+34=?", config.data), fingerprint(tokenizer)
    groups = []
    for index, of_group in enumerate(lengths):
        batch, pre_rollouts = index // per_batch, min(2, len(of_group))
        rollouts = []
        for j, n in enumerate(of_group):
            right = index == without_signal or rng.random() < 0.5
            phase: Phase = "A" if j < pre_rollouts else "B"
            ids, logprobs, version = rng.integers(4, 60, n), -rng.exponential(3.0, n), max(0, batch - lag)
            made = rollout(ids, logprobs=logprobs, version=version, phase=phase, success=bool(right))
            rollouts.append(made)
        place = {"batch": batch, "rule": "hit_utility", "tokenizer": name, "prompt": prompt}
        groups.append(group(index, rollouts, pre_rollouts=pre_rollouts, **place))
    return groups


def start(
    config: Config,
    server: RedisServer,
    folder: Path,
    kind: str = "torchrun",
    drift_limit: float | None = None,
) -> subprocess.Popen[bytes]:
    """The learner on learner.workers ranks, in a process group of its own; what it prints is added to
    learner.log.

    Recorded log-probs are no policy's, so by default no drift stops it.
    """
    ranks, file = config.learner.workers, folder / "config.yaml"
    weights = config.weights.model_copy(update={"drift_limit": drift_limit})
    file.write_text(dump_yaml(config.model_copy(update={"weights": weights})))
    port = str(random.randint(20000, 40000))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    if kind == "deepspeed":
        program = str(Path(sys.executable).with_name("deepspeed"))
        launcher = [program, "--num_gpus", str(ranks), "--master_port", port, "--module"]
    elif ranks > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        launcher = [sys.executable, *torchrun, "-m"]
    else:
        launcher, env = [sys.executable, "-m"], {**env, "MASTER_PORT": port}
    command = [*launcher, "hora_rl.learner.main", "--config", str(file), "--redis", server.url, "--no-ray"]
    with (folder / "learner.log").open("ab") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def said(folder: Path) -> str:
    return (folder / "learner.log").read_text()


def ended(process: subprocess.Popen[bytes]) -> int:
    """The status with which it ends by itself."""
    try:
        return process.wait(300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def finish(process: subprocess.Popen[bytes], folder: Path) -> dict[str, torch.Tensor]:
    """The weights of the model that the run of that process exported."""
    assert ended(process) == 0, said(folder)[-3000:]
    return load_file(folder / "r" / "model" / "model.safetensors")


def trained(
    config: Config, groups: Iterable[Group], folder: Path, kind: str = "torchrun"
) -> dict[str, torch.Tensor]:
    """The weights after an undisturbed run over `groups` with everything in `folder`."""
    folder.mkdir(exist_ok=True)
    with RedisServer(folder / "redis") as server:
        fill(config, server, groups)
        return finish(start(config, server, folder, kind), folder)
