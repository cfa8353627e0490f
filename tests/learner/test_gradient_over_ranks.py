"""The gradient that the real learner descends, over real ranks and every ZeRO stage, is the formula's.

The optimizer is made a ruler: with betas 0 and a huge epsilon an AdamW step moves the weights by RATIO times the
gradient and nothing else, so that the gradient can be read from the model that the run exports.
"""

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from common.config import Config
from common.load import dump_yaml, load
from common.prompts import fingerprint, load_tokenizer, render
from common.queue import Producer
from common.redis import connect_async
from common.types import Group, Rollout, VersionSpan
from deploy.redis_server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EPSILON = 1e6
SIZES = (2, 3, 5, 11, 60, 4)  # G_i; the last group has no signal


def configuration(folder: Path, ratio: float, *more: str) -> Config:
    return load(
        "tiny",
        [
            "run.name=r",
            f"run.folder={folder}",
            "learner.steps=1",
            f"rollout.prompts_per_batch={len(SIZES)}",
            "rollout.shards=1",
            "rollout.group_size=20",
            "rollout.max_response_tokens=100",
            "learner.tokens_per_microbatch=512",
            "learner.optimizer.betas=[0.0, 0.0]",
            f"learner.optimizer.epsilon={EPSILON}",
            f"learner.optimizer.learning_rate={ratio * EPSILON}",
            "learner.optimizer.max_grad_norm=1e9",
            *more,
        ],
    )


def groups(config: Config) -> list[Group]:
    rng, tokenizer = np.random.default_rng(0), load_tokenizer(config.model.path)
    prompt, name = render(tokenizer, "12+34=?", config.data), fingerprint(tokenizer)
    found = []
    for index, size in enumerate(SIZES):
        rollouts = []
        for j in range(size):
            n = int(rng.integers(1, 101))
            right = 1.0 if index == len(SIZES) - 1 else float(rng.random() < 0.5)
            tokens, logprobs = rng.integers(4, 60, n), -rng.exponential(3.0, n)
            rollouts.append(
                Rollout(
                    tokens.astype(np.int32),
                    logprobs.astype(np.float32),
                    "stop",
                    (VersionSpan(0, 0, n),),
                    "A" if j < 2 else "B",
                    {"accuracy": right, "format": 1.0},
                )
            )
        found.append(Group("r", 0, index, 0, 0, "hit_utility", (1.0, 1.0), name, 2, prompt, tuple(rollouts)))
    return found


def logprobs_of(model: torch.nn.Module, group: Group, rollout: Rollout, temperature: float) -> torch.Tensor:
    ids = torch.from_numpy(np.concatenate([group.prompt_tokens, rollout.tokens])).long()
    logits = model(ids[None]).logits[0, len(group.prompt_tokens) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(-1, ids[len(group.prompt_tokens) :, None])[:, 0]


def descend(config: Config, data: list[Group], ratio: float, updates: int) -> dict[str, torch.Tensor]:
    """The weights after `updates` plain steps along the formula's gradient, one completion at a time, in float64."""
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float64)
    objective, rollout = config.learner.objective, config.rollout
    with torch.no_grad():
        prox = [[logprobs_of(model, g, r, rollout.temperature) for r in g.rollouts] for g in data]
    for _ in range(updates):
        model.zero_grad()
        for g, of_group in zip(data, prox, strict=True):
            rewards = np.array(
                [sum(w * r.rewards[n] for n, w in config.reward.weights.items()) for r in g.rollouts]
            )
            if rewards.std() == 0:
                continue
            advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
            for r, a, old in zip(g.rollouts, advantages, of_group, strict=True):
                ratio_ = torch.exp(logprobs_of(model, g, r, rollout.temperature) - old)
                clipped = ratio_.clamp(1 - objective.clip_low, 1 + objective.clip_high)
                weight = torch.exp(old - torch.from_numpy(r.logprobs)).clamp(max=objective.importance_cap)
                loss = -(weight * torch.minimum(ratio_ * a, clipped * a)).sum()
                (loss / (len(data) * g.size * rollout.max_response_tokens)).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= ratio * p.grad
    return {n: p.detach() for n, p in model.named_parameters()}


