"""The owner and the readers of a shared buffer are processes, each of which may be killed at any moment."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import UNREACHED, StaleWeights
from common.shared_buffer import Address, SharedBuffer, copied, reading

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
CPU = torch.device("cpu")
START = """
import json, sys, time, torch
from common.shared_buffer import Address, SharedBuffer, reading
CPU = torch.device("cpu")
"""
OWNER = f"""{START}
buffer = SharedBuffer(2**20, CPU)
with buffer.filling(1.0) as memory:
    memory.fill_(7)
print(buffer.address.model_dump_json(), flush=True)
time.sleep(100)
"""
READER = f"""{START}
with reading(Address.model_validate(json.loads(sys.argv[1])), CPU) as memory:
    print(int(memory.max()), flush=True)
    time.sleep(100)
"""


@contextmanager
def process(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *arguments]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def says(started: subprocess.Popen[str]) -> Any:
    assert started.stdout is not None
    return json.loads(started.stdout.readline())


def test_a_reader_whose_owner_is_killed_reads_on_and_the_memory_is_gone_afterwards() -> None:
    with process(OWNER) as owner:
        address = Address.model_validate(says(owner))
        with reading(address, CPU) as memory:
            owner.kill()
            owner.wait()
            assert memory.tolist() == [7] * 2**20
    with pytest.raises(StaleWeights, match=UNREACHED):
        copied(address, CPU)


def test_an_owner_waits_for_a_living_reader_and_not_for_a_killed_one() -> None:
    buffer = SharedBuffer(2**20, CPU)
    with buffer.filling(1.0) as memory:
        memory.fill_(7)
    with process(READER, buffer.address.model_dump_json()) as reader:
        assert says(reader) == 7
        with pytest.raises(TimeoutError), buffer.filling(0.2):
            raise AssertionError("it writes beside a reader")
        reader.kill()
        reader.wait()
        with buffer.filling(1.0) as memory:
            memory.fill_(8)
    assert copied(buffer.address, CPU).tolist() == [8] * 2**20
