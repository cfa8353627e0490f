"""What is written aside is the state at the moment it was taken, and the file that DeepSpeed would have
written."""

from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from hora_rl.learner.async_checkpoint import HostState


def tensors_in(found: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]


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


def change(found: dict[str, Any]) -> None:
    for tensor in tensors_in(found):
        tensor.zero_()
    found["scaler"].scale, found["groups"][0]["lr"] = 8.0, 0.2
    found["partitions"].append(torch.ones(3))


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
    found = torch.load(tmp_path / "held", weights_only=True)
    assert found["head"].data_ptr() == found["embedding"].data_ptr()
    assert (tmp_path / "held").stat().st_size == (tmp_path / "live").stat().st_size
