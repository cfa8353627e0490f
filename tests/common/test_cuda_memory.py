"""The handle to a GPU's memory as plain values. What CUDA does with it is for a GPU to show; here torch's two
functions are replaced by ones that record what they are given."""

import json
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from common import cuda_memory
from common.cuda_memory import CudaMemory, exported, mapped
from common.errors import ConfigError, StaleWeights
from common.torch_settings import expandable_segments

CARD = "0a1b2c3d-0000-1111-2222-333344445555"
DEVICE = torch.device("cuda", 0)
SHARED = (3, b"\x03c" + bytes(range(64)), 4096, 512, b"/torch_77_1", 8, bytes(64), True)


class Memory:
    """A tensor of 4,096 bytes whose storage answers as a GPU's would."""

    device = DEVICE

    def __init__(self, *shared: Any) -> None:
        self._shared = shared

    def untyped_storage(self) -> "Memory":
        return self

    def _share_cuda_(self) -> Any:
        return self._shared


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch was told to map; it maps host memory instead."""
    seen: list[Any] = []
    whole = torch.arange(4096 * 2, dtype=torch.int32).to(torch.uint8)

    class Storage:
        @staticmethod
        def _new_shared_cuda(*parts: Any) -> Any:
            seen.append(parts)
            return whole[: parts[2]].clone().untyped_storage()

    empty = torch.empty
    monkeypatch.setattr(cuda_memory, "card_of", lambda device: CARD)
    monkeypatch.setattr(cuda_memory.torch, "UntypedStorage", Storage)
    monkeypatch.setattr(cuda_memory.torch, "empty", lambda *a, device, **k: empty(*a, **k))
    return seen


def test_what_torch_said_arrives_as_it_was_by_way_of_plain_text(given: list[Any]) -> None:
    said = json.loads(json.dumps(exported(Memory(*SHARED)).model_dump()))  # type: ignore[arg-type]
    assert {type(value) for value in said.values()} == {str, int, bool}
    with mapped(CudaMemory.model_validate(said), 4096, DEVICE) as memory:
        assert (memory.dtype, tuple(memory.shape)) == (torch.uint8, (4096,))
        assert memory[:3].tolist() == [0, 1, 2]
    assert given == [(0, *SHARED[1:])], "the index of the device is the reader's own"


def test_another_card_and_another_size_are_refused_before_anything_is_mapped(given: list[Any]) -> None:
    memory = exported(Memory(*SHARED))  # type: ignore[arg-type]
    elsewhere = memory.model_copy(update={"uuid": "ffff"})
    for found, device, size, says in (
        (elsewhere, DEVICE, 4096, f"on GPU ffff, and this generator computes on {CARD}"),
        (memory, torch.device("cpu"), 4096, "computes on cpu"),
        (memory, DEVICE, 8192, "4096 bytes of kind 0x63 is not one to the 8192"),
        (memory.model_copy(update={"handle": "0365" + "00" * 64}), DEVICE, 4096, "of kind 0x65"),
    ):
        with pytest.raises(StaleWeights, match=says), mapped(found, size, device):
            pass
    assert given == []


@pytest.mark.usefixtures("given")
@pytest.mark.parametrize(
    "change",
    [
        {"handle": "00" * 65},
        {"handle": "zz" * 66},
        {"handle": b"\x03c" + bytes(64)},
        {"size": -1},
        {"offset": 2**60},
        {"counter": ""},
        {"counter": "00" * 256},
        {"event": "00" * 65},
        {"waits": 1},
        {"uuid": "a/b"},
        {"more": 0},
    ],
    ids=str,
)
def test_a_handle_of_another_form_is_refused(change: dict[str, Any]) -> None:
    said = exported(Memory(*SHARED)).model_dump()  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        CudaMemory.model_validate(said | change)


@pytest.mark.usefixtures("given")
def test_expandable_segments_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert expandable_segments() is None
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64, expandable_segments: True")
    parts = list(SHARED)
    parts[1] = b"\x03e" + bytes(64)
    with pytest.raises(ConfigError, match=r"\(PYTORCH_CUDA_ALLOC_CONF=.*\): unset expandable_segments"):
        exported(Memory(*parts))  # type: ignore[arg-type]
