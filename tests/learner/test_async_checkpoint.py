"""What is written aside, while the next step trains, is the state when it was taken, in the same files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from hora_rl.common.load import load
from hora_rl.common.weights.host_memory import ALIGNED, HostBlock, size_of
from hora_rl.learner.checkpoints.checkpoint import Checkpoints
from hora_rl.learner.model.async_checkpoint import HostState
from hora_rl.learner.model.engine import Engine, Update
from tests.support.samples import random_micro_batch

SHAPES = [((3, 5), torch.float32), ((), torch.int64), ((0, 4), torch.float32), ((7,), torch.bfloat16)]


def tensors_in(state: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]


class Scaler:
    """An object within the state that changes with every step, as DeepSpeed's loss scaler."""

    def __init__(self) -> None:
        self.scale = 1.0


def state() -> dict[str, Any]:
    weight, flat = torch.arange(6.0).view(2, 3), torch.arange(8.0)
    return {
        "module": {"embedding": weight.detach(), "head": weight.detach()},
        "partitions": [flat[:4], (flat[4:], torch.tensor(3))],
        "scaler": Scaler(),
        "groups": [{"lr": 0.1}],
        "empty": torch.empty(0),
    }


def change(live: dict[str, Any]) -> None:
    for tensor in tensors_in(live):
        tensor.zero_()
    live["scaler"].scale, live["groups"][0]["lr"] = 8.0, 0.2
    live["partitions"].append(torch.ones(3))


def test_a_copy_is_the_state_when_it_was_taken_whatever_is_changed_later() -> None:
    live, wanted, host = state(), state(), HostState()
    held: Any = host.copy("a", live)
    change(live)
    assert [t.tolist() for t in tensors_in(held)] == [t.tolist() for t in tensors_in(wanted)]
    assert (held["scaler"].scale, held["groups"], len(held["partitions"])) == (1.0, [{"lr": 0.1}], 2)


def test_memory_is_kept_from_one_copy_to_the_next_and_for_each_name_its_own() -> None:
    host, live = HostState(), state()
    first: Any = host.copy("a", live)
    places = [t.data_ptr() for t in tensors_in(first) if len(t.shape)]
    other: Any = host.copy("b", live)
    for tensor in tensors_in(live):
        tensor.zero_()
    second: Any = host.copy("a", live)
    assert [t.data_ptr() for t in tensors_in(second) if len(t.shape)] == places
    assert other["module"]["head"].sum() == 15.0


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    live = state()["module"]
    held = HostState().copy("a", live)
    torch.save(live, tmp_path / "live")
    torch.save(held, tmp_path / "held")
    result = torch.load(tmp_path / "held", weights_only=True)
    assert result["head"].data_ptr() == result["embedding"].data_ptr()
    assert (tmp_path / "held").stat().st_size == (tmp_path / "live").stat().st_size


def test_every_tensor_has_an_aligned_place_of_its_own_in_one_block_of_their_size() -> None:
    tensors = [torch.full(shape, i + 1, dtype=dtype) for i, (shape, dtype) in enumerate(SHAPES)]
    block = HostBlock(size_of(tensors), pinned=False)
    assert block.size <= sum(t.nbytes for t in tensors) + ALIGNED * len(tensors)
    for factor in (1, 2):
        block.restart()
        copies = [block.like(t).copy_(t * factor) for t in tensors]
        assert all(torch.equal(c, t * factor) for c, t in zip(copies, tensors, strict=True))
        assert all(c.dtype == t.dtype and c.shape == t.shape for c, t in zip(copies, tensors, strict=True))
        assert all(c.data_ptr() % ALIGNED == 0 for c in copies if c.numel())
    with pytest.raises(ValueError, match="no room"):
        block.like(torch.zeros(1000))


def test_a_sharded_parameter_counts_whole() -> None:
    shard = torch.nn.Parameter(torch.zeros(4))
    shard.ds_numel = 64  # type: ignore[attr-defined]
    assert size_of([shard]) == 256


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU, this machine has none")
def test_a_block_for_a_gpu_is_pinned_and_can_be_made_again() -> None:
    source = torch.arange(1000.0, device="cuda")
    for _ in range(3):
        block = HostBlock(size_of([source]), pinned=True)
        copy = block.like(source)
        assert copy.is_pinned()
        copy.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(copy, source.cpu())
        del block, copy


def step(engine: Engine, seed: int) -> Update:
    return engine.step([random_micro_batch(40, s, 60) for s in (seed, seed + 100)])


def weights(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in engine.gathered()}


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("stage", "lora"), [(0, False), (2, True), (3, False)])
def test_a_checkpoint_that_is_written_aside_is_the_state_when_it_was_taken(
    process_group: None, tmp_path: Path, stage: int, lora: bool
) -> None:
    adapter = ["learner.lora.rank=4", "learner.objective.kl=0.01"] if lora else []
    settings = [f"learner.zero_stage={stage}", "learner.optimizer.learning_rate=0.01", *adapter]
    config = load("tiny", ["run.name=c", *settings])
    engine, checkpoints = Engine(config, 0, 1), Checkpoints(config, tmp_path, 0, 1)
    for seed in (1, 2):
        step(engine, seed)
    checkpoints.begin(engine, 2)
    norm, after = step(engine, 3).grad_norm, weights(engine)
    checkpoints.finished(wait=True)
    again = Engine(config, 0, 1)
    assert Checkpoints(config, tmp_path, 0, 1).restore(again) == 2
    assert step(again, 3).grad_norm == norm
    assert all(torch.equal(tensor, after[name]) for name, tensor in weights(again).items())


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("stage", "dtype"), [(0, "float32"), (2, "bfloat16"), (3, "float32")])
def test_the_first_step_of_a_longer_run_has_the_rate_of_its_schedule(
    process_group: None, tmp_path: Path, stage: int, dtype: str
) -> None:
    """The schedule of the shorter run, linear, ended at 0."""
    settings = [f"learner.zero_stage={stage}", f"model.dtype={dtype}", "learner.optimizer.schedule=linear"]
    settings += ["learner.optimizer.learning_rate=0.01", "learner.objective.updates_per_batch=2"]
    ended, longer = (Engine(load("tiny", [*settings, f"learner.steps={n}"]), 0, 1) for n in (2, 8))
    rates = [step(ended, seed).learning_rate for seed in (1, 2)]
    ended.save(tmp_path, "state")()
    longer.load(tmp_path, "state")
    rates += [step(longer, seed).learning_rate for seed in (3, 4)]
    assert rates == pytest.approx([0.01, 0.005, 0.0075, 0.00625])
