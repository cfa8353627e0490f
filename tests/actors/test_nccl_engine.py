"""Over NCCL a version that lacks a layer is refused, and both sides cut chunks at the same size."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]  # it imports vLLM


def engine_of(model: torch.nn.Module) -> Any:
    """The worker's engine for `model`, in an update that has begun."""
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    from hora_rl.common.weights.vllm_transfer import NcclEngine

    record_metadata_for_reloading(model)
    engine = NcclEngine.__new__(NcclEngine)
    engine.model, engine.model_config = model, cast(Any, None)
    engine.start_weight_update()
    return engine


def load(model: torch.nn.Module, names: set[str]) -> None:
    for name, parameter in [*model.named_parameters()]:
        if name in names:
            cast(Any, parameter).weight_loader(parameter, torch.full(parameter.shape, 7.0))


@pytest.mark.parametrize("left_out", ["layers.1.weight", ""])
def test_a_layer_without_new_weights_is_refused(left_out: str) -> None:
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(3))
    engine = engine_of(model)
    load(model, {f"layers.{i}.weight" for i in range(3)} - {left_out})
    if left_out:
        with pytest.raises(RuntimeError, match=r"1 layers of Module got no weights .* layers\.1"):
            engine.finish_weight_update()
    else:
        engine.finish_weight_update()
        assert all((p == 7.0).all() for p in model.parameters())


def test_both_sides_cut_chunks_at_the_same_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from hora_rl.common.weights import group_sender, vllm_transfer
    from hora_rl.common.weights.memory_files import Snapshot

    sizes = list[int]()
    monkeypatch.setattr(vllm_transfer, "_joined", lambda *_: None)
    engine = vllm_transfer.NcclEngine.__new__(vllm_transfer.NcclEngine)
    engine.parallel_config = cast(Any, SimpleNamespace(rank=0))
    engine.init_transfer_engine(cast(Any, None))
    sizes.append(engine.packed_buffer_size_bytes)

    def produce(*_: Any, buffer_size_bytes: int) -> None:
        sizes.append(buffer_size_bytes)

    monkeypatch.setattr(vllm_transfer, "packed_nccl_broadcast_producer", produce)
    group = group_sender.TransferGroup.__new__(group_sender.TransferGroup)
    group._members, group._group, group._nccl, group._name = ("a",), object(), True, ""
    group._broadcast = cast(Any, SimpleNamespace(update=lambda *_: None, confirm=lambda _: []))
    weights = Snapshot(1, [("w", torch.zeros(2))], torch.device("cpu"))
    group._send(weights, ("a",))
    assert sizes == [256 * 2**20] * 2
