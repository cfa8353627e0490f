"""Losses and gradients that are not finite never reach the weights; drift beside a step counts once. A rank's
device, its threads, its learning rate, and steps on the host (`learner.offload_optimizer`)."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hora_rl.common.load import load
from hora_rl.learner.model.engine import Engine, Update
from hora_rl.learner.model.optimizer import schedule
from hora_rl.learner.ranks import expand_segments, set_device
from hora_rl.learner.rows.batch import MicroBatch, make_micro_batch
from tests.support.ranks import run_ranks
from tests.support.samples import sample

NEEDS_FLOAT16 = pytest.mark.skipif(
    not torch.cuda.is_available() and not torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    reason="this processor does not compute in float16, and DeepSpeed refuses it",
)


def micro_batch(*advantages: float) -> MicroBatch:
    rng = np.random.default_rng(0)
    return make_micro_batch([[sample(range(4, 9), rng.integers(4, 60, 8), -2.0, a, 0.1)] for a in advantages])


class Exploding(torch.autograd.Function):
    """Values pass unchanged, their gradient becomes infinite."""

    @staticmethod
    def forward(ctx: object, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * float("inf")


def check_refusal(engine: Engine, usual: list[MicroBatch], refused: Callable[[], Update]) -> Update:
    """A step that is refused between two usual ones leaves the weights and the schedule alone."""

    def weights() -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in engine.gathered()}

    assert engine.step(usual).applied
    before, result = weights(), refused()
    assert not result.applied
    assert not math.isfinite(result.grad_norm)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights().items())
    again, moved = engine.step(usual), weights()
    assert again.applied
    assert again.learning_rate == result.learning_rate
    assert any(not torch.equal(before[name], tensor) for name, tensor in moved.items())
    assert all(bool(torch.isfinite(tensor).all()) for tensor in moved.values())
    return result


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("wrong", ["loss", "gradient"])
def test_a_loss_or_gradient_not_finite_leaves_the_weights_and_the_schedule_alone(
    process_group: None, wrong: str, stage: int
) -> None:
    engine = Engine(load("tiny", [f"learner.zero_stage={stage}"]), 0, 1)

    def refused() -> Update:
        if wrong == "loss":
            return engine.step([micro_batch(1.0, float("nan"))])
        embeddings = engine.hf.get_input_embeddings()
        explode = embeddings.register_forward_hook(lambda *a: Exploding.apply(a[-1]))
        try:
            return engine.step([micro_batch(1.0, -1.0)])
        finally:
            explode.remove()

    assert check_refusal(engine, [micro_batch(1.0, -1.0)], refused).bad


@pytest.mark.system
@pytest.mark.parametrize("stage", [0, 1])
def test_a_refused_step_leaves_nothing_where_moments_are_on_the_host(process_group: None, stage: int) -> None:
    settings = ["model.dtype=bfloat16", f"learner.zero_stage={stage}", "learner.offload_optimizer=true"]
    norms = list[float]()
    for between in (False, True):
        engine = Engine(load("tiny", settings), 0, 1)
        assert engine.step([micro_batch(1.0, -1.0)]).applied
        if between:
            assert engine.step([micro_batch(1.0, float("nan"))]).bad
        update = engine.step([micro_batch(1.0, -1.0)])
        assert update.applied
        norms.append(update.grad_norm)
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)


@pytest.mark.system
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=NEEDS_FLOAT16)])
def test_a_first_update_in_16_bits_is_as_large_as_in_32(process_group: None, dtype: str) -> None:
    """Whatever the optimizer that DeepSpeed chooses for stage 0: one of them forgets its loss scale."""

    def moved(kind: str) -> float:
        rate = "learner.optimizer.learning_rate=0.01"  # far above what 16 bits round away
        engine = Engine(load("tiny", [f"model.dtype={kind}", "learner.zero_stage=0", rate]), 0, 1)
        before = {name: tensor.float().clone() for name, tensor in engine.gathered()}
        assert engine.step([micro_batch(1.0, -1.0)]).applied
        after = {name: tensor.float() for name, tensor in engine.gathered()}
        return sum(float((after[n] - before[n]).abs().sum()) for n in before)

    assert moved(dtype) == pytest.approx(moved("float32"), rel=0.1)


@NEEDS_FLOAT16
@pytest.mark.system
def test_a_loss_scale_that_is_too_large_is_no_bad_loss(process_group: None) -> None:
    """float16 begins with a scale of 65,536 and halves it until the gradients are finite."""
    engine = Engine(load("tiny", ["model.dtype=float16"]), 0, 1)
    overflowing = [micro_batch(1e4, -1.0)]
    updates = [engine.step(overflowing) for _ in range(3)]
    assert not any(update.applied or update.bad for update in updates)
    assert engine.step([micro_batch(float("nan"), -1.0)]).bad


def test_drift_of_fresh_samples_counts_once_whatever_the_number_of_updates(process_group: None) -> None:
    engine = Engine(load("tiny", ["learner.objective.updates_per_batch=3"]), 0, 1)
    older = replace(micro_batch(1.0), match=torch.zeros(8, dtype=torch.bool))
    assert engine.step([older], lambda: micro_batch(0.0)).sums["drift_tokens"] == 8


RANK = """
import os, sys
import torch
from hora_rl.common.load import load
from hora_rl.learner.ranks import set_device
from hora_rl.learner.model.engine import Engine
from tests.learner.test_optimizer import check_refusal, micro_batch

