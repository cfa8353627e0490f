"""How exactly micro-batches' gradients add up in bfloat16, at every ZeRO stage: in the model's dtype, and in
float32. Started as `python -m tests.support.gradient_accumulation` on each rank.

One step of the demo's model over 64 micro-batches of one completion each. The gradient is read from the
float32 master weights after a plain step along it, and compared with the sum in float64 of the same
micro-batches' own gradients in the same precision. So the figures are of the adding alone, not of what 16
bits cost in one backward pass.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.learner import engine as engines
from hora_rl.learner.batch import MicroBatch, make_micro_batch
from hora_rl.learner.device import set_device
from hora_rl.learner.engine import Engine, load_model
from hora_rl.learner.logprobs import Policy
from hora_rl.learner.objective import policy_loss
from tests.support.samples import sample

EPSILON, RATIO, LENGTH = 1e6, 1e4, 24
STAGES, COUNT = (1, 2, 3), 64


def configuration(stage: int, world: int) -> Config:
    """AdamW with betas 0 and a huge epsilon: a step moves the weights by RATIO times the gradient."""
    return load(
        "tiny",
        [
            "model.dtype=bfloat16",
            f"learner.zero_stage={stage}",
            f"learner.workers={world}",
            "learner.optimizer.betas=[0.0, 0.0]",
            f"learner.optimizer.epsilon={EPSILON}",
            f"learner.optimizer.learning_rate={RATIO * EPSILON}",
            "learner.optimizer.max_grad_norm=1e30",
        ],
    )


def micro_batches_of(count: int, alike: bool, rank: int, world: int) -> list[MicroBatch]:
    """This rank's of `count` micro-batches; `alike`: every completion is rewarded, so that gradients add
    up."""
    made = []
    for i in range(rank, count, world):
        ids = np.random.default_rng(i).integers(4, 60, 8 + LENGTH)
        advantage = 1.0 if alike or i % 2 else -1.0
        made.append(make_micro_batch([[sample(ids[:8], ids[8:], 0.0, advantage, 1.0 / (count * LENGTH))]]))
    return made


def exact(config: Config, micros: Sequence[MicroBatch]) -> dict[str, torch.Tensor]:
    """The sum in float64 of the gradients of `micros`, each computed in the model's dtype."""
    policy = Policy(load_model(config.model, config.learner))
    total = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in policy.hf.named_parameters()}
    objective = config.learner.objective.model_copy(update={"importance": "none"})
    for micro in micros:
        logprobs, _ = policy(micro, config.rollout.temperature, config.learner.logit_chunk)
        policy_loss(logprobs, logprobs.detach(), micro, objective)[0].backward()
        for name, parameter in policy.hf.named_parameters():
            total[name] += parameter.grad.double()
            parameter.grad = None
    return total


def found(config: Config, micros: Sequence[MicroBatch], rank: int, world: int) -> dict[str, torch.Tensor]:
    """The gradient that DeepSpeed's optimizer was given."""
    from deepspeed.utils import safe_get_full_fp32_param

    objective = config.learner.objective.model_copy(update={"importance": "none"})
    learner = config.learner.model_copy(update={"objective": objective})
    engine = Engine(config.model_copy(update={"learner": learner}), rank, world)

    def masters() -> dict[str, torch.Tensor]:
        return {n: safe_get_full_fp32_param(p).double() for n, p in engine.hf.named_parameters()}

    before = masters()
    update = engine.step(micros)
    assert update.applied, "the step was refused"
    return {n: (before[n] - after) / RATIO for n, after in masters().items()}


@contextmanager
def accumulation(*, own_dtype: bool) -> Iterator[None]:
    """DeepSpeed that adds up and sends gradients in the model's dtype, or as the learner sets it up."""
    build = engines.deepspeed_config

    def changed(*arguments: Any) -> dict[str, Any]:
        left_out = ("data_types", "communication_data_type") if own_dtype else ()
        return {key: value for key, value in build(*arguments).items() if key not in left_out}

    with mock.patch.object(engines, "deepspeed_config", changed):
        yield


def relative(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    apart = torch.cat([(found[n] - wanted[n]).flatten() for n in wanted]).norm()
    return float(apart / torch.cat([w.flatten() for w in wanted.values()]).norm())


def main() -> None:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    config = configuration(2, world)
    backend = set_device(config.learner, config.run.seed, int(os.environ.get("LOCAL_RANK", "0")))
    if world == 1:
        os.environ["MASTER_PORT"] = "29511"
    torch.distributed.init_process_group(backend, rank=rank, world_size=world)
    for stage in STAGES:  # the first step under ZeRO-3 computes in another order, which bfloat16 shows
        found(configuration(stage, world), micro_batches_of(world, True, rank, world), rank, world)
    for alike in (True, False):
        wanted = exact(configuration(2, world), micro_batches_of(COUNT, alike, 0, 1))
        mine = micro_batches_of(COUNT, alike, rank, world)
        for stage in STAGES:
            errors = {}
            for side in ("own dtype", "learner"):
                with accumulation(own_dtype=side == "own dtype"):
                    errors[side] = relative(found(configuration(stage, world), mine, rank, world), wanted)
            if rank == 0:
                print(json.dumps([[stage, alike], errors]), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
