"""`learner.offload_optimizer`: torch's fused AdamW steps on the host, in every stage of ZeRO that has it, and
on as many threads as a rank has cores."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from common.load import load
from learner.device import set_device
from learner.extensions import compile_extensions
from tests.learner.test_bad_input import micro_batch


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for the file: DeepSpeed remembers the first group of a process."""
    store = f"file://{tmp_path_factory.mktemp('group') / 'store'}"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DS_ACCELERATOR", "cpu")
        environment.setenv("LOCAL_RANK", "0")
        compile_extensions(lambda doing: None)
        torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        yield
        torch.distributed.destroy_process_group()


@pytest.mark.system
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_steps_run_the_fused_kernel_and_give_the_weights_of_a_run_without_it(
    group: None, dtype: str, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from learner.engine import Engine

    settings = [f"model.dtype={dtype}", f"learner.zero_stage={stage}", "learner.optimizer.learning_rate=0.01"]
    found, fused, stepped = [], torch._fused_adamw_, list[torch.Tensor]()

    def spy(params: list[torch.Tensor], *args: Any, **more: Any) -> None:
        stepped.extend(params)
        fused(params, *args, **more)

    monkeypatch.setattr(torch, "_fused_adamw_", spy)
    for offload in ("true", "false"):
        stepped.clear()
        engine = Engine(load("tiny", [*settings, f"learner.offload_optimizer={offload}"]), 0, 1)
        assert all(engine.step([micro_batch(1.0, -1.0)]).applied for _ in range(2))
        assert stepped, "another optimizer stepped"
        assert {(p.device.type, p.dtype) for p in stepped} == {("cpu", torch.float32)}
        found.append({name: tensor.float() for name, tensor in engine.gathered()})
    offloaded, kept = found
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
    assert set_device(load("tiny", ["model.dtype=bfloat16", "learner.offload_optimizer=true"]), 0) == "nccl"
    assert threads[-1] == 12