stage, rank = sys.argv[1], int(os.environ["RANK"])
config = load("tiny", [f"learner.zero_stage={stage}", "learner.workers=2"])
torch.distributed.init_process_group(set_device(config.learner, config.run.seed, rank))
engine = Engine(config, rank, 2)
bad = [micro_batch(float("nan") if rank == 1 else 1.0)]
check_refusal(engine, [micro_batch(1.0)], lambda: engine.step(bad))
torch.distributed.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_ranks_bad_loss_leaves_every_ranks_weights_and_schedule_alone(tmp_path: Path, stage: int) -> None:
    run_ranks(RANK, tmp_path, str(stage))


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_two_steps_run_the_fused_kernel_and_give_the_weights_of_a_run_without_it(
    process_group: None, monkeypatch: pytest.MonkeyPatch, dtype: str, stage: int
) -> None:
    fused, stepped, weights = torch._fused_adamw_, [], []

    def spy(params: list[torch.Tensor], *args: Any, **more: Any) -> None:
        stepped.extend(params)
        fused(params, *args, **more)

    monkeypatch.setattr(torch, "_fused_adamw_", spy)
    settings = [f"model.dtype={dtype}", f"learner.zero_stage={stage}", "learner.optimizer.learning_rate=0.01"]
    for offload in ("true", "false"):
        stepped.clear()
        engine = Engine(load("tiny", [*settings, f"learner.offload_optimizer={offload}"]), 0, 1)
        assert all(engine.step([micro_batch(1.0, -1.0)]).applied for _ in range(2))
        assert {(p.device.type, p.dtype) for p in stepped} == {("cpu", torch.float32)}
        weights.append({name: tensor.float() for name, tensor in engine.gathered()})
    offloaded, kept = weights
    for name, tensor in kept.items():
        torch.testing.assert_close(offloaded[name], tensor, rtol=1e-2, atol=1e-3, msg=name)


def test_a_rank_on_a_card_steps_on_its_share_of_the_host_s_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda rank: None)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", lambda text: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(48)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    learner = load("tiny", ["model.dtype=bfloat16", "learner.offload_optimizer=true"]).learner
    assert set_device(learner, 0, 0) == "nccl"
    assert threads[-1] == 12


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", None])
def test_segments_grow_unless_a_user_has_settings(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", arguments.append)
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(variable, raising=False)
    if name is not None:
        monkeypatch.setenv(name, "max_split_size_mb:512")
    expand_segments()
    assert arguments == ([] if name else ["expandable_segments:True"])


@pytest.mark.parametrize("updates", [1, 4])
@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_warm_up_and_decay_count_steps(updates: int, kind: str) -> None:
    """Optimizer steps, however many updates a step has."""
    optimizer = {"learner.optimizer.warmup_steps": 8, "learner.optimizer.schedule": kind}
    settings = {**optimizer, "learner.steps": 40, "learner.objective.updates_per_batch": updates}
    factor = schedule(load("tiny", [f"{key}={value}" for key, value in settings.items()]).learner)
    rising = [factor(u) for u in range(8 * updates)]
    assert rising == sorted(rising)
    assert factor(4 * updates - 1) == pytest.approx(0.5)
    assert factor(8 * updates - 1) == factor(8 * updates) == 1.0
    half, end = factor(24 * updates), factor(40 * updates)
    assert (half, end) == pytest.approx((1.0, 1.0) if kind == "constant" else (0.5, 0.0))
