"""A rank's device, its threads, its learning rate, and steps on the host (`learner.offload_optimizer`)."""

import os
from typing import Any

import pytest
import torch

from hora_rl.common.load import load
from hora_rl.learner.model.engine import Engine
from hora_rl.learner.model.optimizer import schedule
from hora_rl.learner.ranks import expand_segments, set_device
from tests.learner.test_bad_input import micro_batch


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