def launcher(kind: str, ranks: int) -> list[str]:
    """The command that starts `ranks` processes of a module named after it."""
    if kind == "deepspeed":
        program = str(Path(sys.executable).with_name("deepspeed"))
        # Its default port may be taken; no cores are bound, for that needs numactl.
        return [
            program,
            "--num_gpus",
            str(ranks),
            "--master_port",
            str(random.randint(20000, 40000)),
            "--module",
        ]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [sys.executable, *(torchrun if ranks > 1 else []), "-m"]


def trained(
    config: Config, data: list[Group], folder: Path, ranks: int, kind: str = "torchrun"
) -> dict[str, torch.Tensor]:
    """The weights after the real learner's run: a launcher, gloo, DeepSpeed, a real queue."""

    async def push(url: str) -> None:
        client = connect_async(url)
        for group in data:
            await Producer(client, config).push(group)
        await client.aclose()

    (folder / "config.yaml").write_text(dump_yaml(config))
    with RedisServer(folder / "redis") as server:
        asyncio.run(push(server.url))
        learner = ["learner.main", "--config", str(folder / "config.yaml"), "--redis", server.url]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        env |= {"MASTER_PORT": str(random.randint(20000, 40000))} if kind == "torchrun" else {}
        with (folder / "learner.log").open("wb") as log:
            command = [*launcher(kind, ranks), *learner, "--no-ray"]
            ended = subprocess.run(command, env=env, stdout=log, stderr=log, timeout=300).returncode
        assert ended == 0, (folder / "learner.log").read_text()[-3000:]
    return load_file(folder / "r" / "model" / "model.safetensors")


def relative(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], start: dict) -> float:
    """|found - wanted| over |wanted - start|, all weights together."""
    apart = torch.cat([(found[n].double() - wanted[n]).flatten() for n in wanted]).norm()
    moved = torch.cat([(wanted[n] - start[n].double()).flatten() for n in wanted]).norm()
    assert moved > 0
    return float(apart / moved)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_gradient_is_the_formulas_over_real_ranks_and_zero_stages(
    tmp_path: Path, ranks: int, stage: int
) -> None:
    ratio = 1e4  # far: what is left of the old weights must not drown the gradient in float32
    config = configuration(tmp_path, ratio, f"learner.zero_stage={stage}", f"learner.workers={ranks}")
    data = groups(config)
    start = load_file(Path(config.model.path) / "model.safetensors")
    found = trained(config, data, tmp_path, ranks)
    error = relative(found, descend(config, data, ratio, 1), start)
    print(f"ranks {ranks}, ZeRO {stage}: {error:.1e}")
    assert error < 1e-5


def test_the_deepspeed_launcher_runs_the_same_learner(tmp_path: Path) -> None:
    ratio = 1e4
    config = configuration(tmp_path, ratio, "learner.zero_stage=1", "learner.workers=2")
    data = groups(config)
    start = load_file(Path(config.model.path) / "model.safetensors")
    found = trained(config, data, tmp_path, 2, "deepspeed")
    assert relative(found, descend(config, data, ratio, 1), start) < 1e-5


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 0), (2, 3)])
def test_several_updates_on_a_batch_clip_against_the_policy_before_the_first(
    tmp_path: Path, ranks: int, stage: int
) -> None:
    ratio = 3.0
    config = configuration(
        tmp_path,
        ratio,
        f"learner.zero_stage={stage}",
        f"learner.workers={ranks}",
        "learner.objective.updates_per_batch=3",
    )
    data = groups(config)
    start = load_file(Path(config.model.path) / "model.safetensors")
    found, wanted = trained(config, data, tmp_path, ranks), descend(config, data, ratio, 3)
    error = relative(found, wanted, start)
    print(f"ranks {ranks}, ZeRO {stage}, three updates: {error:.1e}")
    assert error < 1e-4
    one = descend(config, data, 3 * ratio, 1)
    assert relative(one, wanted, start) > 1e-2, "three updates must differ from one of three times the length"
