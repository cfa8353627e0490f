"""A rank's device, its threads, its learning rate, and steps on the host (`learner.offload_optimizer`)."""

import os
from pathlib import Path

import pytest
import torch

from hora_rl.common.load import load
from hora_rl.learner.model.optimizer import schedule
from hora_rl.learner.ranks import expand_segments, set_device
from tests.support.ranks import run_ranks

RANK = """
import sys, torch
from hora_rl.common.load import load
from hora_rl.learner.model.engine import Engine
from tests.learner.test_bad_input import micro_batch

store = f"file://{sys.argv[1]}/store"
torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
fused, stepped = torch._fused_adamw_, []

def spy(params, *args, **more):
    stepped.extend(params)
    fused(params, *args, **more)

torch._fused_adamw_ = spy
for dtype in ("float32", "bfloat16"):
    for stage in (1, 2, 3):
        found = []
        for offload in ("true", "false"):
            stepped.clear()
            settings = {"model.dtype": dtype, "learner.zero_stage": stage}
            settings |= {"learner.offload_optimizer": offload, "learner.optimizer.learning_rate": 0.01}
            engine = Engine(load("tiny", [f"{key}={value}" for key, value in settings.items()]), 0, 1)
            assert all(engine.step([micro_batch(1.0, -1.0)]).applied for _ in range(2))
            assert stepped, "another optimizer stepped"
            assert {(p.device.type, p.dtype) for p in stepped} == {("cpu", torch.float32)}
            found.append({name: tensor.float() for name, tensor in engine.gathered()})
        offloaded, kept = found
        for name, tensor in kept.items():
            torch.testing.assert_close(offloaded[name], tensor, rtol=1e-2, atol=1e-3, msg=name)
        print("equal", dtype, stage, flush=True)
"""


@pytest.mark.system
@pytest.mark.timeout(300)
def test_two_steps_run_the_fused_kernel_and_give_the_weights_of_a_run_without_it(tmp_path: Path) -> None:
    assert run_ranks(RANK, tmp_path, str(tmp_path), ranks=1).count("equal") == 6


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
