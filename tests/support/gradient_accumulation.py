"""How exactly micro-batches' gradients add up in 16 bits, at every ZeRO stage: in the model's dtype, and in
float32.

    python -m tests.support.gradient_accumulation
    torchrun --standalone --nproc-per-node 2 -m tests.support.gradient_accumulation

One step of the demo's model over N micro-batches of one completion each. The gradient is read from the
float32 master weights after a plain step along it, and compared with the sum in float64 of the same
micro-batches' own gradients in the same precision. So the figures are of the adding alone, not of what 16
bits cost in one backward pass.
"""

from __future__ import annotations

import argparse
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
from hora_rl.learner.engine import DTYPES, Engine, load_model
from hora_rl.learner.logprobs import Policy
from hora_rl.learner.objective import policy_loss
from hora_rl.learner.sample import Sample

EPSILON, RATIO, LENGTH = 1e6, 1e4, 24
SIDES: dict[str, dict[str, Any] | None] = {
    "own dtype": {},
    "learner": None,  # as the learner sets DeepSpeed up
    "sent in float32": {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"},
}


def configuration(dtype: str, stage: int, world: int) -> Config:
    """AdamW with betas 0 and a huge epsilon: a step moves the weights by RATIO times the gradient."""
    return load(
        "tiny",
        [
            f"model.dtype={dtype}",
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
        ids = np.random.default_rng(i).integers(4, 60, 8 + LENGTH).astype(np.int32)
        advantage = 1.0 if alike or i % 2 else -1.0
        zeros, match = np.zeros(LENGTH, np.float32), np.ones(LENGTH, dtype=bool)
        sample = Sample(ids[:8], ids[8:], zeros, advantage, 1.0 / (count * LENGTH), match)
        made.append(make_micro_batch([[sample]]))
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
def accumulation(settings: dict[str, Any] | None) -> Iterator[None]:
    """DeepSpeed with these settings of the dtypes in which gradients are added up and sent; None: the
    learner's."""
    build = engines.deepspeed_config

    def changed(*arguments: Any) -> dict[str, Any]:
        made = build(*arguments)
        if settings is None:
            return made
        return {
            k: v for k, v in made.items() if k not in ("data_types", "communication_data_type")
        } | settings

    with mock.patch.object(engines, "deepspeed_config", changed):
        yield


def relative(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    apart = torch.cat([(found[n] - wanted[n]).flatten() for n in wanted]).norm()
    return float(apart / torch.cat([w.flatten() for w in wanted.values()]).norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument(
        "--dtypes", nargs="+", default=["bfloat16"], choices=sorted(set(DTYPES) - {"float32"})
    )
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    config = configuration("bfloat16", 2, world)
    backend = set_device(config.learner, config.run.seed, int(os.environ.get("LOCAL_RANK", "0")))
    for name, value in {"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        os.environ.setdefault(name, value)
    torch.distributed.init_process_group(backend, rank=rank, world_size=world)
    for (
        stage
    ) in options.stages:  # the first step under ZeRO-3 computes in another order, which bfloat16 shows
        found(
            configuration("bfloat16", stage, world), micro_batches_of(world, True, rank, world), rank, world
        )
    for dtype in options.dtypes:
        for alike in (True, False):
            for count in options.counts:
                report(dtype, alike, count, options.stages, rank, world)
    torch.distributed.destroy_process_group()


def report(dtype: str, alike: bool, count: int, stages: Sequence[int], rank: int, world: int) -> None:
    wanted = exact(configuration(dtype, 2, world), micro_batches_of(count, alike, 0, 1))
    mine = micro_batches_of(count, alike, rank, world)
    for stage in stages:
        config, errors = configuration(dtype, stage, world), {}
        for side, settings in SIDES.items():
            with accumulation(settings):
                errors[side] = relative(found(config, mine, rank, world), wanted)
        if rank == 0:
            row = {"dtype": dtype, "ranks": world, "alike": alike, "micro_batches": count, "stage": stage}
            print(json.dumps(row | {side: round(e, 6) for side, e in errors.items()}), flush=True)


if __name__ == "__main__":
    main()
