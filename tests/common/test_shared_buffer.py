"""Nobody writes what another reads, and nothing is mapped that is not what was announced."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from common.errors import UNREACHED, StaleWeights
from common.shared_buffer import Address, SharedBuffer, copied, placed, reading, size_of

CPU = torch.device("cpu")


def filled(value: int, size: int = 5000) -> SharedBuffer:
    buffer = SharedBuffer(size, CPU)
    fill(buffer, value)
    return buffer


def fill(buffer: SharedBuffer, value: int) -> None:
    with buffer.filling(1.0) as memory:
        memory.fill_(value)


@contextmanager
def refused(*words: str) -> Iterator[None]:
    with pytest.raises(StaleWeights) as caught:
        yield
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_copy_is_of_the_fill_that_was_announced_and_of_no_other() -> None:
    buffer = filled(1)
    first = buffer.address
    own = copied(first, CPU)
    assert own.tolist() == [1] * 5000
    fill(buffer, 2)
    assert own.tolist() == [1] * 5000, "a copy"
    with refused("holds fill 2 of the weights, not 1"):
        copied(first, CPU)
    assert copied(buffer.address, CPU).tolist() == [2] * 5000


def test_the_owner_waits_for_readers_and_says_so_when_it_gives_up() -> None:
    buffer = filled(1)
    with reading(buffer.address, CPU) as one, reading(buffer.address, CPU) as other:
        late = pytest.raises(TimeoutError, match=r"still reads .* 0.05 s \(weights.update_limit_s\)")
        with late, buffer.filling(0.05):
            raise AssertionError("it writes beside a reader")
        assert one.tolist() == other.tolist() == [1] * 5000
    fill(buffer, 2)
    assert copied(buffer.address, CPU)[0] == 2


def test_what_is_being_filled_or_was_left_half_filled_is_not_read() -> None:
    buffer = filled(1)
    before = buffer.address

    def break_off() -> None:
        with buffer.filling(1.0) as memory:
            memory[:2500] = 2
            with refused("is being overwritten"):
                copied(before, CPU)
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        break_off()
    with refused("holds fill 1"):
        copied(before, CPU)
    fill(buffer, 3)
    assert copied(buffer.address, CPU).tolist() == [3] * 5000


def test_a_reader_that_writes_changes_nobody_elses_memory() -> None:
    buffer = filled(1)
    with reading(buffer.address, CPU) as memory:
        memory.fill_(9)
    assert copied(buffer.address, CPU).tolist() == [1] * 5000


def test_an_address_that_is_not_the_buffers_is_refused_before_anything_is_mapped() -> None:
    buffer = filled(1)
    true = buffer.address
    end, other = os.pipe()  # opening it would wait for a writer
    stranger = os.open(__file__, os.O_RDONLY)
    unused = 2**22 - 1
    for change, word in (
        ({"machine": "another"}, "on another machine or in another container"),
        ({"pid": unused}, f"process {unused}: No such file"),
        ({"descriptor": end}, "another file there"),
        ({"descriptor": stranger}, "another file there"),
        ({"token": "0" * 32}, "another file there"),
    ):
        with refused(UNREACHED, word, "use file, gloo or nccl"):
            copied(true.model_copy(update=change), CPU)
    with refused("6000 bytes of weights were announced, and the buffer has 5000"):
        copied(true.model_copy(update={"size": 6000}), CPU)
    for file in (end, other, stranger):
        os.close(file)


def test_an_address_has_one_form_alone() -> None:
    said = filled(1).address.model_dump()
    assert Address.model_validate(said).model_dump() == said
    changes: list[dict[str, Any]] = [
        {"pid": "1"},
        {"pid": 0},
        {"descriptor": -1},
        {"fill": 0},
        {"size": 2**50},
        {"size": 10.0},
        {"token": "x" * 32},
        {"token": "0" * 30},
        {"more": 1},
        {"cuda": b"\x80\x04N."},
    ]
    for change in changes:
        with pytest.raises(ValidationError):
            Address.model_validate(said | change)


def test_nobody_can_cut_the_memory_under_a_reader() -> None:
    buffer = filled(1)
    address = buffer.address
    file = os.open(f"/proc/{address.pid}/fd/{address.descriptor}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.ftruncate(file, 0)
    os.close(file)


def test_tensors_of_all_types_lie_one_after_the_other_and_come_back() -> None:
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).to(torch.bfloat16),
        "c": torch.randn(2, 2, 2).to(torch.float16),
        "d": torch.tensor(1.5),
    }
    places = placed((name, t.dtype, t.shape) for name, t in tensors.items())
    assert [p.begin for p in places] == [0, 256, 512, 768]
    memory = torch.zeros(size_of(places), dtype=torch.uint8)
    for place in places:
        place.of(memory).copy_(tensors[place.name])
    assert all(torch.equal(p.of(memory), tensors[p.name]) for p in places)
    with pytest.raises(ValueError, match="'x' has shape"):
        placed([("x", torch.float32, (-1, -4))])
