"""The real learner process on real queues: killed anywhere, cut over any ranks, it ends with the same weights."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from common.config import Config
from common.keys import Keys
from common.load import dump_yaml, load
from common.prompts import fingerprint, load_tokenizer, render
from common.queue import Producer
from common.redis import connect, connect_async
from common.types import Group, Rollout, VersionSpan
from deploy.redis_server import RedisServer
from learner.export import export_checkpoint

STEPS, GAMMA = 6, 4
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def configuration(folder: Path, *more: str) -> Config:
    return load(
        "tiny",
        [
            "run.name=r",
            f"run.folder={folder}",
            f"learner.steps={STEPS}",
            "learner.checkpoint_every=2",
            f"rollout.prompts_per_batch={GAMMA}",
            "rollout.shards=1",
            "rollout.group_size=6",
            "rollout.max_staleness=1",
            "learner.tokens_per_microbatch=512",
            *more,
        ],
    )


def groups(config: Config) -> Iterator[Group]:
    """Recorded ragged groups, the same every time. Their tokens need not make sense to be learned from."""
    rng, tokenizer = np.random.default_rng(0), load_tokenizer(config.model.path)
    prompt, name = render(tokenizer, "12+34=?", config.data), fingerprint(tokenizer)
    for index in range(STEPS * GAMMA):
        rollouts = []
        for j in range(int(rng.integers(3, 12))):
            n = int(rng.integers(5, 60))
            logprobs = -rng.exponential(2.0, n).astype(np.float32)
            rewards = {"accuracy": float(rng.random() < 0.5), "format": 1.0}
            span = (VersionSpan(index // GAMMA, 0, n),)
            tokens = rng.integers(4, 60, n).astype(np.int32)
            rollouts.append(Rollout(tokens, logprobs, "stop", span, "A" if j < 2 else "B", rewards))
        yield Group(
            "r", 0, index, index // GAMMA, 0, "hit_utility", (1.0, 1.0), name, 2, prompt, tuple(rollouts)
        )


def fill(config: Config, server: RedisServer) -> None:
    async def push() -> None:
        client = connect_async(server.url)
        for group in groups(config):
            await Producer(client, config).push(group)
        await client.aclose()

    asyncio.run(push())


def start(config: Config, server: RedisServer, folder: Path, ranks: int = 1) -> subprocess.Popen[bytes]:
    file = folder / "config.yaml"
    file.write_text(dump_yaml(config))
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    )
    command = [
        sys.executable,
        *launcher,
        "-m",
        "learner.main",
        "--config",
        str(file),
        "--redis",
        server.url,
        "--no-ray",
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(random.randint(20000, 40000))}
    log = (folder / "learner.log").open("ab")
    return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def finish(process: subprocess.Popen[bytes], folder: Path) -> dict[str, torch.Tensor]:
    assert process.wait(300) == 0, (folder / "learner.log").read_text()[-3000:]
    return load_file(folder / "r" / "model" / "model.safetensors")


def uninterrupted(folder: Path, *more: str, ranks: int = 1) -> dict[str, torch.Tensor]:
    folder.mkdir()
    config = configuration(folder, *more)
    with RedisServer(folder / "redis") as server:
        fill(config, server)
        return finish(start(config, server, folder, ranks), folder)


def test_a_learner_killed_at_random_moments_ends_with_the_same_weights_bit_by_bit(tmp_path: Path) -> None:
    expected = uninterrupted(tmp_path / "whole")
    folder = tmp_path / "killed"
    folder.mkdir()
    config, rng = configuration(folder), random.Random(0)
    with RedisServer(folder / "redis") as server:
        fill(config, server)
        client, keys = connect(server.url), Keys("r")
        for step in (1, 3, 4):
            process = start(config, server, folder)
            while int(client.hget(keys.state, "step") or 0) < step:
                assert process.poll() is None, (folder / "learner.log").read_text()[-3000:]
                time.sleep(0.002)
            time.sleep(rng.random() * 0.2)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        found = finish(start(config, server, folder), folder)
        assert client.xlen(keys.groups) == 0, "everything is in the last checkpoint"
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    lines = [json.loads(line) for line in (folder / "r" / "groups.jsonl").read_text().splitlines()]
    assert sorted(g["prompt_index"] for g in lines) == list(range(STEPS * GAMMA)), (
        "each group in one surviving step"
    )
    steps = [json.loads(line)["step"] for line in (folder / "r" / "steps.jsonl").read_text().splitlines()]
    assert steps == list(range(STEPS))


@pytest.mark.parametrize(
    ("ranks", "stage"), [(1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3), (4, 0), (4, 3)]
)
def test_ranks_and_zero_stages_train_the_same_model(tmp_path: Path, ranks: int, stage: int) -> None:
    # Plain descent: Adam's first steps divide by gradients of any size and would magnify rounding.
    settings = ("learner.optimizer.epsilon=1.0", "learner.optimizer.learning_rate=0.1")
    alone = uninterrupted(tmp_path / "alone", *settings)
    other = uninterrupted(
        tmp_path / "other", *settings, f"learner.zero_stage={stage}", f"learner.workers={ranks}", ranks=ranks
    )
    initial = load_file(Path(configuration(tmp_path).model.path) / "model.safetensors")
    moved = torch.cat([(alone[n] - initial[n]).flatten() for n in alone]).norm()
    apart = torch.cat([(alone[n] - other[n]).flatten() for n in alone]).norm()
    assert moved > 0
    assert apart / moved < 1e-4
    export_checkpoint(
        tmp_path / "other" / "r", configuration(tmp_path / "other"), None, tmp_path / "exported"
    )
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert all(torch.equal(exported[n], other[n]) for n in other), "the last checkpoint is the run's model"
